//! Which images are pulled, how, and what is reported of it.

use machinist_kube_api::NodeImageSetStatus;
use tonic::Code;

use super::{Machine, image, set, settings, until};
use machinist_cluster::pinned_image_sets::ImageSets;

#[tokio::test]
async fn missing_images_are_pulled_with_credentials_and_a_few_at_once() {
    let machine = Machine::new();
    machine.write(
        "var/lib/kubelet/config.json",
        r#"{"auths": {"quay.io": {"auth": "dTpw"}}}"#,
    );
    let (runtime, _serving) = machine.containerd();
    let images: Vec<String> = ["a", "b", "c", "d", "e"].map(image).into();
    runtime.add(&images[0], &[]);
    runtime.let_pulls_end(false);
    machine.has(&[
        set("first", 1, &images[..3]),
        set("second", 1, &images[2..]),
    ]);
    let mut agent = machine.start();
    until("three pulls", || runtime.pulling() == 3).await;
    let sets = agent.until("progress", |sets| sets.is_progressing).await;
    assert_eq!(sets.progress, "pulling images: 1 of 5 present");
    let pull = agent.first_pull().unwrap();
    assert_eq!((pull.present, pull.images), (1, 5));
    runtime.let_pulls_end(true);
    let sets = agent.ended(1).await;
    assert_eq!(sets.progress, "5 of 5 images present");
    assert_eq!(sets.failure, None);
    let complete = |name: &str| NodeImageSetStatus {
        name: name.to_owned(),
        current_generation: Some(1),
        desired_generation: Some(1),
        ..NodeImageSetStatus::default()
    };
    assert_eq!(sets.sets, [complete("first"), complete("second")]);
    assert_eq!(agent.first_pull(), None);
    assert_eq!(runtime.most_pulling(), 3);
    let mut pulled: Vec<String> = runtime.pulls().into_iter().map(|(name, _)| name).collect();
    pulled.sort();
    let mut expected = images[1..].to_vec();
    expected.sort();
    assert_eq!(pulled, expected, "each missing image once");
    let has_credentials = |auth: &Option<machinist_cri::api::v1::AuthConfig>| {
        auth.as_ref().is_some_and(|auth| auth.auth == "dTpw")
    };
    assert!(
        runtime
            .pulls()
            .iter()
            .all(|(_, auth)| has_credentials(auth))
    );
    agent.stop().await;
}

#[tokio::test]
async fn refused_credentials_are_followed_by_those_of_the_runtime() {
    let machine = Machine::new();
    machine.write(
        "var/lib/kubelet/config.json",
        r#"{"auths": {"quay.io/team": {"username": "u", "password": "p"}}}"#,
    );
    let (runtime, _serving) = machine.containerd();
    let wanted = image("a");
    runtime.fail_pull(&wanted, Code::Unknown, "401 Unauthorized");
    machine.has(&[set("first", 1, &[wanted])]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(sets.failure, None);
    let with: Vec<bool> = runtime
        .pulls()
        .iter()
        .map(|(_, auth)| auth.is_some())
        .collect();
    assert_eq!(with, [true, false]);
    agent.stop().await;
}

#[tokio::test]
async fn another_failure_than_a_refusal_by_the_registry_is_repeated_with_the_same_credentials() {
    let machine = Machine::new();
    machine.write(
        "var/lib/kubelet/config.json",
        r#"{"auths": {"quay.io": {"auth": "one"}, "*.io/team": {"auth": "two"}}}"#,
    );
    let (runtime, _serving) = machine.containerd();
    let wanted = image("a");
    runtime.fail_pull(&wanted, Code::Unknown, "dial tcp: connection refused");
    runtime.fail_pull(&wanted, Code::Unknown, "401 Unauthorized");
    machine.has(&[set("first", 1, &[wanted])]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(sets.failure, None);
    let pulls = runtime.pulls().into_iter();
    let used: Vec<_> = pulls.map(|(_, auth)| auth.unwrap().auth).collect();
    assert_eq!(used, ["one", "one", "two"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_failed_image_does_not_stop_the_others_and_is_named() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    let (good, bad, full) = (image("good"), image("bad"), image("full"));
    for _ in 0..3 {
        runtime.fail_pull(&bad, Code::Unknown, "manifest unknown");
    }
    runtime.fail_pull(&full, Code::Unknown, "write: no space left on device");
    let tag = "quay.io/team/tagged:1".to_owned();
    machine.has(&[
        set("good", 4, std::slice::from_ref(&good)),
        set(
            "mixed",
            4,
            &[good.clone(), bad.clone(), full.clone(), tag.clone()],
        ),
    ]);
    let mut agent = machine.start();
    let sets = agent.ended(4).await;
    assert_eq!(sets.progress, "1 of 4 images present");
    let failure = sets.failure.unwrap();
    for part in [
        format!("ImagePullFailed: cannot pull image {bad}: manifest unknown"),
        format!("NoSpace: cannot pull image {full}"),
        format!("ImageNotByDigest: image {tag:?} is not named by digest"),
    ] {
        assert!(failure.contains(&part), "{part}: {failure}");
    }
    assert_eq!(sets.sets[0].current_generation, Some(4));
    assert_eq!(sets.sets[0].last_failed_generation, None);
    assert_eq!(sets.sets[1].current_generation, None);
    assert_eq!(sets.sets[1].last_failed_generation, Some(4));
    let count = |image: &String| {
        runtime
            .pulls()
            .iter()
            .filter(|(name, _)| name == image)
            .count()
    };
    assert_eq!((count(&bad), count(&full), count(&tag)), (3, 1, 0));
    let metrics = agent.metrics.text().unwrap();
    for count in ["{state=\"present\"} 1", "{state=\"missing\"} 3"] {
        let line = format!("machinist_pinned_images{count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert_eq!(
        agent.first_pull(),
        None,
        "an update does not wait for failures"
    );
    agent.stop().await;
}

#[tokio::test]
async fn an_image_without_a_status_is_pulled_and_does_not_stop_the_others() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.crio();
    let (good, damaged, hopeless) = (image("good"), image("damaged"), image("hopeless"));
    runtime.add(&damaged, &[]);
    runtime.break_status(&damaged, 1);
    runtime.break_status(&hopeless, usize::MAX);
    let capitals = good.replace("/team/", "/Team/");
    machine.has(&[
        set("first", 1, &[good.clone(), damaged.clone()]),
        set("second", 1, &[hopeless.clone(), capitals.clone()]),
    ]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(sets.progress, "2 of 4 images present");
    let failure = sets.failure.unwrap();
    for part in [
        format!("ImagePullFailed: cannot look for image {hopeless}: image is damaged"),
        format!("ImageNotByDigest: image {capitals:?} is not named by digest"),
    ] {
        assert!(failure.contains(&part), "{part}: {failure}");
    }
    assert_eq!(sets.sets[0].current_generation, Some(1));
    let mut pulled: Vec<String> = runtime.pulls().into_iter().map(|(name, _)| name).collect();
    pulled.sort();
    let mut expected = [good.clone(), damaged.clone(), hopeless];
    expected.sort();
    assert_eq!(pulled, expected);
    let config = machine.read("etc/crio/crio.conf.d/51-machinist-pinned-images");
    let config = config.unwrap();
    assert!(
        config.contains(&good) && config.contains(&damaged),
        "{config}"
    );
    assert!(!config.contains(&capitals), "{config}");
    agent.stop().await;
}

#[tokio::test]
async fn nothing_is_pulled_while_too_little_space_is_free() {
    let machine = Machine::new();
    machine
        .settings
        .send_replace(settings(&[("pinnedImages.minFree", "100%")]));
    let (runtime, _serving) = machine.containerd();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    let failure = sets.failure.unwrap();
    assert!(
        failure.starts_with("NoSpace: image quay.io/team/a@"),
        "{failure}"
    );
    assert!(runtime.pulls().is_empty());
    // A changed setting takes effect at once.
    machine.settings.send_replace(settings(&[]));
    agent
        .until("the pull", |sets| {
            sets.failure.is_none() && !sets.is_progressing
        })
        .await;
    assert_eq!(runtime.images(), [image("a")]);
    agent.stop().await;
}

#[tokio::test]
async fn a_pull_ends_at_its_time_limit() {
    let machine = Machine::new();
    machine
        .settings
        .send_replace(settings(&[("pinnedImages.pullTimeout", "100ms")]));
    let (runtime, _serving) = machine.containerd();
    runtime.let_pulls_end(false);
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    let failure = agent.ended(1).await.failure.unwrap();
    assert!(failure.contains("no answer within 0 s"), "{failure}");
    until("the cancelled pull", || runtime.pulling() == 0).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_set_ends_the_pulls_of_its_former_images() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    runtime.let_pulls_end(false);
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    until("the pull", || runtime.pulling() == 1).await;
    machine.has(&[set("first", 2, &[image("b")])]);
    until("the other pull", || {
        runtime
            .pulls()
            .last()
            .is_some_and(|(name, _)| *name == image("b"))
    })
    .await;
    runtime.let_pulls_end(true);
    agent.ended(2).await;
    assert_eq!(runtime.images(), [image("b")]);
    agent.stop().await;
}

#[tokio::test]
async fn nothing_is_pulled_beside_another_daemon_or_for_another_pool() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    let mut infra = set("infra", 1, &[image("a")]);
    infra.labels.clear();
    machine.has(&[infra]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(sets.progress, "no images");
    assert_eq!(runtime.requests(), 0, "no image and no trace of one");
    machine
        .other_daemon
        .send_replace(Some("machine-config-daemon".to_owned()));
    machine.has(&[set("first", 1, &[image("a")])]);
    agent.reports.sets.wait_for(Option::is_none).await.unwrap();
    machine.other_daemon.send_replace(None);
    agent.ended(1).await;
    assert_eq!(runtime.images(), [image("a")]);
    // Without the kind there is nothing to report.
    machine.sets.send_replace(ImageSets::NoKind);
    agent.reports.sets.wait_for(Option::is_none).await.unwrap();
    agent.stop().await;
}

#[tokio::test]
async fn a_missing_runtime_is_reported_and_found_when_it_starts() {
    let machine = Machine::new();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    let failure = agent.ended(1).await.failure.unwrap();
    assert!(
        failure.starts_with("RuntimeUnreachable: no container runtime"),
        "{failure}"
    );
    let (runtime, serving) = machine.containerd();
    drop(serving);
    machine.has(&[set("first", 2, &[image("a")])]);
    let failure = agent.ended(2).await.failure.unwrap();
    assert!(
        failure.starts_with("RuntimeUnreachable: no container runtime on"),
        "{failure}"
    );
    let _serving = runtime.serve();
    machine.has(&[set("first", 3, &[image("a")])]);
    assert_eq!(agent.ended(3).await.failure, None);
    agent.stop().await;
}
