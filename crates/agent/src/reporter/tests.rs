use super::*;
use machinist_plan::DriftKind;
use machinist_status::{
    DeviceStatus, Mode,
    readiness::{Gate, GateName},
};

/// The status that is published at this second for these inputs.
fn published(
    update: UpdateReport,
    devices: DevicesView,
    cluster: ClusterView,
    second: i64,
) -> Arc<Status> {
    let settings =
        machinist_status::settings::load(machinist_status::settings::SettingsInputs::default())
            .unwrap();
    let from = ReporterInputs {
        update: watch::channel(Arc::new(update)).1,
        desired: watch::channel(DesiredConfig::Nothing).1,
        held: watch::channel(None).1,
        devices: watch::channel(Arc::new(devices)).1,
        cluster: watch::channel(cluster).1,
        other_daemon: watch::channel(None).1,
        settings_mistake: watch::channel(None).1,
        signals: watch::channel(Arc::default()).1,
        custom_probes: watch::channel(ProbeResults::default()).1,
        settings: watch::channel(Arc::new(settings)).1,
    };
    let now = Timestamp::from_second(second).unwrap();
    let (status, report) = watch::channel(Arc::new(Status::starting("/", Mode::Cluster, now)));
    let to = ReporterOutputs {
        metrics: Metrics::new(report.clone()),
        status,
        clock: Clock::from_fn(move || now),
    };
    publish(&from, &to);
    report.borrow().clone()
}

#[test]
fn devices_gate_waits_for_devices_of_before_the_update_up_to_a_limit() {
    let before = BTreeMap::from([("acme.dev/x".to_owned(), 2)]);
    let gate = |healthy: usize, second| -> Gate {
        let device = |at: usize| DeviceStatus {
            health: ["Unhealthy", "Healthy"][usize::from(at < healthy)].into(),
            ..DeviceStatus::default()
        };
        let resource = ResourceStatus {
            resource: "acme.dev/x".to_owned(),
            registered: true,
            devices: (0..2).map(device).collect(),
            ..ResourceStatus::default()
        };
        let devices = DevicesView {
            resources: vec![resource].into(),
            ..DevicesView::default()
        };
        let update = UpdateReport {
            devices_before: Some((before.clone(), Timestamp::UNIX_EPOCH)),
            ..UpdateReport::default()
        };
        let status = published(update, devices, ClusterView::default(), second);
        status.gates.get(GateName::Devices).unwrap().clone()
    };
    let summary = |gate: Gate| (gate.open, gate.reason);
    assert_eq!(summary(gate(1, 1)), (false, Reason::DevicesMissing));
    assert_eq!(summary(gate(2, 1)), (true, Reason::Ok));
    // Open, and the message lists the missing devices.
    let late = gate(1, 86_400);
    assert!(
        late.message.contains("acme.dev/x 1 of 2"),
        "{}",
        late.message
    );
    assert_eq!(summary(late), (true, Reason::DevicesMissing));
}

#[test]
fn a_served_resource_without_devices_is_not_an_orphaned_resource() {
    let zeros = ["acme.dev/gone", "acme.dev/here"].map(str::to_owned);
    let here = ResourceStatus {
        resource: "acme.dev/here".to_owned(),
        ..ResourceStatus::default()
    };
    let devices = DevicesView {
        resources: vec![here].into(),
        ..DevicesView::default()
    };
    assert_eq!(unadvertised(&zeros, &devices), ["acme.dev/gone"]);
    let cluster = ClusterView {
        zeros: zeros.into(),
        ..ClusterView::default()
    };
    let status = published(UpdateReport::default(), devices, cluster, 0);
    assert_eq!(status.orphaned_resources, ["acme.dev/gone"]);
}

/// After a reboot the API server may be unreachable, so that the desired config cannot be read.
#[test]
fn an_unreadable_config_does_not_fail_an_update_in_progress() {
    let unread = machinist_ignition::Refusal::new(Reason::ConfigNotFound, "there is none");
    let mut update = UpdateReport {
        unverified: true,
        refused: Arc::new(vec![unread]),
        ..UpdateReport::default()
    };
    let gate = |update: &UpdateReport| {
        let devices = DevicesView::default();
        let status = published(update.clone(), devices, ClusterView::default(), 1);
        status.gates.get(GateName::Config).unwrap().reason
    };
    assert_eq!(gate(&update), Reason::UpdateInProgress);
    update.failure = Some(journal::UpdateFailure {
        code: Reason::VerifyFailed,
        message: "it differs".to_owned(),
        retryable: false,
        digest: None,
        refusals: Vec::new(),
    });
    assert_eq!(gate(&update), Reason::UpdateFailed);
    // A machine that is unhealthy right after the boot may recover, or the config is rolled back.
    update.phase = machinist_update::phase::Phase::Verifying;
    assert_eq!(gate(&update), Reason::UpdateFailed);
    if let Some(failure) = &mut update.failure {
        failure.code = Reason::HealthRegressed;
    }
    assert_eq!(gate(&update), Reason::UpdateInProgress);
    update.phase = machinist_update::phase::Phase::Failed;
    assert_eq!(gate(&update), Reason::UpdateFailed);
}

/// A user could close the gate at will otherwise: she changes the path faster than it is repaired.
#[test]
fn drift_that_a_user_may_cause_does_not_close_the_gate() {
    let closes = |by_user: bool, is_in_repair: bool| {
        let drift = DriftEntry {
            path: "/home/bob/f".parse().unwrap(),
            kind: DriftKind::Content,
            entry: None,
            kinds: None,
            by_user,
            leased: false,
        };
        let update = UpdateReport {
            drift: vec![drift],
            unverified: is_in_repair,
            repairs_users_path: is_in_repair && by_user,
            ..UpdateReport::default()
        };
        let mut settings =
            machinist_status::settings::load(machinist_status::settings::SettingsInputs::default())
                .unwrap();
        settings.drift.default = DriftPolicy::Repair;
        let devices = DevicesView::default();
        let facts = inputs(&update, &settings, &devices, &HostSignals::default()).config;
        assert_eq!(facts.drifted, ["/home/bob/f"]);
        facts.drift_holds || facts.unverified.is_some()
    };
    assert!(closes(false, false));
    assert!(closes(false, true), "a repair of a path of root's");
    assert!(!closes(true, false));
    assert!(!closes(true, true));
}
