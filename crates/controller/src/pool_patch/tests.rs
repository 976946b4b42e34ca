use std::collections::BTreeMap;

use super::*;
use machinist_pool::{
    GrantKind, GrantOutcome, PoolGrants, RebootKind, RolloutEdge, RolloutStates, UpdateTimes,
};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn grant(pool: &str, node: &str) -> Grant {
    Grant {
        id: format!("{pool}-{node}"),
        kind: GrantKind::Config,
        pool: pool.to_owned(),
        node: node.to_owned(),
        uid: String::new(),
        target: "new".to_owned(),
        time: now() - jiff::SignedDuration::from_mins(5),
        acknowledged: true,
        failed: false,
        rollback: false,
        rest: BTreeMap::new(),
    }
}

fn pool(name: &str) -> PoolView {
    PoolView {
        name: name.to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        has_annotations: true,
        ..PoolView::default()
    }
}

fn edge(pool: &str, result: &str) -> RolloutEdge {
    RolloutEdge {
        pool: pool.to_owned(),
        target: "new".to_owned(),
        result: result.to_owned(),
        skipped: Vec::new(),
    }
}

fn write(begins: Vec<RolloutEdge>, freed: Vec<(Grant, Option<GrantEnd>)>) -> PoolWrite {
    PoolWrite {
        pool: "master".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        grants: PoolGrants::default(),
        rollouts: Some(RolloutStates::default()),
        freed,
        found: Vec::new(),
        is_rebuild: false,
        begins,
        ends: Vec::new(),
    }
}

fn done(pool: &str, node: &str) -> (Grant, Option<GrantEnd>) {
    let grant = grant(pool, node);
    let end = grant.end(GrantOutcome::Done, "", now());
    (grant, Some(end))
}

#[test]
fn grants_rollouts_and_history_are_one_patch_of_the_version_that_was_decided_on() {
    let patch = record_patch(
        &pool("master"),
        &write(vec![edge("master", "")], vec![]),
        now(),
    );
    let paths: Vec<_> = patch
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["op"].as_str().unwrap(), it["path"].as_str().unwrap()))
        .collect();
    assert_eq!(
        paths,
        [
            ("test", "/metadata/uid"),
            ("test", "/metadata/resourceVersion"),
            ("add", "/metadata/annotations/machinist.dev~1grants"),
            ("add", "/metadata/annotations/machinist.dev~1rollout"),
            (
                "add",
                "/metadata/annotations/machinist.dev~1rollout-history"
            ),
        ]
    );
    let nothing_new = record_patch(&pool("master"), &write(vec![], vec![]), now());
    assert_eq!(nothing_new.as_array().unwrap().len(), 4);
}

#[test]
fn the_history_counts_the_grants_of_its_own_pool() {
    let begun = write(vec![edge("master", ""), edge("arbiter", "")], vec![]);
    let mut master = pool("master");
    let history = updated_history(&master, &begun, now()).unwrap();
    let text = history.to_annotation();
    let key = pool_annotation::HISTORY.to_owned();
    master.annotations.insert(key, text);
    let freed = write(vec![], vec![done("master", "a"), done("arbiter", "b")]);
    let history = updated_history(&master, &freed, now()).unwrap();
    let worst = &history.rollouts[0].worst;
    assert_eq!(worst.len(), 1);
    assert_eq!((worst[0].node.as_str(), worst[0].seconds), ("a", 300));
    assert_eq!(
        other_pools(&freed).into_iter().collect::<Vec<_>>(),
        ["arbiter"]
    );
    assert!(history_patch(&pool("arbiter"), &begun, now()).is_some());
}

#[test]
fn phases_and_blocked_time_of_an_end_mark_are_in_the_history() {
    let begun = write(vec![edge("master", "")], vec![]);
    let mut master = pool("master");
    let text = updated_history(&master, &begun, now())
        .unwrap()
        .to_annotation();
    let key = pool_annotation::HISTORY.to_owned();
    master.annotations.insert(key, text);
    let (grant, end) = done("master", "a");
    let times = UpdateTimes {
        phases: [("Draining".to_owned(), 250), ("Committing".to_owned(), 2)].into(),
        blocked: 240,
    };
    let end = end.map(|end| GrantEnd {
        times: Some(times),
        ..end
    });
    let history = updated_history(&master, &write(vec![], vec![(grant, end)]), now()).unwrap();
    let rollout = &history.rollouts[0];
    let names: Vec<_> = rollout.phases.keys().map(String::as_str).collect();
    assert_eq!(names, ["Committing", "Draining"]);
    // Of 300 seconds, 240 were blocked.
    let expected = history
        .expected_update_time(RebootKind::None)
        .unwrap()
        .as_secs();
    assert!((60..120).contains(&expected), "{expected}");
    assert_eq!(rollout.worst[0].seconds, 300);
}

#[test]
fn a_released_grant_is_no_update() {
    let freed = write(vec![], vec![(grant("master", "a"), None)]);
    assert_eq!(updated_history(&pool("master"), &freed, now()), None);
    assert!(other_pools(&freed).is_empty());
}
