//! Alert rules and queries of the dashboard: Prometheus accepts them.

use std::{fs, path::Path};

use serde::Serialize;
use serde_json::Value;

use crate::support::ask;

/// The content of a rule file, or else a query.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Case {
    Rules(String),
    Query(String),
}

fn mistakes(cases: &[Case]) -> Vec<Vec<String>> {
    ask("alerts", cases)
}

fn shipped(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monitoring");
    fs::read_to_string(dir.join(name)).unwrap()
}

/// The queries of the dashboard, with a value in place of each variable.
fn queries(value: &Value, found: &mut Vec<String>) {
    if let Some(query) = value["expr"].as_str() {
        let query = query.replace("$__rate_interval", "5m");
        found.push(query.replace("$__range", "1h"));
    }
    let items = value.as_array().into_iter().flatten();
    let fields = value.as_object().into_iter();
    let fields = fields.flat_map(serde_json::Map::values);
    items.chain(fields).for_each(|below| queries(below, found));
}

#[test]
fn prometheus_accepts_the_alert_rules() {
    let found = mistakes(&[Case::Rules(shipped("alerts.yaml"))]);
    assert_eq!(found, [[""; 0]]);
}

#[test]
fn prometheus_accepts_the_queries_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&shipped("grafana-dashboard.json")).unwrap();
    let mut all = Vec::new();
    queries(&dashboard["panels"], &mut all);
    assert!(all.len() > 20, "{all:?}");
    let cases: Vec<_> = all.iter().cloned().map(Case::Query).collect();
    for (query, found) in all.iter().zip(mistakes(&cases)) {
        assert_eq!(found, [""; 0], "{query}");
    }
}

#[test]
fn mistakes_in_rules_and_queries_are_reported() {
    let rules = shipped("alerts.yaml");
    let misspelled = rules.replace("annotations:", "anotations:");
    let invalid = rules.replace("machinist_failure == 1", "machinist_failure == ");
    let twice = rules.replace("name: machinist-controller", "name: machinist-agent");
    let cases = [misspelled, invalid, twice].map(Case::Rules);
    let query = Case::Query("sum by (machinist_ready".to_owned());
    let found = mistakes(&cases.into_iter().chain([query]).collect::<Vec<_>>());
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|it| !it.is_empty()), "{found:?}");
}
