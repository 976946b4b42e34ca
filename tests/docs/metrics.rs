//! The queries of the dashboard and of the alert rules, against the tables of `docs/metrics.md`. The tests of both crates
//! with metrics compare these tables with what the program serves.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::reason::Reason;
use machinist_pool::HoldReason;
use machinist_update::phase::Phase;
use serde_json::Value;

use super::{page, rows};

/// Labels that Prometheus adds to each metric.
const SCRAPE_LABELS: [&str; 2] = ["instance", "job"];

/// Metrics of other programs, and of Prometheus itself.
const FOREIGN: [&str; 2] = ["up", "kube_node_status_condition"];

/// The operators of PromQL that list labels.
const LABEL_LISTS: [&str; 4] = ["by", "on", "without", "ignoring"];

/// A documented metric.
struct Metric {
    labels: BTreeSet<String>,
    meaning: String,
}

/// Every series by name; a histogram has three.
fn documented() -> BTreeMap<String, Metric> {
    let mut all = BTreeMap::new();
    for cells in rows(&page("docs/metrics.md")) {
        let [name, kind, labels, meaning] = &cells[..] else {
            continue;
        };
        if !name.starts_with("machinist_") {
            continue;
        }
        let is_histogram = kind == "histogram";
        let names = match is_histogram {
            true => ["bucket", "sum", "count"]
                .map(|part| format!("{name}_{part}"))
                .to_vec(),
            false => vec![name.clone()],
        };
        let labels = labels.split(", ").filter(|label| !label.is_empty());
        let labels = labels
            .chain(is_histogram.then_some("le"))
            .map(str::to_owned);
        let labels: BTreeSet<_> = labels.collect();
        for name in names {
            let (labels, meaning) = (labels.clone(), meaning.clone());
            all.insert(name, Metric { labels, meaning });
        }
    }
    all
}

/// Names of a query with the text after each; strings and durations are left out.
fn names(query: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let end = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |at| at + 2),
            '[' => rest.find(']').unwrap_or(rest.len()),
            _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (name, after) = rest.split_at(end);
        if first.is_alphabetic() || first == '_' {
            found.push((name, after));
        }
        rest = after;
    }
    found
}

/// The text in the brackets with which `text` begins.
fn bracketed(text: &str, open: char, close: char) -> &str {
    let text = text.trim_start();
    let inner = text
        .strip_prefix(open)
        .and_then(|text| text.split_once(close));
    inner.map_or("", |(inner, _)| inner)
}

/// Whether a label of a metric may have this value.
fn is_value(metric: &Metric, value: &str) -> bool {
    let reasons = Reason::ALL.iter().map(|it| it.as_str());
    let holds = HoldReason::ALL.iter().map(|it| it.as_str());
    let phases = Phase::ALL.iter().map(|it| it.name());
    let is_word = |word: &str| {
        metric
            .meaning
            .split([' ', ',', ':', ';', '.'])
            .any(|it| it == word)
    };
    reasons.chain(holds).chain(phases).any(|it| it == value) || is_word(value)
}

/// Compares one query with the documented metrics. Returns the metrics that it reads.
fn check(query: &str, known: &BTreeMap<String, Metric>) -> BTreeSet<String> {
    let found = names(query);
    let read = found.iter().map(|(name, _)| *name);
    let read: BTreeSet<_> = read.filter(|name| name.starts_with("machinist_")).collect();
    for name in &read {
        assert!(
            known.contains_key(*name),
            "{query}: there is no metric {name}"
        );
    }
    for (name, after) in &found {
        if LABEL_LISTS.contains(name) {
            for label in bracketed(after, '(', ')').split(',').map(str::trim) {
                let mut labels = read.iter().map(|name| &known[*name].labels);
                let is_known =
                    SCRAPE_LABELS.contains(&label) || labels.any(|it| it.contains(label));
                assert!(is_known, "{query}: no metric has the label {label}");
            }
        }
        if !read.contains(name) {
            continue;
        }
        let metric = &known[*name];
        for (label, compared) in names(bracketed(after, '{', '}')) {
            let is_known = SCRAPE_LABELS.contains(&label) || metric.labels.contains(label);
            assert!(is_known, "{query}: {name} has no label {label}");
            let value = compared.split('"').nth(1).unwrap();
            if value.starts_with('$') || SCRAPE_LABELS.contains(&label) {
                continue;
            }
            for value in value.split('|') {
                assert!(
                    is_value(metric, value),
                    "{query}: {label}={value:?} never occurs"
                );
            }
        }
    }
    read.into_iter().map(str::to_owned).collect()
}

#[test]
fn alert_rules_use_metrics_and_labels_that_exist() {
    let known = documented();
    let rules: Value = serde_saphyr::from_str(&page("packaging/monitoring/alerts.yaml")).unwrap();
    let mut alerts = Vec::new();
    with_field(&rules, "expr", &mut alerts);
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        let query = alert["expr"].as_str().unwrap();
        let read = check(query, &known);
        let foreign = names(query).iter().any(|(name, _)| FOREIGN.contains(name));
        assert!(foreign || !read.is_empty(), "{query} reads no metric");
    }
}

#[test]
fn every_alert_is_documented_with_the_section_of_its_remedy() {
    let rules: Value = serde_saphyr::from_str(&page("packaging/monitoring/alerts.yaml")).unwrap();
    let mut alerts = Vec::new();
    with_field(&rules, "alert", &mut alerts);
    let runbooks = alerts.iter().map(|alert| {
        let runbook = alert["annotations"]["runbook"].as_str().unwrap();
        let (file, section) = runbook.split_once('#').unwrap();
        let titles = page(file);
        let mut titles = titles.lines().filter_map(|line| line.split_once("# "));
        let anchor = |title: &str| title.to_lowercase().replace(',', "").replace(' ', "-");
        assert!(
            titles.any(|(_, title)| anchor(title) == section),
            "{runbook} does not exist"
        );
        (
            alert["alert"].as_str().unwrap().to_owned(),
            runbook.to_owned(),
        )
    });
    let runbooks: BTreeMap<_, _> = runbooks.collect();
    let text = page("docs/metrics.md");
    let documented = text
        .lines()
        .filter(|line| line.starts_with("| `Machinist"))
        .map(|line| {
            let name = line.split('`').nth(1).unwrap();
            let link = line.rsplit_once("](").unwrap().1;
            let link = link.split(')').next().unwrap();
            (name.to_owned(), format!("docs/{link}"))
        });
    assert_eq!(documented.collect::<BTreeMap<_, _>>(), runbooks);
}

/// The objects below `value` that have the field.
fn with_field<'v>(value: &'v Value, field: &str, found: &mut Vec<&'v Value>) {
    if value[field].is_string() {
        found.push(value);
    }
    let items = value.as_array().into_iter().flatten();
    let fields = value
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::values);
    for below in items.chain(fields) {
        with_field(below, field, found);
    }
}

#[test]
fn the_dashboard_uses_metrics_labels_and_variables_that_exist() {
    let known = documented();
    let dashboard: Value =
        serde_json::from_str(&page("packaging/monitoring/grafana-dashboard.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables: BTreeSet<_> = variables
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let mut targets = Vec::new();
    with_field(&dashboard["panels"], "expr", &mut targets);
    let mut shown = BTreeSet::new();
    for target in targets {
        let query = target["expr"].as_str().unwrap();
        let read = check(query, &known);
        assert!(!read.is_empty(), "{query} reads no metric");
        for variable in query.split('$').skip(1) {
            let name = variable
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap();
            let is_known =
                variables.contains(name) || name == "__range" || name == "__rate_interval";
            assert!(is_known, "{query}: no variable {name}");
        }
        let legend = target["legendFormat"].as_str().unwrap();
        for label in legend
            .split("{{")
            .skip(1)
            .map(|it| it.split("}}").next().unwrap())
        {
            let has = |name: &String| known[name].labels.contains(label);
            assert!(
                read.iter().any(has),
                "{query}: no label {label} for the legend"
            );
        }
        shown.extend(read);
    }
    let mut queries = Vec::new();
    with_field(&dashboard["templating"], "definition", &mut queries);
    for query in queries {
        let text = query["definition"].as_str().unwrap();
        assert_eq!(query["query"]["query"], text);
        let inner = text
            .strip_prefix("label_values(")
            .and_then(|it| it.strip_suffix(')'))
            .unwrap();
        let (series, label) = inner.rsplit_once(", ").unwrap();
        check(&format!("count by ({label}) ({series})"), &known);
    }
    let is_whole =
        |name: &&String| !name.ends_with("_seconds_sum") && !name.ends_with("_seconds_count");
    let missing = known.keys().filter(is_whole);
    let missing: Vec<_> = missing.filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
}

#[test]
fn queries_with_unknown_names_are_found() {
    let known = documented();
    let is_refused =
        |query: &str| std::panic::catch_unwind(|| check(query, &documented())).is_err();
    check(
        "sum by (pool) (machinist_controller_pool_grants{pool=~\"$pool\"})",
        &known,
    );
    for query in [
        "machinist_controller_pool_grant",
        "machinist_phase{fase=\"Idle\"}",
        "machinist_phase{phase=\"Idel\"}",
        "sum by (poool) (machinist_controller_pool_grants)",
        "machinist_controller_pool_held{reason=~\"CanaryFailed|CanaryFell\"}",
    ] {
        assert!(is_refused(query), "{query}");
    }
}
