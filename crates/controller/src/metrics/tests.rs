use std::collections::BTreeSet;

use super::*;
use crate::pool_report::RolloutProgress;
use machinist_pool::{Grant, GrantKind, MachineCounts, PoolGrants, RolloutEdge};

fn report(pending: usize, hold: Option<HoldReason>) -> PoolReport {
    PoolReport {
        pool: "worker".to_owned(),
        counts: MachineCounts {
            machines: 3,
            updated: 1,
            ..MachineCounts::default()
        },
        ambiguous: 1,
        hold,
        is_held: hold.is_some(),
        progress: RolloutProgress {
            target: Some("rendered-worker-1".to_owned()),
            pending,
            grants: vec![("g1".to_owned(), false)],
        },
    }
}

fn grant(node: &str) -> Grant {
    Grant {
        id: format!("of {node}"),
        kind: GrantKind::Config,
        pool: "worker".to_owned(),
        node: node.to_owned(),
        uid: "first".to_owned(),
        target: "rendered-worker-1".to_owned(),
        time: jiff::Timestamp::UNIX_EPOCH,
        acknowledged: true,
        failed: false,
        rollback: false,
        rest: std::collections::BTreeMap::new(),
    }
}

/// A write that ends one grant per outcome.
fn write(outcomes: &[GrantOutcome]) -> PoolWrite {
    let time: jiff::Timestamp = "1970-01-01T00:01:30Z".parse().unwrap();
    let ended = outcomes.iter().enumerate().map(|(at, outcome)| {
        let grant = grant(&format!("secret-node-{at}"));
        let end = grant.end(outcome.clone(), "", time);
        (grant, Some(end))
    });
    PoolWrite {
        pool: "worker".to_owned(),
        uid: String::new(),
        resource_version: String::new(),
        grants: PoolGrants::default(),
        rollouts: None,
        freed: ended.chain([(grant("secret-node"), None)]).collect(),
        found: Vec::new(),
        is_rebuild: false,
        begins: Vec::new(),
        ends: vec![RolloutEdge {
            pool: "worker".to_owned(),
            target: "rendered-worker-0".to_owned(),
            result: "Superseded".to_owned(),
            skipped: Vec::new(),
        }],
    }
}

fn value(metrics: &ControllerMetrics, name: &str) -> Option<String> {
    let page = metrics.text().unwrap();
    let line = format!("machinist_controller_{name} ");
    let found = page.lines().find_map(|it| it.strip_prefix(&line));
    found.map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_shows_pools_and_counters_remain() {
    let metrics = ControllerMetrics::new();
    assert_eq!(value(&metrics, "is_leader").as_deref(), Some("0"));
    metrics.set_leader(true);
    metrics.publish(vec![report(2, Some(HoldReason::CanaryInProgress))]);
    metrics.wrote(&write(&[
        GrantOutcome::Done,
        GrantOutcome::Unknown("x".to_owned()),
    ]));
    let shown = [
        ("is_leader", "1"),
        ("pool_machines{pool=\"worker\",state=\"total\"}", "3"),
        ("pool_machines{pool=\"worker\",state=\"updated\"}", "1"),
        ("pool_grants{pool=\"worker\"}", "1"),
        ("pool_ambiguous_nodes{pool=\"worker\"}", "1"),
        (
            "pool_held{pool=\"worker\",reason=\"CanaryInProgress\"}",
            "1",
        ),
        (
            "pool_target_info{pool=\"worker\",config=\"rendered-worker-1\"}",
            "1",
        ),
        ("rollouts_total{pool=\"worker\",result=\"Superseded\"}", "1"),
        ("rollouts_total{pool=\"worker\",result=\"Completed\"}", "0"),
        ("grants_total{pool=\"worker\",outcome=\"Done\"}", "1"),
        ("grants_total{pool=\"worker\",outcome=\"Failed\"}", "0"),
        ("grants_total{pool=\"worker\",outcome=\"Unknown\"}", "1"),
        ("grants_total{pool=\"worker\",outcome=\"Released\"}", "1"),
        ("node_update_duration_seconds_count{pool=\"worker\"}", "1"),
        ("node_update_duration_seconds_sum{pool=\"worker\"}", "90.0"),
        ("render_failures_total{pool=\"worker\"}", "0"),
    ];
    for (name, expected) in shown {
        assert_eq!(value(&metrics, name).as_deref(), Some(expected), "{name}");
    }
    let page = metrics.text().unwrap();
    assert!(
        !page.contains("secret-node"),
        "no label names a node:\n{page}"
    );
    let mut proceeding = report(2, Some(HoldReason::CanaryInProgress));
    proceeding.is_held = false;
    metrics.publish(vec![proceeding]);
    assert_eq!(
        value(
            &metrics,
            "pool_held{pool=\"worker\",reason=\"CanaryInProgress\"}"
        ),
        None
    );
    metrics.set_leader(false);
    assert_eq!(value(&metrics, "pool_grants{pool=\"worker\"}"), None);
    let total = value(&metrics, "grants_total{pool=\"worker\",outcome=\"Done\"}");
    assert_eq!(total.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_stuck_from_its_last_step_on_and_not_while_it_waits_by_request() {
    let metrics = ControllerMetrics::new();
    let stuck = || value(&metrics, "pool_stuck_seconds{pool=\"worker\"}").unwrap();
    let wait = || tokio::time::advance(Duration::from_secs(100));
    metrics.publish(vec![report(2, None)]);
    wait().await;
    metrics.publish(vec![report(2, Some(HoldReason::NodesUnavailable))]);
    wait().await;
    assert_eq!(stuck(), "200");
    metrics.publish(vec![report(1, None)]);
    assert_eq!(stuck(), "0", "one more node is updated");
    wait().await;
    metrics.publish(vec![report(1, Some(HoldReason::Paused))]);
    assert_eq!(stuck(), "0");
    wait().await;
    metrics.publish(vec![report(1, None)]);
    assert_eq!(stuck(), "0", "the pause does not count");
    wait().await;
    assert_eq!(stuck(), "100");
    metrics.publish(vec![report(0, None)]);
    wait().await;
    assert_eq!(stuck(), "0", "no node is left");
}

#[test]
fn documented_metrics_match_the_code() {
    let metrics = ControllerMetrics::new();
    metrics.publish(Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    metrics.publish(vec![report(1, Some(HoldReason::Paused))]);
    metrics.notified(NotificationResult::Delivered);
    metrics.requested("get", "nodes", Some(200));
    let text = metrics.text().unwrap();
    let mut served = BTreeSet::new();
    let (mut described, mut kind) = ("", "");
    for line in text.lines() {
        if let Some(row) = line.strip_prefix("# TYPE ") {
            (described, kind) = row.rsplit_once(' ').unwrap();
        } else if !line.starts_with('#') {
            let (name, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.trim_end_matches('}').split("\",");
            let labels = labels.filter_map(|one| Some(one.split_once('=')?.0));
            let labels: Vec<_> = labels.filter(|label| *label != "le").collect();
            let name = if kind == "histogram" { described } else { name };
            served.insert(format!("{name} | {kind} | {}", labels.join(", ")));
        }
    }
    let documented: BTreeSet<_> = include_str!("../../../../docs/metrics.md")
        .lines()
        .filter(|line| line.starts_with("| `machinist_controller_"))
        .map(|row| {
            let cells = row.split('|').map(|cell| cell.trim().replace('`', ""));
            let cells: Vec<_> = cells.collect();
            format!("{} | {} | {}", cells[1], cells[2], cells[3])
        })
        .collect();
    assert_eq!(documented, served);
}
