//! Entries for one unit in several parts of a config, and units that are not in the usual directories, compared
//! with `systemctl --root` where it is installed.

use std::{fs, process::Command};

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal, Unit};
use machinist_plan::{ActionKind, Plan, Policies, UnitFacts};
use machinist_update::observe::CallerFacts;

use super::{
    oracle::UNITS,
    support::{LIVE, OFFLINE, Tree, config, unit},
};

pub(crate) const UNIT: &str = "[Service]\nExecStart=/x\n[Install]\nWantedBy=m.target\n";

/// An Ignition config with these entries of `storage` and `systemd.units`, in JSON.
pub(crate) fn entries(storage: &str, units: &str) -> MachineConfig {
    config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{{storage}}},
            "systemd": {{"units": [{units}]}}}}"#
    ))
}

pub(crate) fn plan(
    tree: &Tree,
    from: &MachineConfig,
    to: &MachineConfig,
) -> Result<Plan, Vec<Refusal>> {
    let observed = tree.observed(from, to, CallerFacts::default());
    machinist_plan::between(from, to, &observed, &Policies::default(), OFFLINE)
}

pub(crate) fn unit_set(name: &str, enabled: bool) -> MachineConfig {
    let mut config = MachineConfig::default();
    let printed = Unit {
        enabled: Some(enabled),
        ..Unit::default()
    };
    unit(&mut config, name, printed);
    config
}

/// The warnings of a plan about the config.
pub(crate) fn warnings(plan: &Plan) -> Vec<&String> {
    let all = plan.warnings.iter();
    all.filter(|warning| !warning.starts_with("CAP_CHOWN"))
        .collect()
}

/// Runs `systemctl --root` on a tree; `None` if it is not installed.
pub(crate) fn systemctl(tree: &Tree, words: &[&str]) -> Option<bool> {
    let mut command = Command::new("systemctl");
    command.arg(format!("--root={}", tree.dir.path().display()));
    let output = command.args(words).output().ok()?;
    Some(output.status.success())
}

#[test]
fn links_and_files_that_contradict_a_unit_entry_are_rejected() {
    let nothing = MachineConfig::default();
    let link =
        |at: &str, target: &str| format!(r#""links": [{{"path": "{at}", "target": "{target}"}}]"#);
    let (file, vendor) = ("/etc/systemd/system/x.service", "/usr/lib/systemd/system");
    let mask = link(file, "/dev/null");
    let empty = format!(r#""files": [{{"path": "{file}", "contents": {{"source": ""}}}}]"#);
    let off = r#"{"name": "x.service", "enabled": false}"#;
    let on = r#"{"name": "x.service", "enabled": true}"#;
    let unmask = r#"{"name": "x.service", "mask": false}"#;
    for (storage, units) in [
        (
            link(&format!("{UNITS}/m.target.wants/x.service"), file),
            off,
        ),
        (
            link(
                &format!("{UNITS}/n.target.requires/x.service"),
                "../x.service",
            ),
            off,
        ),
        (
            link(
                &format!("{vendor}/m.target.wants/x.service"),
                "../x.service",
            ),
            off,
        ),
        (link(&format!("{UNITS}/other.service"), "x.service"), off),
        (mask.clone(), on),
        (mask.clone(), unmask),
        (empty, on),
    ] {
        let tree = Tree::new();
        tree.write(&format!("{vendor}/x.service"), UNIT);
        let to = entries(&storage, units);
        let refusals = plan(&tree, &nothing, &to).expect_err(&storage);
        let [refusal] = &refusals[..] else {
            panic!("{storage} {units}: {refusals:?}");
        };
        assert_eq!(refusal.reason, Reason::EntryDuplicate, "{refusal}");
        let shown = refusal.to_string();
        assert!(
            shown.contains("storage.") && shown.contains("systemd.units"),
            "{shown}"
        );
        // A machine that is on such a config keeps it.
        assert!(plan(&tree, &to, &to).is_ok(), "{storage}");
    }
}

#[test]
fn links_that_agree_with_the_entry_of_their_unit_are_accepted() {
    let nothing = MachineConfig::default();
    for (at, target, entry) in [
        (
            "m.target.wants/x.service",
            "/dev/null",
            r#""enabled": false"#,
        ),
        (
            "m.target.wants/x.service",
            "/etc/systemd/system/y.service",
            r#""enabled": true"#,
        ),
        (
            "m.target.wants/y.service",
            "/usr/lib/systemd/system/y.service",
            r#""enabled": false"#,
        ),
        ("x.service", "/opt/x.service", r#""enabled": false"#),
        ("z.service", "/opt/x.service", r#""enabled": false"#),
    ] {
        let tree = Tree::new();
        tree.write("/usr/lib/systemd/system/y.service", UNIT);
        tree.write("/opt/x.service", UNIT);
        let storage = format!(r#""links": [{{"path": "{UNITS}/{at}", "target": "{target}"}}]"#);
        let to = entries(&storage, &format!(r#"{{"name": "x.service", {entry}}}"#));
        let planned = plan(&tree, &nothing, &to);
        assert!(planned.is_ok(), "{at} {target} {entry}: {planned:?}");
    }
}

#[test]
fn preset_enabled_instances_are_disabled_when_their_entry_leaves() {
    let drop_in = |name: &str| {
        let mut config = MachineConfig::default();
        let dropins = [("10-x.conf".to_owned(), "[Unit]\nDescription=x\n".to_owned())].into();
        let entry = Unit {
            dropins,
            ..Unit::default()
        };
        unit(&mut config, name, entry);
        config
    };
    let nothing = MachineConfig::default();
    for name in ["t@.service", "t@a.service"] {
        let tree = Tree::new();
        tree.write("/usr/lib/systemd/system/t@.service", UNIT);
        let presets = "enable t@.service a b\ndisable *\n";
        tree.write("/usr/lib/systemd/system-preset/50-x.preset", presets);
        let to = drop_in(name);
        tree.apply(&plan(&tree, &nothing, &to).unwrap());
        assert!(!tree.links(UNITS).is_empty(), "{name}");
        assert!(plan(&tree, &to, &to).unwrap().is_empty(), "{name}");
        tree.apply(&plan(&tree, &to, &nothing).unwrap());
        assert_eq!(tree.links(UNITS), [].into(), "{name}");
    }
}

#[test]
fn a_unit_written_as_a_file_is_preset_and_restarted_like_a_unit_entry() {
    let file = |text: &str| {
        let storage = format!(
            r#""files": [{{"path": "{UNITS}/x.service", "contents": {{"source": "data:,{text}"}}}}]"#
        );
        entries(&storage, r#"{"name": "x.service"}"#)
    };
    let wanted = "%5BService%5D%0AExecStart=/x%0A%5BInstall%5D%0AWantedBy=m.target%0A";
    let (nothing, first) = (MachineConfig::default(), file(wanted));
    let tree = Tree::new();
    tree.apply(&plan(&tree, &nothing, &first).unwrap());
    let links: Vec<String> = tree.links(UNITS).into_keys().collect();
    assert_eq!(links, ["etc/systemd/system/m.target.wants/x.service"]);
    assert!(plan(&tree, &first, &first).unwrap().is_empty());

    let running = UnitFacts {
        load: Some("loaded".into()),
        active: Some("active".into()),
        ..UnitFacts::default()
    };
    let live = [("x.service".to_owned(), running)].into();
    let between = |from: &MachineConfig, to: &MachineConfig| {
        let known = CallerFacts {
            live_units: Some(&live),
            ..CallerFacts::default()
        };
        let mut observed = tree.observed(from, to, known);
        for facts in observed.objects.values_mut() {
            (facts.uid, facts.gid) = (0, 0);
        }
        let plan =
            machinist_plan::between(from, to, &observed, &Policies::default(), LIVE).unwrap();
        plan.actions
            .iter()
            .map(|action| action.kind)
            .collect::<Vec<_>>()
    };
    let changed = file(&format!("{wanted}%23%0A"));
    let restart = [ActionKind::DaemonReload, ActionKind::Restart];
    assert_eq!(between(&first, &changed), restart);
    let stop = [ActionKind::Stop, ActionKind::DaemonReload];
    assert_eq!(between(&first, &nothing), stop);
    tree.apply(&plan(&tree, &first, &nothing).unwrap());
    assert_eq!(tree.links(UNITS), [].into());
}

#[test]
fn foreign_unit_links_are_kept_when_a_unit_is_enabled() {
    let (ours, theirs) = (Tree::new(), Tree::new());
    for tree in [&ours, &theirs] {
        tree.write("/srv/x.service", UNIT);
        tree.link(&format!("{UNITS}/other.service"), "/srv/x.service");
        tree.link(&format!("{UNITS}/z.target.wants/x.service"), "../x.service");
        tree.link(
            &format!("{UNITS}/z.target.wants/other.service"),
            "/srv/x.service",
        );
    }
    let nothing = MachineConfig::default();
    let mut to = MachineConfig::default();
    let entry = Unit {
        contents: Some(UNIT.to_owned()),
        enabled: Some(true),
        ..Unit::default()
    };
    unit(&mut to, "x.service", entry.clone());
    ours.apply(&plan(&ours, &nothing, &to).unwrap());
    theirs.write(&format!("{UNITS}/x.service"), UNIT);
    if systemctl(&theirs, &["enable", "x.service"]).is_some() {
        assert_eq!(ours.links(UNITS), theirs.links(UNITS));
    }
    assert_eq!(ours.links(UNITS).len(), 4);
    // What an earlier config made goes.
    let mut later = MachineConfig::default();
    let contents = Some(UNIT.replace("m.target", "n.target"));
    unit(&mut later, "x.service", Unit { contents, ..entry });
    ours.apply(&plan(&ours, &to, &later).unwrap());
    let made = fs::symlink_metadata(ours.at(&format!("{UNITS}/m.target.wants/x.service")));
    assert!(made.is_err());
    assert_eq!(ours.links(UNITS).len(), 4);
    // The unit of another owner is not one of the unit that the presets enable.
    let silent = Unit {
        contents: Some(UNIT.to_owned()),
        ..Unit::default()
    };
    unit(&mut later, "x.service", silent);
    ours.apply(&plan(&ours, &to, &later).unwrap());
    ours.apply(&plan(&ours, &later, &nothing).unwrap());
    assert!(
        ours.links(UNITS)
            .contains_key("etc/systemd/system/other.service")
    );
}

#[test]
fn masking_a_linked_unit_is_rejected_as_by_systemctl() {
    for target in ["/opt/x.service", "/opt/gone.service"] {
        let tree = Tree::new();
        tree.write("/opt/x.service", UNIT);
        tree.link(&format!("{UNITS}/x.service"), target);
        let to = entries("", r#"{"name": "x.service", "mask": true}"#);
        let refusals = plan(&tree, &MachineConfig::default(), &to).unwrap_err();
        let reasons: Vec<Reason> = refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, [Reason::DuplicateTarget], "{target}");
        assert!(refusals[0].message.contains(target), "{refusals:?}");
        let accepted = systemctl(&tree, &["mask", "x.service"]);
        assert_ne!(accepted, Some(true), "{target}");
    }
}
