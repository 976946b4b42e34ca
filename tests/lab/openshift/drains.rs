//! Drains that the node requests from the controller, and updates that request none.

use std::time::{Duration, Instant};

use super::{
    Content, NODE, REPORT_LIMIT, SEARCH, Story, node_recorder::ProgressSight, output_text,
};
use crate::support::{stalls, wait};

/// The file as the controller writes it for an ImageDigestMirrorSet, with its empty keys.
const MIRRORS: &str = "short-name-mode = \"\"\nadditional-layer-store-auth-helper = \"\"\n\n\
    [[registry]]\n  prefix = \"\"\n  location = \"registry.example.com/ocp\"\n\n\
    \x20 [[registry.mirror]]\n    location = \"mirror.example.com/ocp\"\n    pull-from-mirror = \"digest-only\"\n";

/// The deadline for the node to be schedulable again: one attempt of the controller plus a margin.
const GIVEN_BACK: Duration = wait::seconds(60);

pub fn mirrors(story: &Story<'_>, content: &mut Content) {
    let (from, _) = story.controller.seen().mark();
    let boot = story.machine.boot_id();
    MIRRORS.clone_into(&mut content.registries);
    story.healthy_update("rendered-worker-mirrors", content);
    let whole = [SEARCH, MIRRORS].concat();
    let read = story.machine.read("/etc/containers/registries.conf");
    assert_eq!(read, whole.as_bytes());
    let seen = story.controller.seen();
    let drained = |it: &&super::node_recorder::NodeSight| {
        it.desired_drain.starts_with("drain-") || it.cordoned
    };
    let drained = seen.nodes_from(from).iter().find(drained);
    assert!(drained.is_none(), "{drained:?}");
    assert_eq!(story.machine.boot_id(), boot);
}

/// The order that OpenShift's tests expect of an update with a reboot.
const ORDER: [&str; 8] = [
    "UpdatePrepared",
    "Cordoned",
    "Drained",
    "AppliedFilesAndOS",
    "UpdateExecuted",
    "RebootedNode",
    "Resumed",
    "Updated",
];

pub fn rebooting(story: &Story<'_>, content: &mut Content) {
    const NAME: &str = "rendered-worker-reboot";
    let (nodes, from) = story.controller.seen().mark();
    let boot = story.machine.boot_id();
    content.example += 1;
    story.healthy_update(NAME, content);
    assert_ne!(story.machine.boot_id(), boot);
    wait::until("Updated", wait::seconds(60), || {
        let seen = story.controller.seen();
        let last = seen.progress_from(from).last();
        last.is_some_and(|it| it.status("Updated") == "True")
    });
    let seen = story.controller.seen();
    let snapshots = seen.progress_from(from);
    // The first write is the status with the new name, no longer updated; the second is the spec.
    let is_named = |it: &ProgressSight| it.desired.contains(NAME);
    let named = snapshots.iter().position(is_named).expect("the new config");
    let snapshots = &snapshots[named..];
    assert_ne!(
        snapshots[0].status("Updated"),
        "True",
        "{}",
        seen.describe()
    );
    let alone = |it: &ProgressSight| it.desired.iter().eq([NAME]);
    let alone = snapshots
        .iter()
        .position(alone)
        .expect("the new config alone");
    assert!(alone <= 1, "{}", seen.describe());
    let snapshots = &snapshots[alone..];
    for snapshot in snapshots {
        assert_eq!(
            snapshot.desired.iter().collect::<Vec<_>>(),
            [NAME],
            "{snapshot:#?}"
        );
        assert_ne!(snapshot.status("NodeDegraded"), "True", "{snapshot:#?}");
    }
    let first = |kind: &str| snapshots.iter().position(|it| it.status(kind) == "True");
    let reached: Vec<_> = ORDER.map(|kind| (first(kind), kind)).into();
    println!("lab: openshift: first true: {reached:?}");
    assert!(
        reached.iter().all(|(at, _)| at.is_some()),
        "{}",
        seen.describe()
    );
    assert!(
        reached.is_sorted_by_key(|(at, _)| *at),
        "{}",
        seen.describe()
    );
    let rebooted = &snapshots[first("RebootedNode").unwrap()..];
    let lost = rebooted
        .iter()
        .find(|it| it.status("Updated") != "True" && it.status("RebootedNode") != "True");
    assert!(lost.is_none(), "{lost:#?}");
    let nodes = seen.nodes_from(nodes);
    let failed = nodes.iter().find(|it| it.reasons.contains("UpdateFailed"));
    assert!(failed.is_none(), "{failed:?}");
    let mut asked: Vec<_> = nodes.iter().map(|it| it.desired_drain.as_str()).collect();
    asked.retain(|it| it.ends_with(NAME));
    asked.dedup();
    assert_eq!(asked, [format!("drain-{NAME}"), format!("uncordon-{NAME}")]);
}

/// Creates a pod that a PodDisruptionBudget protects from eviction.
fn guard(story: &Story<'_>) {
    story.cluster.pod("guarded", NODE, &[]);
    story
        .cluster
        .wait_pod("guarded", "Running", wait::seconds(60));
    story.cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {maxUnavailable: 0, selector: {matchLabels: {app: guarded}}}\n",
    );
    story
        .cluster
        .wait_object("pdb", "guard", "its status", wait::seconds(60), |budget| {
            budget["status"]["observedGeneration"] == 1
        });
}

/// Offers a config that needs a drain.
fn another(story: &Story<'_>, content: &Content, name: &str) {
    let content = Content {
        example: content.example + 1,
        ..content.clone()
    };
    story.offer(name, &content);
}

/// Resets the desired config while the drain is blocked, often enough to use every name of a
/// request.
pub fn taken_back(story: &Story<'_>, content: &Content) {
    guard(story);
    let on = story.on();
    another(story, content, "rendered-worker-withdrawn");
    for round in 0..3 {
        story.controller.roll_out("rendered-worker-withdrawn");
        story
            .controller
            .wait_blocked("drain-rendered-worker-withdrawn");
        let (from, _) = story.controller.seen().mark();
        story.controller.give(NODE, &on);
        let asked = Instant::now();
        wait::until("the node to be schedulable", GIVEN_BACK, || {
            story
                .controller
                .seen()
                .last()
                .is_some_and(|it| !it.cordoned)
        });
        println!(
            "lab: figure: round {round}: schedulable {:.1?} after it was set back",
            asked.elapsed()
        );
        story
            .controller
            .wait_node("Done again", from, |it| it.is_on(&on) && !it.cordoned);
        print_requests(story, from);
    }
    assert_eq!(
        story.machine.read("/etc/example.conf"),
        format!("{}\n", content.example).as_bytes()
    );
}

fn print_requests(story: &Story<'_>, from: usize) {
    let seen = story.controller.seen();
    let mut asked: Vec<_> = seen
        .nodes_from(from)
        .iter()
        .map(|it| it.desired_drain.clone())
        .collect();
    asked.dedup();
    println!("lab: openshift: asked for {asked:?}");
}

/// An operator's cordon is kept, whichever request the controller completed last: the alternative
/// name, the plain one, or none because the update needed no drain.
pub fn operator_cordon(story: &Story<'_>, content: &mut Content) {
    for round in 0..3 {
        if round == 2 {
            content.sysctl ^= 1;
            story.healthy_update("rendered-worker-quiet", content);
        }
        let on = story.on();
        let (from, _) = story.controller.seen().mark();
        story.cluster.kubectl(&["cordon", NODE]);
        let last = story
            .controller
            .wait_node("cordoned", from, |it| it.cordoned);
        println!("lab: openshift: last applied: {}", last.last_applied_drain);
        another(story, content, "rendered-worker-withdrawn");
        story.controller.give(NODE, "rendered-worker-withdrawn");
        story
            .controller
            .wait_blocked("drain-rendered-worker-withdrawn");
        let (from, _) = story.controller.seen().mark();
        story.controller.give(NODE, &on);
        let done = "Done again, and nothing asked for";
        story.controller.wait_node(done, from, |it| {
            it.is_on(&on) && it.desired_drain == it.last_applied_drain
        });
        story.controller.wait_idle();
        print_requests(story, from);
        let seen = story.controller.seen();
        let lifted = seen.nodes_from(from).iter().find(|it| !it.cordoned);
        assert!(lifted.is_none(), "{lifted:?}");
        drop(seen);
        story.cluster.kubectl(&["uncordon", NODE]);
        story
            .controller
            .wait_node("schedulable", from, |it| !it.cordoned);
    }
}

/// Cancels an update with `machinist cancel`; its config stays the desired one.
pub fn cancelled(story: &Story<'_>, content: &Content) {
    let on = story.on();
    another(story, content, "rendered-worker-cancelled");
    story.controller.roll_out("rendered-worker-cancelled");
    story
        .controller
        .wait_blocked("drain-rendered-worker-cancelled");
    let (from, _) = story.controller.seen().mark();
    let asked = Instant::now();
    let output = story
        .cluster
        .machinist("laptop", &["cancel", NODE])
        .output()
        .unwrap();
    let answered = stalls::time_between(asked, Instant::now());
    println!(
        "lab: figure: cancel is answered after {answered:.1?}: {}",
        output_text(&output)
    );
    assert!(output.status.success(), "{}", output_text(&output));
    assert!(answered < REPORT_LIMIT, "{answered:?}");
    story
        .controller
        .wait_node("schedulable", from, |it| !it.cordoned);
    println!(
        "lab: figure: schedulable {:.1?} after the command",
        asked.elapsed()
    );
    story.controller.give(NODE, &on);
    story
        .controller
        .wait_node("Done again", from, |it| it.is_on(&on) && !it.cordoned);
}
