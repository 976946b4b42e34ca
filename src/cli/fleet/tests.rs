use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    annotations,
    node::{NodeObjects, NodeReport},
};
use machinist_base::reason::Reason;
use machinist_kube_api::{
    NodeView, PoolView,
    keys::{annotation, condition, protocol},
};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// A node that an agent reported for a minute ago, in a pool that is being updated to `new`.
fn facts(pairs: &[(&str, &str)]) -> NodeObjects {
    let received = now() - SignedDuration::from_mins(1);
    let mut view = NodeView {
        name: "worker-1".to_owned(),
        annotations: pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        labels: BTreeMap::from([("role".to_owned(), "worker".to_owned())]),
        ..NodeView::default()
    };
    view.status.conditions = serde_json::from_value(json!([{
        "type": condition::READY, "status": "True", "reason": "Ok",
        "message": "all gates are open", "lastHeartbeatTime": received,
        "lastTransitionTime": received,
    }]))
    .unwrap();
    let spec = json!({"nodeSelector": {"matchLabels": {"role": "worker"}},
        "configuration": {"name": "new"}});
    let pool = PoolView {
        name: "worker".to_owned(),
        spec: serde_json::from_value(spec).unwrap(),
        ..PoolView::default()
    };
    NodeObjects {
        node: view,
        pools: vec![pool],
        ..NodeObjects::default()
    }
}

const ON_NEW: [(&str, &str); 3] = [
    (protocol::CURRENT_CONFIG, "new"),
    (protocol::DESIRED_CONFIG, "new"),
    (protocol::STATE, "Done"),
];

const ON_THE_WAY: [(&str, &str); 3] = [
    (protocol::CURRENT_CONFIG, "old"),
    (protocol::DESIRED_CONFIG, "new"),
    (protocol::STATE, "Working"),
];

fn findings_text(facts: NodeObjects) -> String {
    let found = super::explain::findings(&NodeReport::of(facts, now()), now());
    assert!(!found.is_empty());
    for one in &found {
        crate::cli::advised_commands::check(&one.advice);
    }
    let each = found
        .iter()
        .map(|one| format!("{:?} {} → {}\n", one.reason, one.message, one.advice));
    each.collect()
}

#[test]
fn explain_reports_an_updated_node_as_up_to_date() {
    assert_eq!(
        findings_text(facts(&ON_NEW)),
        "None worker-1 is up to date: new → \n"
    );
}

fn changed(mut facts: NodeObjects, change: impl FnOnce(&mut NodeObjects)) -> NodeObjects {
    change(&mut facts);
    facts
}

fn all_in(facts: NodeObjects, parts: &[&str]) {
    let message = findings_text(facts);
    for part in parts {
        assert!(message.contains(part), "{part}:\n{message}");
    }
}

const ON_OLD: [(&str, &str); 3] = [
    (protocol::CURRENT_CONFIG, "old"),
    (protocol::DESIRED_CONFIG, "old"),
    (protocol::STATE, "Done"),
];

#[test]
fn explain_names_why_a_pool_delays_a_node_and_the_remedy() {
    all_in(
        facts(&ON_OLD),
        &[
            "pool worker is rolling out new",
            "worker-1 is not updated yet",
        ],
    );
    let paused = changed(facts(&ON_OLD), |it| it.pools[0].spec.paused = true);
    all_in(
        paused,
        &[
            "pool worker is paused; new is not rolled out",
            "machinist resume --pool worker",
        ],
    );
    let asked = &[
        "has no desired config",
        "the controller that rolls out pool worker",
    ];
    all_in(facts(&[]), asked);
    let poolless = changed(facts(&[]), |it| it.pools.clear());
    all_in(
        poolless,
        &["has no desired config", "no pool selects the node"],
    );
}

#[test]
fn explain_reports_a_running_stalled_or_failed_update() {
    let why = "JobFailed: chronyd.service ended in failed";
    let degraded = [
        (protocol::CURRENT_CONFIG, "old"),
        (protocol::DESIRED_CONFIG, "new"),
        (protocol::STATE, "Degraded"),
        (protocol::REASON, why),
    ];
    let failed = &[
        "Some(JobFailed) worker-1 is Degraded",
        "fix the reported problem",
    ];
    all_in(facts(&degraded), failed);
    let by = "shop/db-0 (DrainBlockedByBudget), shop/web-1 (PodTerminating)";
    let blocked = [&ON_THE_WAY[..], &[(annotation::BLOCKED_BY, by)]].concat();
    let named = &[
        "Some(DrainBlockedByBudget) shop/db-0 blocks the update",
        "machinist.dev/force-drain=REASON",
        "Some(PodTerminating) shop/web-1",
    ];
    all_in(facts(&blocked), named);
    all_in(facts(&ON_THE_WAY), &["update to new in progress"]);
    for (why, advice) in [
        (
            "ConfigNotFound: MachineConfig new not found",
            "fix the reported problem",
        ),
        (
            "Cancelled: the update to new was cancelled by an operator",
            "machinist cancel --undo worker-1",
        ),
    ] {
        let message = [&ON_THE_WAY[..], &[(protocol::REASON, why)]].concat();
        let held_up = self::findings_text(facts(&message));
        assert!(
            held_up.contains(why) && held_up.contains(advice),
            "{held_up}"
        );
        assert!(!held_up.contains("in progress"), "{held_up}");
    }
}

#[test]
fn explain_reports_a_cordon_and_a_silent_agent() {
    let cordoned = changed(facts(&ON_NEW), |it| {
        it.node.spec.unschedulable = true;
    });
    let named = &[
        "was cordoned by another client",
        "machinist uncordon worker-1",
    ];
    all_in(cordoned, named);
    let silent = changed(facts(&ON_NEW), |it| {
        let long_ago = now() - SignedDuration::from_mins(22);
        it.node.status.conditions[0].last_heartbeat_time = Some(long_ago);
    });
    let named = &["has not reported for 22m", "spec.nodeName=worker-1"];
    all_in(silent, named);
    let unspoken = changed(facts(&ON_NEW), |it| it.node.status.conditions.clear());
    all_in(unspoken, &["no machinist agent has reported for worker-1"]);
}

#[test]
fn a_truncated_blocker_list_keeps_its_complete_entries() {
    let found = annotations::blocked_by(
        "shop/db-0 (DrainBlockedByBudget), Inhibitor backup (RebootInhibited), shop/we",
    );
    let named: Vec<_> = found
        .iter()
        .map(|one| (one.name.as_str(), one.reason))
        .collect();
    assert_eq!(
        named,
        [
            ("shop/db-0", Some(Reason::DrainBlockedByBudget)),
            ("Inhibitor backup", Some(Reason::RebootInhibited)),
        ]
    );
    assert!(annotations::blocked_by("").is_empty());
    assert_eq!(
        annotations::blocked_by("a/b (FromTomorrow)")[0].reason,
        None
    );
}

#[test]
fn a_rendered_config_name_is_shortened_to_its_digest_prefix() {
    let name = "rendered-worker-0123456789abcdef0123456789abcdef";
    assert_eq!(annotations::brief(name), "01234567");
    for whole in [
        "rendered-worker-new",
        "mine",
        "99-0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(annotations::brief(whole), whole);
    }
}
