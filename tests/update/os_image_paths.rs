//! Updates whose OS image is in a directory or a file of the machine.

use std::fs;

use machinist_base::{digest::Digest, reason::Reason};
use machinist_plan::ImageRef;
use machinist_testkit::sandbox::{Written, config};

use crate::{
    os::{
        ostree_files::Layout,
        ostree_registry::{commit_of, is_stored},
    },
    update::os_trials_on_ostree::Host,
};

fn image(place: &str, content: &str) -> ImageRef {
    let digest = Digest::of(content.as_bytes());
    ImageRef::parse(&format!("{place}@{digest}")).unwrap()
}

fn with_image(image: &ImageRef) -> Written {
    let mut wanted = config(&image.digest().to_string()[7..15]);
    wanted.0.os_image_url = Some(image.to_string());
    wanted
}

fn assert_booted(host: &Host, image: &ImageRef, reference: &str) {
    let mounts = host.ostree.read("proc/1/mountinfo");
    let (_, name) = mounts.split_once("/deploy/debian/deploy/").unwrap();
    let (commit, _) = name.split_once('.').unwrap();
    assert_eq!(commit, commit_of(image));
    let origin = format!("/ostree/deploy/debian/deploy/{commit}.0.origin");
    let origin = fs::read_to_string(host.sandbox.path(&origin)).unwrap();
    let expected = format!("container-image-reference=ostree-unverified-image:{reference}\n");
    assert!(origin.ends_with(&expected), "{origin}");
}

#[tokio::test(start_paused = true)]
async fn an_image_of_a_path_is_applied_and_replaced_by_the_next_one_there() {
    for place in ["oci:/srv/os", "oci-archive:/srv/os.tar:9.1"] {
        let mut host = Host::with_layout(Layout::Debian);
        for (content, version) in [("one", "1.0"), ("two", "2.0")] {
            let image = image(place, content);
            host.ostree.registry.publish(&image, version);
            host.apply(&with_image(&image)).await;
            assert_booted(&host, &image, place);
        }
        let reference = host
            .sandbox
            .path("/ostree/repo/refs/heads/ostree/container/image");
        let stored: Vec<_> = fs::read_dir(reference).unwrap().collect();
        assert_eq!(stored.len(), 1, "{stored:?}");
    }
}

/// bootc compares only the names of images.
#[tokio::test(start_paused = true)]
async fn bootc_needs_another_path_or_tag_for_another_image() {
    let mut host = Host::with_layout(Layout::Bootc);
    let (one, two) = (image("oci:/srv/os:1", "one"), image("oci:/srv/os:2", "two"));
    let same = image("oci:/srv/os:2", "three");
    for (image, version, place) in [
        (&one, "1.0", "oci:/srv/os:1"),
        (&two, "2.0", "oci:/srv/os:2"),
    ] {
        host.ostree.registry.publish(image, version);
        host.apply(&with_image(image)).await;
        assert_booted(&host, image, place);
    }
    host.ostree.registry.publish(&same, "3.0");
    let mut agent = host.agent(&with_image(&same));
    let refused = agent.reports.wait_for(|report| report.failure.is_some());
    let failure = refused.await.unwrap().failure.clone().unwrap();
    assert_eq!(failure.code, Reason::NoProviderForOSImage);
    assert!(
        failure.message.contains("is from oci:/srv/os:2 as well"),
        "{}",
        failure.message
    );
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_with_another_digest_than_the_asked_one_is_refused_and_removed() {
    let place = "oci:/srv/os";
    let mut host = Host::with_layout(Layout::Debian);
    let one = image(place, "one");
    host.ostree.registry.publish(&one, "1.0");
    host.apply(&with_image(&one)).await;
    let other = image(place, "other");
    host.ostree.registry.publish(&other, "2.0");
    let mut agent = host.agent(&with_image(&image(place, "asked")));
    let report = agent.until_failed().await;
    let failure = report.failure.clone().unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Reason::ImageUnreachable, false)
    );
    let found = format!("the digest {} instead", other.digest());
    assert!(failure.message.contains(&found), "{}", failure.message);
    agent.stop().await;
    assert!(!is_stored(&host.sandbox.path("/"), &other));
    // The running image is as before.
    let mut arguments = with_image(&one);
    arguments.0.kernel_arguments = vec!["nosmt".to_owned()];
    host.apply(&arguments).await;
    assert_booted(&host, &one, place);
}
