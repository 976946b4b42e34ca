//! When a soft reboot is planned instead of a reboot.

use machinist_ignition::{Content, EntryOrigin, File, MachineConfig, Owner, Unit, UnitName};
use machinist_plan::{ActionKind, Cost, Plan, Policies, UnitFacts};
use machinist_update::observe::CallerFacts;

use super::support::{LIVE, OFFLINE, Tree, observed_machine, path};

fn file(at: &str) -> MachineConfig {
    let file = File {
        content: Some(Content::new(b"new".to_vec())),
        mode: Some(0o644),
        user: Some(Owner::ROOT),
        group: Some(Owner::ROOT),
        origin: EntryOrigin::default(),
    };
    MachineConfig {
        files: [(path(at), file)].into(),
        ..MachineConfig::default()
    }
}

fn dropin(name: &str) -> MachineConfig {
    let unit = Unit {
        dropins: [("10-x.conf".to_owned(), "[Unit]\nDescription=x\n".to_owned())].into(),
        ..Unit::default()
    };
    MachineConfig {
        units: [(UnitName::new(name).unwrap(), unit)].into(),
        ..MachineConfig::default()
    }
}

/// The states of these units in systemd, and `target` as that of soft-reboot.target.
fn units(target: &str) -> std::collections::BTreeMap<String, UnitFacts> {
    let facts = |load: &str, active: &str| UnitFacts {
        load: Some(load.to_owned()),
        active: Some(active.to_owned()),
        ..UnitFacts::default()
    };
    [
        ("soft-reboot.target", facts(target, "inactive")),
        ("dbus.service", facts("loaded", "active")),
        ("-.mount", facts("loaded", "active")),
    ]
    .map(|(name, facts)| (name.to_owned(), facts))
    .into()
}

fn plan(to: &MachineConfig, policies: &Policies, target: &str) -> Plan {
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    let units = units(target);
    let known = CallerFacts {
        live_units: Some(&units),
        ..CallerFacts::default()
    };
    let observed = observed_machine(&tree.root, (&nothing, to), policies, known);
    machinist_plan::between(&nothing, to, &observed, policies, LIVE).unwrap()
}

fn allowed() -> Policies {
    Policies::default().with_soft_reboots(true)
}

fn reboot(plan: &Plan) -> (ActionKind, String) {
    assert_eq!(plan.actions.len(), 1, "{:?}", plan.actions);
    (plan.actions[0].kind, plan.changes[0].why.clone())
}

#[test]
fn a_userspace_only_change_plans_a_soft_reboot_with_the_reason() {
    use ActionKind as K;
    for (to, kind, says) in [
        (
            file("/etc/app.conf"),
            K::SoftReboot,
            "only userspace reads it",
        ),
        (
            file("/usr/local/bin/app"),
            K::SoftReboot,
            "(update.softReboot)",
        ),
        (
            dropin("dbus.service"),
            K::SoftReboot,
            "a soft reboot restarts it",
        ),
        (
            dropin("-.mount"),
            K::Reboot,
            "a soft reboot does not reset its kernel state",
        ),
        (
            file("/etc/fstab"),
            K::Reboot,
            "the kernel or early boot may read it",
        ),
        (file("/etc/modprobe.d/x.conf"), K::Reboot, "a full reboot"),
    ] {
        let (found, why) = reboot(&plan(&to, &allowed(), "loaded"));
        assert_eq!(found, kind, "{why}");
        assert!(why.contains(says), "{why}");
    }
    let soft = plan(&file("/etc/app.conf"), &allowed(), "loaded");
    assert_eq!((soft.cost, soft.drain), (Cost::SoftReboot, true));
}

#[test]
fn without_the_setting_or_systemd_support_every_reboot_is_full() {
    let to = file("/etc/app.conf");
    let (kind, why) = reboot(&plan(&to, &Policies::default(), "loaded"));
    assert_eq!(kind, ActionKind::Reboot);
    assert_eq!(why, "new; no policy matches, so a reboot is required");
    for target in ["not-found", "masked"] {
        let (kind, why) = reboot(&plan(&to, &allowed(), target));
        assert_eq!(kind, ActionKind::Reboot, "{target}");
        assert!(why.contains("this systemd has no soft-reboot"), "{why}");
    }
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let offline = machinist_plan::between(&nothing, &to, &observed, &allowed(), OFFLINE).unwrap();
    assert!(
        offline
            .left_out
            .iter()
            .any(|line| line.starts_with("Reboot "))
    );
}

#[test]
fn one_change_with_policy_reboot_makes_the_reboot_full() {
    let object = serde_json::json!({"spec": {"nodeDisruptionPolicy": {
        "files": [{"path": "/etc/app.conf", "actions": [{"type": "Reboot"}]}]}}});
    let policies = Policies::from_machine_configuration(&object).unwrap();
    let policies = policies.with_soft_reboots(true);
    let (kind, _) = reboot(&plan(&file("/etc/app.conf"), &policies, "loaded"));
    assert_eq!(kind, ActionKind::Reboot);
    let mut both = file("/etc/app.conf");
    both.files.extend(file("/etc/fstab").files);
    let both = plan(&both, &allowed(), "loaded");
    let kinds: Vec<_> = both.actions.iter().map(|action| action.kind).collect();
    assert_eq!(kinds, [ActionKind::Reboot]);
}
