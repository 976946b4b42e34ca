//! Images are protected from garbage collection while a set has them, and no others are touched.

use machinist_agent::pinned_images::remove_protection;
use machinist_testkit::container_runtime::PINNED_LABEL;

use super::{Machine, image, set};

const RECORD: &str = "var/lib/machinist/pinned-images.json";
const CRIO_FILE: &str = "etc/crio/crio.conf.d/51-machinist-pinned-images";

#[tokio::test]
async fn containerd_keeps_images_by_a_label_that_leaves_with_the_set() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    let (pulled, present, pause) = (image("pulled"), image("present"), image("pause"));
    runtime.add(&present, &[("io.cri-containerd.image", "managed")]);
    // containerd itself pins the image of sandboxes.
    runtime.add(&pause, &[(PINNED_LABEL, "pinned")]);
    runtime.add("quay.io/team/other:1", &[]);
    machine.has(&[set(
        "first",
        1,
        &[pulled.clone(), present.clone(), pause.clone()],
    )]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(
        sets.progress, "3 of 3 images present",
        "no complaint about protection"
    );
    let mut expected = vec![pause.clone(), present.clone(), pulled.clone()];
    expected.sort();
    assert_eq!(runtime.labelled(), expected);
    let record = machine.read(RECORD).unwrap();
    assert!(
        record.contains(&pulled) && record.contains(&present),
        "{record}"
    );
    assert!(!record.contains(&pause), "its label is containerd's own");
    machine.has(&[set("first", 2, std::slice::from_ref(&pulled))]);
    agent.ended(2).await;
    let mut expected = vec![pause.clone(), pulled.clone()];
    expected.sort();
    assert_eq!(runtime.labelled(), expected);
    machine.has(&[]);
    agent
        .until("no sets", |sets| sets.progress == "no images")
        .await;
    super::until("no labels", || runtime.labelled() == [pause.clone()]).await;
    super::until("no record", || machine.read(RECORD).is_none()).await;
    assert_eq!(runtime.images().len(), 4, "no image was removed");
    agent.stop().await;
}

#[tokio::test]
async fn containerd_keeps_an_image_while_others_are_still_pulled() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    let (pulled, endless) = (image("pulled"), image("endless"));
    runtime.never_end_pull(&endless);
    machine.has(&[set("first", 1, &[pulled.clone(), endless])]);
    let agent = machine.start();
    super::until("the label", || runtime.labelled() == [pulled.clone()]).await;
    let record = machine.read(RECORD).unwrap();
    assert!(record.contains(&pulled), "{record}");
    assert_eq!(runtime.pulling(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_label_that_was_lost_with_its_image_is_set_again() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    agent.ended(1).await;
    runtime.remove(&image("a"));
    // As after a restart of the agent.
    agent.stop().await;
    let mut agent = machine.start();
    agent.ended(1).await;
    assert_eq!(runtime.labelled(), [image("a")]);
    agent.stop().await;
}

#[tokio::test]
async fn crio_keeps_images_by_a_file_and_is_reloaded_after_each_change() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.crio();
    machine.write(
        "etc/crio/crio.conf.d/50-pinned-images",
        "# of another daemon\n",
    );
    machine.has(&[set("first", 1, &[image("a"), image("b")])]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    assert_eq!(sets.progress, "2 of 2 images present");
    let text = machine.read(CRIO_FILE).unwrap();
    let mut images = [image("a"), image("b")];
    images.sort();
    let expected = format!(
        "[crio.image]\npinned_images = [\n  \"{}\",\n  \"{}\",\n]\n",
        images[0], images[1]
    );
    let (header, rest) = text.split_once('\n').unwrap();
    assert!(header.starts_with("# Written by machinist"), "{header}");
    assert_eq!(rest, expected);
    let reloads = || {
        let all = machine.systemd.requests();
        all.iter()
            .filter(|it| it.starts_with("ReloadUnit crio.service"))
            .count()
    };
    assert_eq!(reloads(), 1);
    assert!(runtime.labelled().is_empty());
    // A pass that changes nothing reloads nothing.
    agent.stop().await;
    let mut agent = machine.start();
    agent.ended(1).await;
    assert_eq!(reloads(), 1);
    machine.has(&[]);
    super::until("no file", || machine.read(CRIO_FILE).is_none()).await;
    super::until("the reload", || reloads() == 2).await;
    let other = machine.read("etc/crio/crio.conf.d/50-pinned-images");
    assert_eq!(other.as_deref(), Some("# of another daemon\n"));
    agent.stop().await;
}

#[tokio::test]
async fn a_foreign_file_in_place_of_ours_is_left_alone() {
    let machine = Machine::new();
    let (_runtime, _serving) = machine.crio();
    machine.write(CRIO_FILE, "[crio.image]\n");
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    let sets = agent.ended(1).await;
    let expected = "1 of 1 images present; ImageNotProtected: \
                    /etc/crio/crio.conf.d/51-machinist-pinned-images was not written by machinist";
    assert!(sets.progress.starts_with(expected), "{}", sets.progress);
    assert_eq!(sets.failure, None, "the images are present");
    machine.has(&[]);
    agent
        .until("no sets", |sets| sets.progress == "no images")
        .await;
    agent.stop().await;
    assert_eq!(machine.read(CRIO_FILE).as_deref(), Some("[crio.image]\n"));
}

#[tokio::test]
async fn leaving_a_machine_removes_every_protection_and_no_image() {
    let machine = Machine::new();
    let settings = machine.settings.borrow().pinned_images.clone();
    let (runtime, serving) = machine.containerd();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    agent.ended(1).await;
    agent.stop().await;
    machine.write(
        CRIO_FILE,
        "# Written by machinist from the PinnedImageSets of the node's pool; changes are lost.\n",
    );
    drop(serving);
    let error = remove_protection(&machine.root(), &settings)
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(machine.read(RECORD).is_some(), "for the next attempt");
    assert_eq!(machine.read(CRIO_FILE), None);
    let _serving = runtime.serve();
    remove_protection(&machine.root(), &settings).await.unwrap();
    assert!(runtime.labelled().is_empty());
    assert_eq!(runtime.images(), [image("a")]);
    assert_eq!(machine.read(RECORD), None);
    remove_protection(&machine.root(), &settings).await.unwrap();
}

#[tokio::test]
async fn another_daemon_finds_no_protection_of_ours() {
    let machine = Machine::new();
    let (_runtime, _serving) = machine.crio();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    agent.ended(1).await;
    assert!(machine.read(CRIO_FILE).is_some());
    let daemon = Some("machine-config-daemon".to_owned());
    machine.other_daemon.send_replace(daemon);
    super::until("no file", || machine.read(CRIO_FILE).is_none()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_containerd_that_a_label_ends_is_not_ended_again_and_again() {
    let machine = Machine::new();
    let (runtime, _serving) = machine.containerd();
    runtime.break_labels();
    machine.has(&[set("first", 1, &[image("a")])]);
    let mut agent = machine.start();
    for generation in 1..5 {
        machine.has(&[set("first", generation, &[image("a")])]);
        agent.ended(generation).await;
    }
    assert_eq!(runtime.label_changes(), 2);
    let sets = agent.ended(4).await;
    let expected = "1 of 1 images present; ImageNotProtected: containerd ended while";
    assert!(sets.progress.starts_with(expected), "{}", sets.progress);
    agent.stop().await;
}
