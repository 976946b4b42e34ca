//! Tests the counts and conditions of a pool.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{super::*, cordoned, node, of_role, row, target, with};
use machinist_kube_api::{
    NodeView,
    keys::{annotation, pool_annotation, protocol},
};

#[test]
fn pool_row_of_a_half_updated_pool_matches_the_worked_example() {
    let (old, new) = ("rendered-worker-0a", "rendered-worker-1b");
    let mut pool = target(new);
    let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
    pool.created = Some(now - SignedDuration::from_hours(22));
    let nodes = [
        node("worker-1", new, new, "Done"),
        cordoned(node("worker-2", old, new, "Working")),
    ];
    let cells = row(&pool, &nodes).cells(now);
    let expected = [
        "worker", old, "False", "True", "False", "2", "1", "1", "0", "22h",
    ];
    assert_eq!(cells, expected);
    let text = table(&[row(&pool, &nodes)], now);
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "NAME     CONFIG               UPDATED   UPDATING   DEGRADED   MACHINECOUNT   \
         READYMACHINECOUNT   UPDATEDMACHINECOUNT   DEGRADEDMACHINECOUNT   AGE"
    );
    assert!(lines.next().unwrap().starts_with(
        "worker   rendered-worker-0a   False     True       False      2              1"
    ));
}

/// A description, the pool's nodes, the expected counts (machines, ready, updated, unavailable, degraded), and the
/// expected Updated, Updating, and Degraded. The pool's target is `c1`.
type Situation = (&'static str, Vec<NodeView>, [u32; 5], (bool, bool, bool));

fn situations() -> Vec<Situation> {
    let done = |name: &str| node(name, "c1", "c1", "Done");
    let old = |name: &str| node(name, "c0", "c0", "Done");
    let bad = |name: &str, current: &str, state: &str| node(name, current, "c1", state);
    let mut unmanaged = done("n");
    unmanaged.annotations.remove(protocol::CURRENT_CONFIG);
    let down = || with(done("b"), &[("Ready", "Unknown")]);
    let (t, f) = (true, false);
    let done_and = |other: NodeView| vec![done("a"), other];
    vec![
        ("no node", vec![], [0, 0, 0, 0, 0], (t, f, f)),
        ("all done", done_and(done("b")), [2, 2, 2, 0, 0], (t, f, f)),
        (
            "no node has started",
            vec![old("a"), old("b")],
            [2, 0, 0, 0, 0],
            (f, t, f),
        ),
        (
            "one works",
            done_and(bad("b", "c0", "Working")),
            [2, 1, 1, 1, 0],
            (f, t, f),
        ),
        (
            "one failed",
            done_and(bad("b", "c0", "Degraded")),
            [2, 1, 1, 0, 1],
            (f, t, t),
        ),
        (
            "one cannot",
            done_and(bad("b", "c0", "Unreconcilable")),
            [2, 1, 1, 0, 1],
            (f, t, t),
        ),
        (
            "one drifted",
            done_and(bad("b", "c1", "Degraded")),
            [2, 1, 1, 1, 1],
            (f, t, t),
        ),
        (
            "a cordon",
            done_and(cordoned(done("b"))),
            [2, 1, 2, 1, 0],
            (f, t, f),
        ),
        ("one is down", done_and(down()), [2, 1, 2, 1, 0], (f, t, f)),
        (
            "not in any pool",
            done_and(unmanaged),
            [1, 1, 1, 0, 0],
            (t, f, f),
        ),
    ]
}

#[test]
fn pool_counts_and_conditions_are_derived_from_the_nodes() {
    for (what, nodes, counts, (updated, updating, degraded)) in situations() {
        let pool = target("c1");
        let found = row(&pool, &nodes);
        let split = split(std::slice::from_ref(&pool), &nodes);
        let [machines, ready, up, unavailable, bad] = counts;
        let expected = MachineCounts {
            machines,
            ready,
            updated: up,
            unavailable,
            degraded: bad,
        };
        assert_eq!(MachineCounts::of(&split.pools[0]), expected, "{what}");
        assert_eq!(found.updated, Some(updated), "{what}");
        assert_eq!(found.updating, Some(updating), "{what}");
        assert_eq!(found.degraded, Some(degraded), "{what}");
    }
}

#[test]
fn a_paused_pool_is_not_updating_and_reports_pending_nodes() {
    let mut pool = target("c1");
    pool.spec.paused = true;
    let nodes = [node("a", "c0", "c0", "Done")];
    let split = split(std::slice::from_ref(&pool), &nodes);
    let members = &split.pools[0];
    let all = conditions(members, &MachineCounts::of(members));
    let of = |kind| all.iter().find(|it| it.kind == kind).unwrap();
    assert!(!of("Updated").status && !of("Updating").status);
    assert_eq!(of("Updating").reason, "Paused");
    assert!(of("Updating").message.contains("c1"));
}

#[test]
fn a_pinned_pool_is_updating_only_until_every_node_is_on_the_pin() {
    let mut pool = target("c1");
    pool.annotations
        .insert(pool_annotation::PINNED_CONFIG.to_owned(), "c0".to_owned());
    for (node, is_updating, reason) in [
        (node("a", "c1", "c0", "Working"), true, "NodesUpdating"),
        (node("a", "c0", "c0", "Done"), false, "Pinned"),
    ] {
        let nodes = [node];
        let split = split(std::slice::from_ref(&pool), &nodes);
        let members = &split.pools[0];
        let all = conditions(members, &MachineCounts::of(members));
        let updating = all.iter().find(|it| it.kind == "Updating").unwrap();
        assert_eq!((updating.status, updating.reason), (is_updating, reason));
    }
}

#[test]
fn an_updating_pool_names_the_nodes_whose_drain_is_blocked_with_their_blockers() {
    let blocked = |name: &str| {
        let mut node = cordoned(node(name, "c0", "c1", "Working"));
        let blockers = format!("shop/{name} (DrainBlocked)");
        let blockers = (annotation::BLOCKED_BY.to_owned(), blockers);
        node.annotations.extend([blockers]);
        node
    };
    let pool = target("c1");
    let nodes = [blocked("b"), blocked("a"), node("c", "c0", "c0", "Done")];
    let split = split(std::slice::from_ref(&pool), &nodes);
    let members = &split.pools[0];
    let all = conditions(members, &MachineCounts::of(members));
    let updating = all.iter().find(|it| it.kind == "Updating").unwrap();
    assert_eq!(
        updating.message,
        "0 of 3 nodes are on c1; drain blocked: a by shop/a (DrainBlocked), b by shop/b (DrainBlocked)"
    );
}

#[test]
fn a_degraded_pool_names_each_degraded_node_and_render_failures() {
    let mut pool = target("c1");
    let failed = |name: &str| {
        let mut node = node(name, "c0", "c1", "Degraded");
        let why = (protocol::REASON.to_owned(), "JobFailed: x".to_owned());
        node.annotations.extend([why]);
        node
    };
    let nodes = [failed("b"), failed("a"), node("c", "c1", "c1", "Done")];
    {
        let split = split(std::slice::from_ref(&pool), &nodes);
        let members = &split.pools[0];
        let all = conditions(members, &MachineCounts::of(members));
        let named = all.iter().find(|it| it.kind == "NodeDegraded").unwrap();
        assert_eq!(named.message, "a: JobFailed: x; b: JobFailed: x");
        assert_eq!(all.last().unwrap().reason, "NodeDegraded");
    }
    pool.status.conditions = serde_json::from_value(json!([
        {"type": "RenderDegraded", "status": "True", "message": "20-x: bad"}
    ]))
    .unwrap();
    let split = split(std::slice::from_ref(&pool), &nodes[2..]);
    let members = &split.pools[0];
    let all = conditions(members, &MachineCounts::of(members));
    let degraded = all.iter().find(|it| it.kind == "Degraded").unwrap();
    assert!(degraded.status);
    assert_eq!(
        (degraded.reason, degraded.message.as_str()),
        ("RenderDegraded", "20-x: bad")
    );
}

#[test]
fn a_pool_without_a_renderer_is_updated_when_its_nodes_are_on_their_config() {
    let pool = of_role("worker");
    let nodes = [
        node("a", "mine", "mine", "Done"),
        node("b", "mine", "mine", "Done"),
    ];
    let found = row(&pool, &nodes);
    assert_eq!((found.updated, found.config.as_str()), (Some(true), "mine"));
    let nodes = [
        node("a", "mine", "mine", "Done"),
        node("b", "mine", "next", "Working"),
    ];
    let found = row(&pool, &nodes);
    assert_eq!(
        (found.updated, found.config.as_str()),
        (Some(false), "mine")
    );
}

#[test]
fn pool_status_written_by_a_controller_is_shown_unchanged() {
    let mut pool = target("c1");
    assert_eq!(PoolRow::from_status(&pool), None);
    pool.status = serde_json::from_value(json!({
        "configuration": {"name": "c0"}, "machineCount": 3, "readyMachineCount": 2,
        "conditions": [{"type": "Updated", "status": "False", "lastTransitionTime": null},
            {"type": "Updating", "status": "True"}],
    }))
    .unwrap();
    let row = PoolRow::from_status(&pool).unwrap();
    assert_eq!((row.updated, row.updating), (Some(false), Some(true)));
    let cells = row.cells(Timestamp::UNIX_EPOCH);
    let expected = [
        "worker",
        "c0",
        "False",
        "True",
        "",
        "3",
        "2",
        "",
        "",
        "<unknown>",
    ];
    assert_eq!(cells, expected);
}

#[test]
fn ages_are_formatted_as_by_kubectl() {
    let from = Timestamp::UNIX_EPOCH;
    for (seconds, text) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (28_740, "7h59m"),
        (79_200, "22h"),
        (172_800, "2d"),
        (190_800, "2d5h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ] {
        let to = from + SignedDuration::from_secs(seconds);
        assert_eq!(age(from, to), text, "{seconds}");
    }
    assert_eq!(age(from + SignedDuration::from_secs(5), from), "0s");
}
