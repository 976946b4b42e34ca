//! Cases as directories: `from.yaml`, `to.yaml`, `tree/`, `live.json` in; `plan.txt`, `plan.json`
//! out.
//!
//! `UPDATE_GOLDEN=1` writes the output; a reviewer checks the difference.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use machinist_ignition::MachineConfig;
use machinist_plan::{Plan, PlanDocument, Policies, UnitFacts};
use machinist_update::observe::CallerFacts;

use super::support::{LIVE, OFFLINE, Tree, config, observed_machine};

#[test]
fn plans_match_the_golden_cases() {
    let mut cases: Vec<PathBuf> = fs::read_dir("tests/golden/plan")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 10, "the cases are not all there: {cases:?}");
    for case in cases {
        let plan = plan_of(&case);
        check(&case.join("plan.txt"), &plan.to_text(false));
        let document = serde_json::to_string_pretty(&PlanDocument::new("/", &plan)).unwrap();
        check(&case.join("plan.json"), &format!("{document}\n"));
    }
}

fn plan_of(case: &Path) -> Plan {
    let read = |name: &str| fs::read_to_string(case.join(name)).ok();
    let named = |name: &str| {
        let mut made = read(name).map(|text| config(&text)).unwrap_or_default();
        if made != MachineConfig::default() {
            made.name = name.trim_end_matches(".yaml").to_owned();
        }
        made
    };
    let (from, to) = (named("from.yaml"), named("to.yaml"));
    let tree = Tree::new();
    if case.join("tree").is_dir() {
        copy(&case.join("tree"), tree.dir.path());
    }
    let live: Option<BTreeMap<String, UnitFacts>> = read("live.json").map(|text| units(&text));
    let known = CallerFacts {
        live_units: live.as_ref(),
        ..CallerFacts::default()
    };
    let policies = Policies::default();
    let mut observed = observed_machine(&tree.root, (&from, &to), &policies, known);
    for facts in observed.objects.values_mut() {
        // The user that runs the tests owns the copied tree.
        (facts.uid, facts.gid) = (0, 0);
    }
    let mut capabilities = if live.is_some() { LIVE } else { OFFLINE };
    capabilities.os = machinist_update::os::capabilities(&tree.root);
    machinist_plan::between(&from, &to, &observed, &policies, capabilities)
        .unwrap_or_else(|refusals| Plan::refused(&from, &to, refusals))
}

/// `{"chronyd.service": "active"}`: loaded units and their states.
fn units(text: &str) -> BTreeMap<String, UnitFacts> {
    let states: BTreeMap<String, String> = serde_json::from_str(text).unwrap();
    let facts = |active| UnitFacts {
        load: Some("loaded".into()),
        active: Some(active),
        ..UnitFacts::default()
    };
    states
        .into_iter()
        .map(|(unit, active)| (unit, facts(active)))
        .collect()
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source).unwrap(), &target).unwrap();
            continue;
        }
        let mode = if kind.is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&source, &target);
            0o755
        } else {
            fs::write(&target, fs::read(&source).unwrap()).unwrap();
            0o644
        };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&target, mode).unwrap();
    }
}

fn check(file: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, found).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    assert!(expected == found, "{} differs:\n{found}", file.display());
}
