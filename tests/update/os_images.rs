//! Updates that change the OS image, on a machine with OSTree and a registry.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::reason::Reason;
use machinist_plan::ImageRef;
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Written, config},
};
use machinist_update::{
    journal::Outcome,
    os::{FetchProgress, ProviderStep},
    phase::Phase,
    reconciler::{Reconciler, UpdateReport},
};

use crate::{
    os::{
        ostree_files::Layout,
        ostree_machine::BEFORE,
        ostree_registry::{commit_of, is_stored},
    },
    update::{
        boots::KUBELET,
        harness::{DecliningHooks, Driver},
        os_trials_on_ostree::{Host, options},
        reboots::reboots,
    },
};

fn image(content: &str) -> ImageRef {
    let digest = machinist_base::digest::Digest::of(content.as_bytes());
    ImageRef::parse(&format!("registry.example.com/os@{digest}")).unwrap()
}

/// A config with an image, named by a tag as well.
fn with_image(name: &str, image: &ImageRef) -> Written {
    let mut wanted = config(name).file("/etc/example.conf", name, 0o644);
    let tagged = image.to_string().replace("/os@", "/os:9@");
    wanted.0.os_image_url = Some(tagged);
    wanted
}

/// The image of the running deployment.
fn booted_commit(host: &Host) -> String {
    let mounts = host.ostree.read("proc/1/mountinfo");
    let (_, name) = mounts.split_once("/deploy/debian/deploy/").unwrap();
    name.split('.').next().unwrap().to_owned()
}

fn is_stored_on(host: &Host, image: &ImageRef) -> bool {
    is_stored(&host.sandbox.path("/"), image)
}

#[tokio::test(start_paused = true)]
async fn an_image_is_downloaded_before_the_update_and_tried_by_one_boot() {
    let mut host = Host::new();
    let (one, two) = (image("one"), image("two"));
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.publish(&two, "2.0");
    host.ostree.registry.take(Duration::from_secs(600));
    let first = with_image("one", &one);
    let agent = host.agent(&first);
    let mut reports = agent.reports.clone();
    let fetching = reports.wait_for(|report| {
        let download = report.download.as_ref();
        download.is_some_and(|download| download.needed_layers.is_some())
    });
    let report = fetching.await.unwrap().clone();
    assert_eq!(report.phase, Phase::Fetching);
    let expected = FetchProgress {
        received_bytes: Some(300 << 20),
        layers: 0,
        needed_layers: Some(4),
        needed_size: Some("1.2 GB".to_owned()),
    };
    assert_eq!(report.download, Some(expected));
    // A layer is complete.
    let layers = host
        .sandbox
        .path("/ostree/repo/refs/heads/ostree/container/blob");
    std::fs::create_dir_all(&layers).unwrap();
    std::fs::write(layers.join("sha256_3A_ab"), "").unwrap();
    let next = reports.wait_for(|report| {
        let download = report.download.as_ref();
        download.is_some_and(|download| download.layers == 1)
    });
    drop(next.await.unwrap());
    assert!(!host.sandbox.path("/etc/example.conf").exists());
    // Another process starts it again.
    agent.stop().await;
    assert!(!is_stored_on(&host, &one));
    let agent = host.agent(&first);
    host.script.until_asked_times("reboot Logind", 1).await;
    agent.stop().await;
    host.reboot();
    host.until_on(&first).await;
    assert_eq!(booted_commit(&host), commit_of(&one));
    assert_eq!(host.ostree.running(), BEFORE);
    let origin = format!("ostree/deploy/debian/deploy/{}.0.origin", commit_of(&one));
    let origin = host.ostree.read(&origin);
    let expected = format!("container-image-reference=ostree-unverified-registry:{one}\n");
    assert!(origin.ends_with(&expected), "{origin}");
    host.power_cut();
    assert_eq!(booted_commit(&host), commit_of(&one));
    // The same image by another name changes nothing, and kernel arguments keep the image.
    let mut mirror = first.clone();
    mirror.0.os_image_url = Some(one.to_string().replace("registry.", "mirror."));
    mirror.0.kernel_arguments = vec!["nosmt".to_owned()];
    host.apply(&mirror).await;
    assert_eq!(booted_commit(&host), commit_of(&one));
    assert_eq!(host.ostree.running(), format!("{BEFORE} nosmt"));
    // The arguments of the config go with the next image too.
    let mut next = with_image("two", &two);
    next.0.kernel_arguments = vec!["a=1".to_owned(), "nosmt".to_owned()];
    host.apply(&next).await;
    assert_eq!(booted_commit(&host), commit_of(&two));
    assert_eq!(host.ostree.running(), format!("{BEFORE} a=1 nosmt"));
    assert_eq!(reboots(&host.script), 3);
}

#[tokio::test(start_paused = true)]
async fn a_download_neither_begins_nor_goes_on_when_space_is_low() {
    let host = Host::new();
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.take(Duration::from_secs(600));
    let wanted = with_image("one", &one);
    // Of 100 GiB, of which 15 stay free.
    let free = |gib: u64| host.ostree.free_bytes.store(gib << 30, Ordering::Relaxed);
    for enough_at_first in [false, true] {
        free(if enough_at_first { 16 } else { 14 });
        let mut agent = host.agent(&wanted);
        if enough_at_first {
            let is_begun = |report: &UpdateReport| {
                let download = report.download.as_ref();
                download.is_some_and(|download| download.needed_layers.is_some())
            };
            agent.until("begun", is_begun).await;
            assert!(host.ostree.registry.is_running());
            free(14);
        }
        let report = agent.until_failed().await;
        let failure = report.failure.as_ref().unwrap();
        assert_eq!((failure.code, failure.retryable), (Reason::NoSpace, true));
        assert!(!host.ostree.registry.is_running(), "{enough_at_first}");
        agent.stop().await;
        assert!(!is_stored_on(&host, &one));
    }
    free(50);
    host.until_reboot(&wanted).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_image_returns_to_the_previous_one_and_removes_it() {
    let mut host = Host::new();
    let (one, bad) = (image("one"), image("bad"));
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.publish(&bad, "2.0");
    host.apply(&with_image("one", &one)).await;
    let update = with_image("bad", &bad);
    host.until_reboot(&update).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert_eq!(trial.image, Some(bad.to_string()));
    host.ostree.panics(&trial.deployment);
    host.reboot();
    assert_eq!(booted_commit(&host), commit_of(&one));
    host.until_reboot(&update).await;
    host.reboot();
    assert_eq!(host.until_failed(&update).await, Reason::OSBootFailed);
    assert_eq!(booted_commit(&host), commit_of(&one));
    assert!(is_stored_on(&host, &one) && !is_stored_on(&host, &bad));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_downloaded_changes_nothing() {
    let host = Host::new();
    let missing = with_image("one", &image("missing"));
    let mut agent = host.agent(&missing);
    let report = agent.until_failed().await;
    let failure = report.failure.clone().unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Reason::ImageUnreachable, false)
    );
    assert!(
        failure.message.contains("manifest unknown"),
        "{}",
        failure.message
    );
    agent.stop().await;
    // The registry is unreachable at first.
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.fails_next(ProviderStep::Fetch);
    host.until_reboot(&with_image("two", &one)).await;
    assert_eq!(reboots(&host.script), 1);
    assert!(is_stored_on(&host, &one));
}

#[tokio::test(start_paused = true)]
async fn a_failed_download_does_not_end_the_check_of_the_open_update() {
    let mut host = Host::new();
    let first = config("first").file("/etc/example.conf", "first", 0o644);
    host.script.unit_is(KUBELET, "active");
    host.until_reboot(&first).await;
    host.reboot();
    host.script.unit_is(KUBELET, "activating");
    let mut agent = host.agent(&first);
    let is_verifying = |report: &UpdateReport| report.phase == Phase::Verifying;
    agent.until("verifying", is_verifying).await;
    agent.wants(&with_image("newer", &image("missing")));
    let is_failed = |report: &UpdateReport| {
        let failure = report.failure.as_ref();
        failure.is_some_and(|failure| failure.code == Reason::ImageUnreachable)
    };
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(is_verifying(&agent.reports.borrow()));
    host.script.unit_is(KUBELET, "active");
    let is_done = |report: &UpdateReport| {
        let last = report.updates.first();
        last.is_some_and(|update| update.outcome == Outcome::Done)
    };
    agent.until("done", is_done).await;
    agent.until("not downloaded", is_failed).await;
    agent.stop().await;
    assert_eq!(reboots(&host.script), 1);
}

/// bootc asks the registry once more, after the drain.
#[tokio::test(start_paused = true)]
async fn a_registry_that_goes_away_after_the_download_does_not_keep_the_node_cordoned() {
    let host = Host::with_layout(Layout::Bootc);
    let (root, node) = (host.sandbox.root(), FakeNode::of(&host.sandbox));
    node.blocks(true);
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    let how = (with_image("one", &one).desired(), options(Layout::Bootc));
    let provider = host.ostree.agent();
    let mut agent = Driver::on_os_of_node((&root, &node), &host.script, provider, how);
    let is_blocked = |report: &UpdateReport| !report.blockers.is_empty();
    agent.until("draining", is_blocked).await;
    assert!(node.is_cordoned() && is_stored_on(&host, &one));
    host.ostree.registry.is_away.store(true, Ordering::Relaxed);
    node.blocks(false);
    let failure = agent.until_failed().await.failure.clone().unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Reason::ImageUnreachable, true)
    );
    let is_released = |report: &UpdateReport| report.cordoned.is_none();
    agent.until("released", is_released).await;
    // The next attempts download first.
    tokio::time::sleep(Duration::from_hours(1)).await;
    let log = node.log();
    let cordons = log.iter().filter(|it| it.starts_with("cordon")).count();
    assert_eq!(cordons, 1, "{log:?}");
    host.ostree.registry.is_away.store(false, Ordering::Relaxed);
    host.script.until_reboot().await;
    assert!(node.is_cordoned());
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_with_a_lower_version_is_refused_once_it_is_known() {
    let mut host = Host::new();
    let (new, old) = (image("new"), image("old"));
    host.ostree.registry.publish(&new, "2.10");
    host.ostree.registry.publish(&old, "2.9");
    host.apply(&with_image("new", &new)).await;
    let lower = with_image("old", &old);
    let mut agent = host.agent(&lower);
    let refused = agent
        .reports
        .wait_for(|report| report.failure.is_some())
        .await;
    let failure = refused.unwrap().failure.clone().unwrap();
    assert_eq!(
        failure.code,
        Reason::DowngradeRefused,
        "{}",
        failure.message
    );
    agent.stop().await;
    assert_eq!(booted_commit(&host), commit_of(&new));
}

/// As `machinist apply` does, whose user says no.
#[tokio::test(start_paused = true)]
async fn a_plan_that_is_not_approved_downloads_nothing() {
    let host = Host::new();
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    // A download before the question would fail.
    host.ostree.registry.is_away.store(true, Ordering::Relaxed);
    let hooks = DecliningHooks::default();
    let asked = hooks.asked();
    let (_desired, source) = watch::channel(with_image("one", &one).desired());
    let (root, services) = (host.sandbox.root(), Some(host.script.clone()));
    let made = Reconciler::new(&root, services, hooks, options(Layout::Debian), source);
    let (reconciler, _) = made.unwrap();
    let reconciler = reconciler.with_os_provider(Some(Arc::new(host.ostree.agent())));
    reconciler.run_once(CancellationToken::new()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert!(!is_stored_on(&host, &one));
    assert_eq!(reboots(&host.script), 0);
}

/// skopeo and the daemons resolve an index to the image of the platform, whose digest is another one.
#[tokio::test(start_paused = true)]
async fn an_index_of_several_platforms_selects_its_image() {
    for layout in [Layout::Debian, Layout::Bootc] {
        let mut host = Host::with_layout(layout);
        let (index, platform) = (image("index"), image("platform"));
        host.ostree.registry.publish_index(&index, &platform, "1.0");
        host.apply(&with_image("one", &index)).await;
        assert_eq!(booted_commit(&host), commit_of(&platform));
        // Neither name changes the image.
        for (name, image) in [("two", &index), ("three", &platform)] {
            let wanted = with_image(name, image);
            host.until_reboot(&wanted).await;
            assert_eq!(host.sandbox.journal().os_trial, None, "{name}");
            host.reboot();
            host.until_on(&wanted).await;
        }
        assert_eq!(booted_commit(&host), commit_of(&platform));
    }
}

/// The download of an image ends when another config is desired.
#[tokio::test(start_paused = true)]
async fn a_new_config_ends_a_download() {
    let mut host = Host::new();
    let before = booted_commit(&host);
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.take(Duration::from_secs(3_000));
    let agent = host.agent(&with_image("one", &one));
    let mut reports = agent.reports.clone();
    let fetching = reports.wait_for(|report| report.phase == Phase::Fetching);
    fetching.await.unwrap();
    let other = config("other").file("/etc/example.conf", "other", 0o644);
    agent.desired.send_replace(other.desired());
    host.script.until_asked_times("reboot Logind", 1).await;
    agent.stop().await;
    assert!(!is_stored_on(&host, &one) && !host.ostree.registry.is_running());
    host.reboot();
    host.until_on(&other).await;
    assert_eq!(host.ostree.running(), BEFORE);
    assert_eq!(booted_commit(&host), before);
}

/// An administrator has chosen an image whose signature the policy, or a remote of libostree, requires.
#[tokio::test(start_paused = true)]
async fn the_next_image_is_verified_like_the_running_one() {
    for (layout, kind) in [
        (Layout::Debian, "ostree-image-signed:"),
        (Layout::Bootc, "ostree-image-signed:"),
        (Layout::Debian, "ostree-remote-image:fedora:"),
        (Layout::Bootc, "ostree-remote-image:fedora:"),
    ] {
        let mut host = Host::with_layout(layout);
        let origin = |host: &Host| {
            format!(
                "ostree/deploy/debian/deploy/{}.0.origin",
                booted_commit(host)
            )
        };
        let reference = format!("container-image-reference={kind}docker://");
        let signed = format!("[origin]\n{reference}registry.example.com/os:8\n");
        std::fs::write(host.sandbox.path(&origin(&host)), signed).unwrap();
        for (name, image) in [("one", image("one")), ("two", image("two"))] {
            host.ostree.registry.publish(&image, "1.0");
            host.apply(&with_image(name, &image)).await;
            assert_eq!(booted_commit(&host), commit_of(&image));
            let origin = host.ostree.read(&origin(&host));
            let expected = format!("{reference}{image}\n");
            assert!(origin.ends_with(&expected), "{layout:?}: {origin}");
        }
    }
}

/// bootc adds the kernel arguments of the image, which stay when the config changes its own.
#[tokio::test(start_paused = true)]
async fn bootc_stages_an_image_with_its_kernel_arguments() {
    let mut host = Host::with_layout(Layout::Bootc);
    let one = image("one");
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.set_arguments(&["mitigations=auto"]);
    let mut first = with_image("one", &one);
    first.0.kernel_arguments = vec!["nosmt".to_owned()];
    host.apply(&first).await;
    assert_eq!(booted_commit(&host), commit_of(&one));
    assert_eq!(
        host.ostree.running(),
        format!("{BEFORE} mitigations=auto nosmt")
    );
    host.ostree.registry.set_arguments(&[]);
    let mut next = first.clone();
    next.0.name = "two".to_owned();
    next.0.kernel_arguments = vec!["a=1".to_owned()];
    host.apply(&next).await;
    assert_eq!(booted_commit(&host), commit_of(&one));
    assert_eq!(
        host.ostree.running(),
        format!("{BEFORE} mitigations=auto a=1")
    );
    let bad = image("bad");
    host.ostree.registry.publish(&bad, "2.0");
    let update = with_image("bad", &bad);
    host.until_reboot(&update).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    host.ostree.panics(&trial.deployment);
    host.reboot();
    host.until_reboot(&update).await;
    host.reboot();
    assert_eq!(host.until_failed(&update).await, Reason::OSBootFailed);
    assert_eq!(booted_commit(&host), commit_of(&one));
}

/// Nothing needs an image any more whose config was withdrawn before the update.
#[tokio::test(start_paused = true)]
async fn the_image_of_a_withdrawn_config_is_removed() {
    let mut host = Host::new();
    let (one, two) = (image("one"), image("two"));
    host.ostree.registry.publish(&one, "1.0");
    host.ostree.registry.publish(&two, "0.9");
    let first = with_image("one", &one);
    host.apply(&first).await;
    // It is downloaded, and then refused.
    let lower = with_image("two", &two);
    let mut agent = host.agent(&lower);
    let refused = agent
        .reports
        .wait_for(|report| report.failure.is_some())
        .await;
    assert_eq!(
        refused.unwrap().failure.clone().unwrap().code,
        Reason::DowngradeRefused
    );
    agent.desired.send_replace(first.desired());
    let cleared = agent
        .reports
        .wait_for(|report| report.failure.is_none())
        .await;
    drop(cleared.unwrap());
    let mut seconds = 0;
    while is_stored_on(&host, &two) {
        assert!(seconds < 60, "the image stays");
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds += 1;
    }
    agent.stop().await;
    assert!(is_stored_on(&host, &one));
}
