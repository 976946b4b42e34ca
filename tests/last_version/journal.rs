//! The journal with every field and every variant, the reason codes, and a held config.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::{ConfigRules, MachineConfig, MergeOrder};
use machinist_plan::{ActionKind, Attributes, Database, Edit, EditTarget};
use machinist_rootfs::{ObjectIdentity, Root};
use machinist_update::{
    journal::{
        ActionRecord, ActionState, BackupPolicy, ConfigName, CordonRecord, DeviceUsers,
        DevicesBeforeUpdate, Direction, GivenLabels, Journal, MachineBefore, NestedObject,
        ObjectId, OperationRecord, OperationRecordKind, Outcome, PhaseRecord, RebootRecord,
        Transaction, TransactionState, UpdateFailure, UpdateRecord,
    },
    phase::Phase,
    pinned_config::PinnedConfig,
};
use serde_json::json;

use crate::last_version::fixture;

fn at(path: &str) -> AbsPath {
    path.parse().unwrap()
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn config(name: &str) -> ConfigName {
    ConfigName {
        tells_absent: true,
        ..ConfigName::new(name, Digest::of(name.as_bytes()))
    }
}

fn identity(ino: u64) -> ObjectIdentity {
    ObjectIdentity {
        ino,
        birth: Some((1_800_000_000, 7)),
    }
}

fn object(ino: u64) -> ObjectId {
    ObjectId {
        kind: "file".to_owned(),
        ino,
        birth: Some((1_800_000_000, 8)),
        digest: Some(Digest::of(b"object")),
    }
}

fn phases() -> Vec<PhaseRecord> {
    let phase = |name: &str, finished| PhaseRecord {
        name: name.to_owned(),
        started: second(1),
        finished,
    };
    vec![phase("first", Some(second(2))), phase("last", None)]
}

fn labels() -> GivenLabels {
    GivenLabels {
        given: BTreeMap::from([(at("/etc/a"), "etc_t".to_owned())]),
        pending: BTreeMap::from([(at("/etc/b"), "net_conf_t".to_owned())]),
    }
}

fn edits() -> Vec<Edit> {
    use Database::{Group, Gshadow, Passwd, Shadow, Subgid, Subuid};
    let line = |database| Edit::Line {
        database,
        name: "ann".to_owned(),
        before: Some("ann:old".to_owned()),
        after: Some("ann:new".to_owned()),
        follows: Some("bob".to_owned()),
    };
    let mut all: Vec<_> = [Passwd, Shadow, Gshadow, Subuid, Subgid].map(line).into();
    all.push(Edit::Field {
        database: Passwd,
        name: "bob".to_owned(),
        index: 6,
        before: "/bin/sh".to_owned(),
        after: "/bin/bash".to_owned(),
    });
    all.push(Edit::Member {
        database: Group,
        name: "sudo".to_owned(),
        user: "ann".to_owned(),
        before: false,
        after: true,
        follows: None,
    });
    all
}

fn operation(target: &str, kind: OperationRecordKind) -> OperationRecord {
    OperationRecord {
        target: at(target),
        asked: Some(at("/etc/link/asked")),
        parent: Some(identity(20)),
        kind,
        below: vec![NestedObject {
            path: at("/etc/new/below"),
            directory: true,
            owner: Some((3, 4)),
        }],
        ours_before: vec![at("/etc/new/ours")],
        held: Some(Digest::of(b"held")),
        brought: Some(Digest::of(b"brought")),
        stays: true,
        attributes: Some(attributes()),
        lists: BTreeMap::from([("system.posix_acl_access".to_owned(), vec![1, 2])]),
        copy_of: Some(at("/var/lib/machinist/originals/1")),
        content_before: None,
    }
}

fn attributes() -> Attributes {
    Attributes {
        mode: 0o640,
        uid: 5,
        gid: 6,
    }
}

fn operations() -> Vec<OperationRecord> {
    let exchange = |keep| OperationRecordKind::Exchange {
        slot: at("/var/lib/machinist/tx/1/0"),
        before: Some(object(30)),
        after: Some(object(31)),
        removal: true,
        foreign: true,
        keep,
        recorded_owner: Some((1, 2)),
    };
    let kinds = [
        exchange(BackupPolicy::No),
        exchange(BackupPolicy::Original),
        exchange(BackupPolicy::Drifted),
        OperationRecordKind::Metadata {
            before: (0o600, 1, 2),
            after: (0o644, 3, 4),
            chown: true,
            original: Some(at("/var/lib/machinist/originals/2")),
            file: true,
            object: None,
            exposed: false,
        },
        OperationRecordKind::Entries {
            slot: at("/var/lib/machinist/tx/1/1"),
            edits: edits(),
        },
    ];
    let named = |(number, kind)| operation(&format!("/etc/{number}"), kind);
    kinds.into_iter().enumerate().map(named).collect()
}

fn actions() -> Vec<ActionRecord> {
    use ActionKind::{DaemonReload, Drain, Reboot, Reload, Restart, SoftReboot, Special, Stop};
    let states = [
        ActionState::Pending,
        ActionState::Started {
            boot: "boot-1".to_owned(),
            invocation: Some("0a".to_owned()),
        },
        ActionState::Done,
    ];
    let kinds = [
        Drain,
        Stop,
        DaemonReload,
        Reload,
        Restart,
        Special,
        SoftReboot,
        Reboot,
    ];
    let action = |(kind, state)| ActionRecord {
        kind,
        unit: Some("chronyd.service".to_owned()),
        state,
    };
    let states = states.into_iter().cycle();
    kinds.into_iter().zip(states).map(action).collect()
}

fn transaction(mark: TransactionState, direction: Direction) -> Transaction {
    Transaction {
        id: format!("20270115T080000Z-{mark:?}").to_lowercase(),
        mark,
        direction,
        from: Some(config("old")),
        to: config("new"),
        started: second(3),
        staging: vec![at("/var/lib/machinist/tx/1")],
        holders: BTreeMap::from([(at("/data/.machinist"), identity(21))]),
        left_behind: vec!["/home/ann: not empty".to_owned()],
        warnings: Vec::new(),
        skipped: BTreeSet::new(),
        operations: operations(),
        adopted: BTreeSet::from([at("/etc/adopted")]),
        released: BTreeSet::from([at("/etc/released")]),
        let_go: vec![EditTarget {
            database: Database::Group,
            name: "wheel".to_owned(),
            part: "member ann".to_owned(),
        }],
        labels: labels(),
        actions: actions(),
        committed_boot: Some("boot-1".to_owned()),
        boots: 2,
        counted_boot: Some("boot-2".to_owned()),
        reboot: Some(RebootRecord {
            boot: "boot-1".to_owned(),
            attempts: 3,
            ordered: second(4),
            soft: true,
        }),
        undo_reason: Some(failure()),
        reverted: true,
        booted_into: true,
        offline: true,
        phases: phases(),
    }
}

fn failure() -> UpdateFailure {
    UpdateFailure {
        code: Reason::JobFailed,
        message: "chronyd.service failed".to_owned(),
        retryable: true,
        digest: Some(Digest::of(b"new")),
        refusals: Vec::new(),
    }
}

fn record(outcome: Outcome) -> UpdateRecord {
    UpdateRecord {
        id: format!("{outcome:?}").to_lowercase(),
        from: "old".to_owned(),
        to: "new".to_owned(),
        digest: Digest::of(b"new"),
        started: second(5),
        finished: second(6),
        outcome,
        reason: Some(Reason::JobFailed),
        phases: phases(),
        blocked_for: 0,
        actions: actions(),
        left_behind: vec!["/home/bob: a link".to_owned()],
        repair: false,
    }
}

/// A journal in which no field is absent or has its default value.
fn everything() -> Journal {
    use Outcome::{AppliedOffline, Done, Failed, RolledBack, Withdrawn};
    let text = |text: &str| text.to_owned();
    let counts = || BTreeMap::from([(text("acme.dev/gpu"), 2)]);
    let transactions = [
        (TransactionState::Verified, Direction::Forward),
        (TransactionState::Committed, Direction::Undo),
        (TransactionState::Staged, Direction::Forward),
        (TransactionState::Intent, Direction::Forward),
    ];
    Journal {
        machine_id: Some(text("0123456789abcdef0123456789abcdef")),
        base: Some(config("old")),
        owned: BTreeMap::from([(at("/etc/a"), Some((7, 8))), (at("/etc/b"), None)]),
        made: BTreeSet::from([at("/etc/made")]),
        originals: BTreeMap::from([(at("/etc/a"), at("/var/lib/machinist/originals/3"))]),
        holders: BTreeMap::from([(at("/data/.machinist"), identity(22))]),
        modes: BTreeMap::from([(at("/etc/mode"), attributes())]),
        user_written: BTreeSet::new(),
        changed_objects: BTreeMap::new(),
        changed_targets: BTreeMap::new(),
        changed_target_failures: BTreeMap::new(),
        skipped: BTreeSet::new(),
        adopted: BTreeSet::from([at("/etc/adopted")]),
        entries: edits(),
        labels: labels(),
        failed_units: vec![text("failed.service")],
        machine_before: Some(MachineBefore {
            up: true,
            running: BTreeSet::from([text("kubelet.service")]),
            gateways: BTreeSet::from([text("192.0.2.1")]),
        }),
        devices_before: Some((counts(), second(7))),
        cordon: Some(CordonRecord {
            to: config("new"),
            since: second(8),
            drained_for: 90,
            blocked_for: 0,
            phases: phases(),
            devices_before: Some(DevicesBeforeUpdate {
                counts: counts(),
                holders: Some(BTreeMap::from([(text("shop/web/main"), counts())])),
            }),
            device_users: DeviceUsers::Quiesced,
            stopped: vec![text("monitor.service")],
        }),
        kernel_arguments: String::new(),
        adopted_packages: BTreeSet::new(),
        os_trial: None,
        transactions: transactions
            .map(|(mark, way)| transaction(mark, way))
            .into(),
        failure: Some(failure()),
        history: [Done, AppliedOffline, RolledBack, Withdrawn, Failed]
            .map(record)
            .into(),
    }
}

#[test]
fn a_journal_of_the_last_version_is_read_with_every_field() {
    let text = fixture::document("journal", || everything().encode().unwrap());
    let read = Journal::decode(&text).unwrap();
    let expected = everything();
    for (read, expected) in read.transactions.iter().zip(&expected.transactions) {
        assert_eq!(read.operations, expected.operations);
        assert_eq!(read, expected);
    }
    assert_eq!(read, expected);
    // Equality of names ignores this.
    assert!(read.base.unwrap().tells_absent);
}

#[test]
fn reason_codes_phases_and_device_states_of_the_last_version_are_read() {
    let names = || {
        let phases = Phase::ALL.map(Phase::name);
        let lending = [
            DeviceUsers::Open,
            DeviceUsers::Disabled,
            DeviceUsers::Quiesced,
        ];
        let all = json!({"reasons": Reason::ALL, "phases": phases, "lending": lending});
        (serde_json::to_string_pretty(&all).unwrap() + "\n").into_bytes()
    };
    fixture::document("names.json", names);
    let read: serde_json::Value = fixture::json("names.json");
    let reasons: Vec<Reason> = serde_json::from_value(read["reasons"].clone()).unwrap();
    fixture::in_order(&reasons, Reason::ALL);
    let lending: Vec<DeviceUsers> = serde_json::from_value(read["lending"].clone()).unwrap();
    let all = [
        DeviceUsers::Open,
        DeviceUsers::Disabled,
        DeviceUsers::Quiesced,
    ];
    assert_eq!(lending, all);
    let phases: Vec<String> = serde_json::from_value(read["phases"].clone()).unwrap();
    let named = |name: &String| Phase::named(name).unwrap_or_else(|| panic!("{name}"));
    let phases: Vec<Phase> = phases.iter().map(named).collect();
    fixture::in_order(&phases, &Phase::ALL);
}

#[test]
fn history_of_the_last_version_is_shown_with_current_names() {
    let renamed = [
        ("Withholding", Phase::DisablingDevices),
        ("Acting", Phase::RunningActions),
        ("Undoing", Phase::RollingBack),
    ];
    for (former, phase) in renamed {
        assert_eq!(Phase::named(former), Some(phase));
        let stored = json!({"name": former, "started": "2026-11-21T12:00:00Z", "finished": null});
        let read: PhaseRecord = serde_json::from_value(stored).unwrap();
        assert_eq!(read.name, phase.name());
        assert_ne!(read.name, former);
    }
}

/// The config that is held, as this version parses it.
fn parsed() -> MachineConfig {
    const CONFIG: &str = "config.yaml";
    let text = String::from_utf8(fixture::read(CONFIG)).unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let rules = ConfigRules {
        users: names(&["ann"]),
        groups: names(&["lab", "sudo"]),
        ..ConfigRules::default()
    };
    let documents = machinist_ignition::parse(&text, CONFIG, &rules).unwrap();
    let merged = machinist_ignition::merge(documents, "worker", MergeOrder::AsGiven);
    merged.unwrap().0
}

#[test]
fn a_pinned_config_of_the_last_version_is_read_with_all_entries() {
    let held = |root: &Root| root.make_dirs(&at("/var/lib/machinist"), 0o700).unwrap();
    let expected = || PinnedConfig {
        digest: machinist_ignition::digest(&parsed()),
        config: Arc::new(parsed()),
        over: Some(Digest::of(b"over")),
        by: "rollback".to_owned(),
        since: second(9),
    };
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    held(&root);
    let file = dir.path().join("var/lib/machinist/held");
    let text = fixture::document("held", || {
        expected().save(&root).unwrap();
        std::fs::read(&file).unwrap()
    });
    std::fs::write(&file, text).unwrap();
    let (read, expected) = (PinnedConfig::load(&root).unwrap().unwrap(), expected());
    assert_eq!(read.digest, expected.digest);
    assert_eq!(machinist_ignition::digest(&read.config), expected.digest);
    assert_eq!(read.config.name, expected.config.name);
    assert_eq!(
        (read.over, read.by, read.since),
        (expected.over, expected.by, expected.since)
    );
}
