//! Compares the tables of `docs/policies.md`, row by row, with plans of the program.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use super::{
    examples::{manifest, plan},
    home, page, rows,
};

struct Row {
    path: String,
    action: String,
    units: Vec<String>,
    /// All of the units, instead of the first that exists.
    all: bool,
}

fn table() -> Vec<Row> {
    let rows = rows(&page("docs/policies.md")).into_iter();
    let rows = rows.filter(|cells| cells.len() == 3 && cells[0].starts_with('/'));
    rows.map(|cells| Row {
        path: cells[0].clone(),
        action: cells[1].clone(),
        units: cells[2]
            .split([',', ' '])
            .filter(|word| word.contains('.'))
            .map(str::to_owned)
            .collect(),
        all: cells[2].contains(" and "),
    })
    .collect()
}

/// Plans a new file below the row's path on a root that has these units.
fn judged(row: &Row, units: &[String]) -> Value {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("usr/lib/systemd/system");
    fs::create_dir_all(&dir).unwrap();
    for unit in units {
        let text = "[Service]\nExecStart=/bin/true\nExecReload=/bin/true\n";
        fs::write(dir.join(unit), text).unwrap();
    }
    let below = format!("{}/x.conf", row.path);
    let answer = plan(root.path(), &manifest(&[(&below, "x")]));
    let plan: Value = serde_json::from_str(&answer).unwrap();
    plan["changes"][0].clone()
}

fn expected(row: &Row, units: &[String]) -> BTreeSet<String> {
    let mut actions = BTreeSet::new();
    for word in row.action.split(", ") {
        match word {
            "nothing" | "runs again" => {}
            "drain" => drop(actions.insert("Drain".to_owned())),
            "daemon-reload" => drop(actions.insert("DaemonReload".to_owned())),
            "reload" => actions.extend(units.iter().map(|unit| format!("Reload {unit}"))),
            "restart" => actions.extend(units.iter().map(|unit| format!("Restart {unit}"))),
            other => panic!("{}: {other:?} is not a known action", row.path),
        }
    }
    actions
}

#[test]
fn documented_policy_rows_match_the_plan() {
    let rows = table();
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for row in rows {
        let cases: Vec<Vec<String>> = match row.all {
            true => vec![row.units.clone()],
            // Each unit alone: the action uses whichever the machine has.
            false => row.units.iter().map(|unit| vec![unit.clone()]).collect(),
        };
        let cases = if cases.is_empty() {
            vec![Vec::new()]
        } else {
            cases
        };
        for units in cases {
            let change = judged(&row, &units);
            assert_eq!(
                change["policy"],
                format!("builtin:{}", row.path),
                "{change}"
            );
            let actions: BTreeSet<String> = change["actions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|action| action.as_str().unwrap().to_owned())
                .collect();
            assert_eq!(actions, expected(&row, &units), "{}: {change}", row.path);
        }
    }
}

#[test]
fn every_path_with_a_policy_is_documented() {
    let source = fs::read_to_string(home().join("crates/plan/src/policy/builtin.rs")).unwrap();
    let rules = source.split("#[cfg(test)]").next().unwrap();
    let code = rules
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect();
    let named: BTreeSet<_> = code
        .split('"')
        .filter(|text| text.starts_with('/') && text.len() > 1 && !text.contains([' ', '{']))
        .map(str::to_owned)
        .collect();
    let shown: BTreeSet<_> = table().into_iter().map(|row| row.path).collect();
    assert_eq!(shown, named);
}
