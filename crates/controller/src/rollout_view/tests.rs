use std::collections::BTreeMap;

use super::*;

fn node(name: &str, version: &str) -> NodeView {
    NodeView {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        resource_version: version.to_owned(),
        ..NodeView::default()
    }
}

fn pool(name: &str, uid: &str, version: &str, grants: Option<&str>) -> PoolView {
    let grants = grants.map(|text| (pool_annotation::GRANTS.to_owned(), text.to_owned()));
    PoolView {
        name: name.to_owned(),
        uid: uid.to_owned(),
        resource_version: version.to_owned(),
        annotations: grants.into_iter().collect(),
        ..PoolView::default()
    }
}

fn changes<V>(changes: Vec<(&str, Option<V>)>) -> ReportedChanges<V> {
    let changes = changes.into_iter().map(|(name, it)| (name.to_owned(), it));
    ReportedChanges {
        listed: None,
        changes: changes.collect(),
    }
}

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn read(view: &RolloutView, pool: &str) -> PoolRead {
    view.inputs(now()).reads[pool]
}

const NO_GRANTS: &str = "{\"grants\": []}";

#[test]
fn an_event_that_is_older_than_a_response_changes_nothing() {
    let mut view = RolloutView::default();
    view.put_node("a", Some(node("a", "9")));
    view.take_nodes(changes(vec![("a", Some(node("a", "8")))]));
    assert_eq!(view.node("a").unwrap().resource_version, "9");
    view.put_pool("worker", Some(pool("worker", "1", "9", None)));
    view.take_pools(changes(vec![(
        "worker",
        Some(pool("worker", "1", "8", None)),
    )]));
    assert_eq!(view.pool("worker").unwrap().resource_version, "9");
}

#[test]
fn a_list_replaces_newer_versions() {
    let mut view = RolloutView::default();
    view.put_node("a", Some(node("a", "9")));
    view.put_node("b", Some(node("b", "9")));
    view.take_nodes(ReportedChanges {
        listed: Some(vec![node("a", "8")]),
        changes: BTreeMap::new(),
    });
    assert_eq!(view.nodes(), [node("a", "8")]);
}

#[test]
fn a_changed_node_needs_pools_that_are_read_again() {
    let mut view = RolloutView::default();
    view.put_node("a", Some(node("a", "1")));
    view.read_pool("worker", Some(pool("worker", "1", "1", None)));
    assert!(read(&view, "worker").is_confirmed);
    view.put_node("a", Some(node("a", "1")));
    assert!(read(&view, "worker").is_confirmed, "nothing has changed");
    view.put_node("a", Some(node("a", "2")));
    assert!(!read(&view, "worker").is_confirmed);
}

#[test]
fn reads_of_nodes_are_forgotten_when_a_pool_changes() {
    let mut view = RolloutView::default();
    view.put_pool("worker", Some(pool("worker", "1", "1", None)));
    view.read_node("gone", None);
    view.read_pool("worker", Some(pool("worker", "1", "1", None)));
    assert_eq!(view.inputs(now()).node_reads["gone"], NodeRead::Absent);
    view.read_pool("worker", Some(pool("worker", "1", "2", None)));
    assert!(view.inputs(now()).node_reads.is_empty());
}

#[test]
fn nodes_are_listed_only_for_pools_as_they_were_then() {
    let mut view = RolloutView::default();
    view.put_pool("worker", Some(pool("worker", "1", "1", None)));
    view.listed_nodes(vec![node("a", "1")]);
    assert!(read(&view, "worker").is_listed);
    view.put_pool("worker", Some(pool("worker", "1", "2", None)));
    assert!(!read(&view, "worker").is_listed);
}

#[test]
fn a_pool_that_lost_its_record_is_rebuilt_again() {
    let rebuilt = || {
        let mut view = RolloutView::default();
        let written = pool("worker", "1", "2", Some(NO_GRANTS));
        view.wrote_pool(written, true, None);
        assert!(read(&view, "worker").is_rebuilt);
        view
    };
    let mut view = rebuilt();
    view.put_pool("worker", Some(pool("worker", "1", "3", Some(NO_GRANTS))));
    assert!(read(&view, "worker").is_rebuilt);
    view.put_pool("worker", Some(pool("worker", "1", "4", None)));
    view.put_pool("worker", Some(pool("worker", "1", "5", Some(NO_GRANTS))));
    assert!(!read(&view, "worker").is_rebuilt, "it was missing");
    let mut view = rebuilt();
    view.put_pool("worker", Some(pool("worker", "2", "6", Some(NO_GRANTS))));
    assert!(!read(&view, "worker").is_rebuilt, "another pool");
}

#[test]
fn grants_that_were_not_kept_are_tried_again_after_a_while() {
    let mut view = RolloutView::default();
    let written = pool("worker", "1", "2", None);
    view.wrote_pool(written, false, Some(now()));
    assert!(read(&view, "worker").is_not_kept);
    let later = now() + NOT_KEPT_RETRY;
    assert!(!view.inputs(later).reads["worker"].is_not_kept);
    assert_eq!(
        view.next_retry(now()),
        Some(later),
        "nothing else wakes the leader then"
    );
    assert_eq!(view.next_retry(later), None);
    view.wrote_pool(pool("worker", "1", "3", None), false, None);
    assert_eq!(view.next_retry(now()), None);
}
