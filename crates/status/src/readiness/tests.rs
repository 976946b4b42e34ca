use std::{collections::BTreeMap, time::Duration};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn policy() -> GatePolicy {
    GatePolicy {
        effects: BTreeMap::new(),
        cpu_pressure: 90,
        memory_pressure: 40,
        io_pressure: 80,
        min_free: MinFree::Percent(5),
        min_inodes: 5,
        return_limit: Duration::from_secs(300),
        custom_gates: Vec::new(),
    }
}

/// All inputs are observed and healthy.
fn healthy() -> GateInputs {
    GateInputs {
        device_manager: DeviceManager::Listening,
        failed_units: Some(FailedUnits::default()),
        pressure: Some(Pressure {
            cpu: 0.0,
            memory: 0.0,
            io: 0.0,
        }),
        disk: vec![space("/", 50, 100)],
        synchronised: Some(true),
        root_read_only: Some(false),
        memory: memory(1, 0),
        ..GateInputs::default()
    }
}

fn space(path: &str, free: u64, size: u64) -> FreeSpace {
    FreeSpace {
        path: path.to_owned(),
        free,
        size,
        inodes: Some(FreeInodes { free: 50, all: 100 }),
    }
}

fn inodes(free: u64, all: u64) -> Vec<FreeSpace> {
    vec![FreeSpace {
        inodes: Some(FreeInodes { free, all }),
        ..space("/", 50, 100)
    }]
}

fn memory(overcommit: u32, panic_on_oom: u32) -> Option<MemorySettings> {
    Some(MemorySettings {
        overcommit,
        panic_on_oom,
    })
}

fn failure() -> Failure {
    Failure {
        reason: Reason::JobFailed,
        message: "chronyd.service did not start".to_owned(),
    }
}

fn with(change: impl FnOnce(&mut GateInputs)) -> GateInputs {
    let mut inputs = healthy();
    change(&mut inputs);
    inputs
}

fn waiting(now: &[(&str, usize)]) -> Option<DevicesReturn> {
    let counts = |all: &[(&str, usize)]| all.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
    Some(DevicesReturn {
        before: counts(&[("acme.dev/fpga", 2), ("machinist.dev/fuse", 1)]),
        now: counts(now),
        since: at(-300),
    })
}

fn units(before: &[&str], now: &[&str]) -> Option<FailedUnits> {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Some(FailedUnits {
        before: set(before),
        now: set(now),
    })
}

fn stall(cpu: f64, memory: f64, io: f64) -> Option<Pressure> {
    Some(Pressure { cpu, memory, io })
}

fn boots(current: Option<&str>, ordered_at: Option<&str>) -> RebootFacts {
    RebootFacts {
        current: current.map(str::to_owned),
        ordered_at: ordered_at.map(str::to_owned),
    }
}

/// A gate, whether it is open, the reason, and the inputs. All other gates are open.
type Row = (GateName, bool, Reason, GateInputs);

#[rustfmt::skip]
fn update_rows() -> Vec<Row> {
    use {GateName as G, Reason as R};
    vec![
        (G::Config, true, R::Ok, healthy()),
        (G::Config, false, R::UpdateInProgress, with(|i| i.config.unverified = Some("b".into()))),
        (G::Config, false, R::UpdateFailed, with(|i| i.config.failed = Some(failure()))),
        (G::Config, false, R::UpdateFailed, with(|i| { i.config.failed = Some(failure()); i.config.unverified = Some("b".into()); })),
        (G::Config, true, R::Drifted, with(|i| i.config.drifted = vec!["/etc/a".into()])),
        (G::Config, false, R::Drifted, with(|i| { i.config.drifted = vec!["/etc/a".into()]; i.config.drift_holds = true; })),
        (G::Config, true, R::ConfigRefused, with(|i| i.config.refused = Some(failure()))),
        (G::BootProven, true, R::Ok, with(|i| i.boot = boots(Some("b1"), None))),
        (G::BootProven, false, R::RebootPending, with(|i| i.boot = boots(Some("b1"), Some("b1")))),
        (G::BootProven, false, R::BootUnverified, with(|i| i.boot = boots(Some("b2"), Some("b1")))),
        (G::BootProven, true, R::SignalMissing, with(|i| i.boot = boots(None, Some("b1")))),
    ]
}

#[rustfmt::skip]
fn device_rows() -> Vec<Row> {
    use {GateName as G, Reason as R};
    let before_limit = |now: &[(&str, usize)]| {
        waiting(now).map(|wait| DevicesReturn { since: at(-299), ..wait })
    };
    vec![
        (G::Kubelet, true, R::Ok, with(|i| i.kubelet = KubeletReadiness::NotRequired)),
        (G::Kubelet, true, R::Ok, with(|i| i.kubelet = KubeletReadiness::Ready)),
        (G::Kubelet, true, R::SignalMissing, with(|i| i.kubelet = KubeletReadiness::Unknown)),
        (G::Kubelet, false, R::KubeletDown, with(|i| i.kubelet = KubeletReadiness::NoNode)),
        (G::Kubelet, false, R::KubeletDown, with(|i| i.kubelet = KubeletReadiness::OldBoot)),
        (G::Kubelet, false, R::KubeletDown, with(|i| i.kubelet = KubeletReadiness::NotReady("CNI".into()))),
        (G::DeviceManagerAbsent, true, R::Ok, with(|i| i.device_manager = DeviceManager::NotRequired)),
        (G::DeviceManagerAbsent, true, R::Ok, with(|i| i.device_manager = DeviceManager::Absent(at(-29)))),
        (G::DeviceManagerAbsent, false, R::KubeletDown, with(|i| i.device_manager = DeviceManager::Absent(at(-30)))),
        (G::DeviceManagerAbsent, true, R::Ok, with(|i| i.device_manager = DeviceManager::Absent(at(60)))),
        (G::Devices, true, R::Ok, with(|i| i.devices = before_limit(&[("acme.dev/fpga", 2), ("machinist.dev/fuse", 1)]))),
        (G::Devices, true, R::Ok, with(|i| i.devices = before_limit(&[("acme.dev/fpga", 3), ("machinist.dev/fuse", 1)]))),
        (G::Devices, false, R::DevicesMissing, with(|i| i.devices = before_limit(&[("acme.dev/fpga", 1), ("machinist.dev/fuse", 1)]))),
        (G::Devices, false, R::DevicesMissing, with(|i| i.devices = before_limit(&[]))),
        (G::Devices, true, R::DevicesMissing, with(|i| i.devices = waiting(&[]))),
    ]
}

#[rustfmt::skip]
fn host_rows() -> Vec<Row> {
    use {GateName as G, Reason as R};
    vec![
        (G::FailedUnits, true, R::Ok, with(|i| i.failed_units = units(&["a.service"], &["a.service"]))),
        (G::FailedUnits, true, R::Ok, with(|i| i.failed_units = units(&["a.service"], &[]))),
        (G::FailedUnits, false, R::UnitsFailed, with(|i| i.failed_units = units(&["a.service"], &["b.service"]))),
        (G::FailedUnits, true, R::SignalMissing, with(|i| i.failed_units = None)),
        (G::Pressure, true, R::Ok, with(|i| i.pressure = stall(90.0, 40.0, 80.0))),
        (G::Pressure, false, R::UnderPressure, with(|i| i.pressure = stall(90.01, 0.0, 0.0))),
        (G::Pressure, false, R::UnderPressure, with(|i| i.pressure = stall(0.0, 40.01, 0.0))),
        (G::Pressure, false, R::UnderPressure, with(|i| i.pressure = stall(0.0, 0.0, 80.01))),
        (G::Pressure, true, R::SignalMissing, with(|i| i.pressure = None)),
        (G::DiskSpace, true, R::Ok, with(|i| i.disk = vec![space("/", 5, 100)])),
        (G::OtherDaemon, true, R::Ok, with(|_| {})),
        (G::OtherDaemon, false, R::OtherDaemon, with(|i| i.other_daemon = Some("it runs".to_owned()))),
        (G::DiskSpace, false, R::DiskSpaceLow, with(|i| i.disk = vec![space("/", 499, 10_000)])),
        (G::DiskSpace, false, R::DiskSpaceLow, with(|i| i.disk = vec![space("/", 50, 100), space("/var", 0, 1)])),
        (G::DiskSpace, true, R::Ok, with(|i| i.disk = vec![space("/proc", 0, 0)])),
        (G::DiskSpace, true, R::Ok, with(|i| i.disk = vec![space("/", u64::MAX, u64::MAX)])),
        (G::DiskSpace, true, R::SignalMissing, with(|i| i.disk = vec![])),
        (G::TimeSync, true, R::Ok, healthy()),
        (G::TimeSync, false, R::TimeUnsynchronised, with(|i| i.synchronised = Some(false))),
        (G::TimeSync, true, R::SignalMissing, with(|i| i.synchronised = None)),
        (G::Inodes, true, R::Ok, with(|i| i.disk = inodes(5, 100))),
        (G::Inodes, false, R::InodesLow, with(|i| i.disk = inodes(499, 10_000))),
        (G::Inodes, true, R::Ok, with(|i| i.disk = inodes(u64::MAX, u64::MAX))),
        (G::Inodes, true, R::SignalMissing, with(|i| i.disk[0].inodes = None)),
        (G::ReadOnlyRoot, true, R::Ok, healthy()),
        (G::ReadOnlyRoot, false, R::RootReadOnly, with(|i| i.root_read_only = Some(true))),
        (G::ReadOnlyRoot, true, R::SignalMissing, with(|i| i.root_read_only = None)),
        (G::KernelMemorySettings, true, R::Ok, healthy()),
        (G::KernelMemorySettings, false, R::KernelMemorySettings, with(|i| i.memory = memory(0, 0))),
        (G::KernelMemorySettings, false, R::KernelMemorySettings, with(|i| i.memory = memory(2, 0))),
        (G::KernelMemorySettings, false, R::KernelMemorySettings, with(|i| i.memory = memory(1, 1))),
        (G::KernelMemorySettings, true, R::SignalMissing, with(|i| i.memory = None)),
        (G::KernelMemorySettings, true, R::Ok, with(|i| { i.memory = memory(0, 1); i.device_manager = DeviceManager::NotRequired; })),
        (G::Settings, true, R::Ok, healthy()),
        (G::Settings, false, R::SettingsInvalid, with(|i| i.settings_mistake = Some("machinist.yaml:1".to_owned()))),
    ]
}

#[test]
fn every_gate_opens_and_closes_at_its_threshold() {
    let table = [update_rows(), device_rows(), host_rows()].concat();
    for (row, (name, open, reason, inputs)) in table.iter().enumerate() {
        let gates = Gates::default().evaluate(inputs, &policy(), at(0));
        let gate = gates.get(*name).unwrap();
        assert_eq!(
            (gate.open, gate.reason),
            (*open, *reason),
            "row {row}: {gate:?}"
        );
        assert!(!gate.message.is_empty(), "row {row}");
        let others = gates.iter().filter(|gate| gate.name != *name);
        assert!(
            others.into_iter().all(|gate| gate.open),
            "row {row}: {gates:?}"
        );
    }
}

#[test]
fn free_bytes_below_the_limit_close_disk_space() {
    let policy = GatePolicy {
        min_free: MinFree::Bytes(1 << 30),
        ..policy()
    };
    for (free, open) in [((1 << 30) - 1, false), (1 << 30, true)] {
        let inputs = with(|i| i.disk = vec![space("/", free, 1 << 40)]);
        let gates = Gates::default().evaluate(&inputs, &policy, at(0));
        assert_eq!(gates.get(GateName::DiskSpace).unwrap().open, open);
    }
}

#[test]
fn a_machine_without_inputs_is_ready() {
    let gates = Gates::default().evaluate(&GateInputs::default(), &policy(), at(0));
    assert!(gates.ready());
    assert_eq!(gates.summary(), "ready");
    let names: Vec<_> = gates.iter().map(|gate| gate.name.clone()).collect();
    assert_eq!(names, GateName::ALL);
}

#[test]
fn since_moves_only_when_a_gate_opens_or_closes() {
    let low = with(|i| i.disk = vec![space("/", 0, 100)]);
    let lower = with(|i| i.disk = vec![space("/", 0, 100), space("/var", 0, 100)]);
    let mut gates = Gates::default();
    let mut seen = Vec::new();
    for (second, inputs) in [
        (0, &low),
        (10, &lower),
        (20, &healthy()),
        (30, &healthy()),
        (40, &low),
    ] {
        gates = gates.evaluate(inputs, &policy(), at(second));
        seen.push(gates.get(GateName::DiskSpace).unwrap().since);
    }
    assert_eq!(seen, [at(0), at(0), at(20), at(20), at(40)]);
}

#[test]
fn only_a_closed_gate_with_effect_hold_removes_readiness() {
    let inputs = with(|i| i.synchronised = Some(false));
    for (effect, ready, summary) in [
        (
            GateEffect::Hold,
            false,
            "not ready: TimeSync (the clock is not synchronised)",
        ),
        (
            GateEffect::Warn,
            true,
            "ready; warnings: TimeSync (the clock is not synchronised)",
        ),
        (GateEffect::Off, true, "ready"),
    ] {
        let policy = GatePolicy {
            effects: BTreeMap::from([(GateName::TimeSync, effect)]),
            ..policy()
        };
        let gates = Gates::default().evaluate(&inputs, &policy, at(0));
        assert_eq!(gates.ready(), ready);
        assert_eq!(gates.summary(), summary);
    }
}

#[test]
fn a_gate_message_lists_at_most_three_items() {
    let names = [
        "a.service",
        "b.service",
        "c.service",
        "d.service",
        "e.service",
    ];
    let inputs = with(|i| i.failed_units = units(&[], &names));
    let gates = Gates::default().evaluate(&inputs, &policy(), at(0));
    assert_eq!(
        gates.summary(),
        "not ready: FailedUnits (failed: a.service, b.service, c.service and 2 more)"
    );
}

#[test]
fn a_gate_names_the_unverified_config_if_there_is_one() {
    for (name, message) in [
        ("b", "b is applied, not verified yet"),
        ("", "changes of files are applied, not verified yet"),
    ] {
        let inputs = with(|inputs| inputs.config.unverified = Some(name.to_owned()));
        let gates = Gates::default().evaluate(&inputs, &policy(), at(0));
        assert_eq!(gates.get(GateName::Config).unwrap().message, message);
    }
}

#[test]
fn gate_json_has_the_documented_shape() {
    let gates = Gates::default().evaluate(&healthy(), &policy(), at(0));
    let text = serde_json::to_string(gates.get(GateName::TimeSync).unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"name":"TimeSync","open":true,"effect":"warn","since":"2027-01-15T08:00:00Z","reason":"Ok","message":"the clock is synchronised"}"#
    );
}

#[test]
fn gates_are_reevaluated_when_time_alone_changes_them() {
    let inputs = with(|i| {
        i.device_manager = DeviceManager::Absent(at(0));
        i.devices = waiting(&[]);
    });
    let verdicts = |when| {
        let gates = Gates::default().evaluate(&inputs, &policy(), when);
        gates.iter().map(|gate| gate.open).collect::<Vec<_>>()
    };
    let mut now = at(-300);
    let mut turns = 0;
    while let Some(turn) = inputs.next_change_at(&policy(), now) {
        let before = turn - jiff::SignedDuration::from_nanos(1);
        assert_eq!(verdicts(now), verdicts(before), "nothing happens before");
        assert_ne!(verdicts(before), verdicts(turn), "something happens then");
        (now, turns) = (turn, turns + 1);
    }
    assert_eq!(turns, 2);
    assert_eq!(
        verdicts(now),
        verdicts(at(100_000)),
        "nothing happens after"
    );
}

fn custom(name: &str, probe: CustomProbe, effect: GateEffect) -> CustomGate {
    CustomGate {
        name: name.to_owned(),
        probe,
        effect,
    }
}

#[test]
fn custom_gates_come_last_and_stay_closed_until_probed() {
    let unit = CustomProbe::Unit("iscsid.service".to_owned());
    let policy = GatePolicy {
        custom_gates: vec![
            custom("Storage", unit.clone(), GateEffect::Hold),
            custom(
                "Network",
                CustomProbe::TaintAbsent("cni".to_owned()),
                GateEffect::Warn,
            ),
        ],
        ..policy()
    };
    let judged = |inputs: &GateInputs| {
        let gates = Gates::default().evaluate(inputs, &policy, at(0));
        assert_eq!(gates.iter().count(), GateName::ALL.len() + 2);
        let of = |name: &str| {
            let gate = gates
                .iter()
                .find(|gate| gate.name.as_str() == name)
                .unwrap();
            (gate.open, gate.reason)
        };
        (of("Storage"), of("Network"), gates.ready())
    };
    let inputs_with_probe = |open| {
        with(|i| {
            let message = "what was found".to_owned();
            i.custom_probes = ProbeResults::from([(unit.clone(), ProbeResult { open, message })]);
        })
    };
    let missing = (true, Reason::SignalMissing);
    let closed = (false, Reason::CustomGateClosed);
    assert_eq!(judged(&healthy()), (closed, missing, false));
    assert_eq!(
        judged(&inputs_with_probe(Some(false))),
        (closed, missing, false)
    );
    assert_eq!(judged(&inputs_with_probe(None)), (missing, missing, true));
    let mut seen = inputs_with_probe(Some(true));
    seen.taints = Some(["cni.example.com:NoExecute".to_owned()].into());
    assert_eq!(
        judged(&seen),
        ((true, Reason::Ok), (true, Reason::Ok), true)
    );
    seen.taints = Some(["cni:NoExecute".to_owned()].into());
    // It only warns.
    assert_eq!(judged(&seen), ((true, Reason::Ok), closed, true));
}

#[test]
fn a_taint_gate_matches_any_effect_unless_one_is_given() {
    let open = |taint: &str| {
        let inputs = with(|i| i.taints = Some(["a.b/c:NoExecute".to_owned()].into()));
        super::custom_gate_evaluation::verdict(&CustomProbe::TaintAbsent(taint.to_owned()), &inputs)
            .open
    };
    assert!(!open("a.b/c") && !open("a.b/c:NoExecute"));
    assert!(open("a.b/c:NoSchedule") && open("c") && open("a.b/cc"));
}

#[test]
fn an_unknown_gate_of_a_newer_agent_is_read_by_name() {
    let text = r#"[{"name":"Moon","open":true,"effect":"warn","since":"2027-01-15T08:00:00Z","reason":"Ok","message":"full"}]"#;
    let gates: Gates = serde_json::from_str(text).unwrap();
    assert_eq!(
        gates.iter().next().unwrap().name,
        GateId::Custom("Moon".to_owned())
    );
    assert_eq!(serde_json::to_string(&gates).unwrap(), text);
}
