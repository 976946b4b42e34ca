//! Tests which nodes get and lose the taint of the update.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::{
    super::*,
    cordoned,
    model::{NEW, OLD, start},
    rollout::{PoolChange, annotate, decided, plain_pool, worker, worker_in},
};
use machinist_kube_api::{
    NodeView, Taint,
    keys::{pool_annotation, taint},
};

#[test]
fn the_taint_follows_the_rollout() {
    let tainted = |mut node: NodeView| {
        node.spec.taints = vec![Taint {
            key: taint::UPDATE_IN_PROGRESS.to_owned(),
            effect: "PreferNoSchedule".to_owned(),
            rest: BTreeMap::new(),
        }];
        node
    };
    let done = || worker_in("a", NEW, NEW, "Done");
    let stopped: PoolChange =
        |pool| annotate(pool, pool_annotation::PINNED_CONFIG, "rendered-gone");
    let paused: PoolChange = |pool| pool.spec.paused = true;
    let plain: PoolChange = |_| {};
    let mut stray = tainted(worker("a"));
    stray.labels.clear();
    for (what, change, node, expected) in [
        (
            "M34: off the target",
            plain,
            cordoned(worker("a")),
            Some(NodeChange::AddTaint),
        ),
        ("has it", plain, cordoned(tainted(worker("a"))), None),
        (
            "on the target",
            plain,
            tainted(done()),
            Some(NodeChange::RemoveTaint),
        ),
        (
            "stopped",
            stopped,
            tainted(worker("a")),
            Some(NodeChange::RemoveTaint),
        ),
        ("paused", paused, tainted(worker("a")), None),
        (
            "left its pools",
            plain,
            stray,
            Some(NodeChange::RemoveTaint),
        ),
    ] {
        let mut pool = plain_pool("worker", 1);
        change(&mut pool);
        let (pools, nodes) = ([pool], [node]);
        let decision = decided(&pools, &nodes, |inputs| {
            inputs.taint_patches = 50;
            inputs.configs = Some([NEW, OLD].into());
        });
        let found = decision.actions.iter().find_map(|action| match action {
            Action::PatchNode(patch) => Some(patch.change.clone()),
            _ => None,
        });
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn taints_are_patched_no_faster_than_the_inputs_allow() {
    let pools = [plain_pool("worker", 1)];
    let nodes: Vec<_> = (0..90).map(|at| worker(&format!("n{at:02}"))).collect();
    let decision = decided(&pools, &nodes, |inputs| inputs.taint_patches = 50);
    let patches = decision
        .actions
        .iter()
        .filter(|it| matches!(it, Action::PatchNode(_)));
    assert_eq!(patches.count(), 50);
    assert_eq!(
        decision.recheck,
        Some(start() + SignedDuration::from_secs(1))
    );
}
