use super::*;
use crate::readiness::{Gate, GateEffect, GateName};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn gate(name: GateName, open: bool, reason: Reason, message: &str) -> Gate {
    Gate {
        name: name.into(),
        open,
        effect: name.default_effect(),
        since: at("2026-11-21T10:00:00Z"),
        reason,
        message: message.to_owned(),
    }
}

fn gates() -> Gates {
    let mut time = gate(
        GateName::TimeSync,
        true,
        Reason::SignalMissing,
        "no responder",
    );
    time.effect = GateEffect::Off;
    [
        gate(
            GateName::Config,
            false,
            Reason::UpdateInProgress,
            "machine-2 is applied, not verified yet",
        ),
        gate(
            GateName::DiskSpace,
            false,
            Reason::DiskSpaceLow,
            "/var has 3% (900 MiB) free",
        ),
        gate(GateName::Pressure, true, Reason::Ok, "below the thresholds"),
        time,
    ]
    .into_iter()
    .collect()
}

fn blockers() -> Vec<Blocker> {
    vec![Blocker {
        kind: "Inhibitor".to_owned(),
        namespace: String::new(),
        name: "backup".to_owned(),
        reason: Reason::RebootInhibited,
        message: "a backup is running".to_owned(),
        since: at("2026-11-21T11:59:00Z"),
    }]
}

fn devices() -> Vec<ResourceStatus> {
    vec![ResourceStatus {
        resource: "machinist.dev/fuse".to_owned(),
        source: "fuse.yaml".to_owned(),
        serve: "devicePlugin".to_owned(),
        registered: true,
        since: None,
        reason: String::new(),
        devices: vec![
            DeviceStatus {
                id: "fuse-0".to_owned(),
                health: "Healthy".into(),
                reason: String::new(),
                holder: Some("default/pod".to_owned()),
                ..DeviceStatus::default()
            },
            DeviceStatus {
                id: "fuse-1".to_owned(),
                health: "Unhealthy".into(),
                reason: "/dev/fuse does not exist".to_owned(),
                holder: None,
                ..DeviceStatus::default()
            },
        ],
    }]
}

fn updates() -> Vec<UpdateStatus> {
    vec![UpdateStatus {
        id: "0001".to_owned(),
        from: None,
        to: "machine-1".to_owned(),
        digest: "sha256:11".to_owned(),
        started: at("2026-11-20T12:00:00Z"),
        finished: Some(at("2026-11-20T12:01:05Z")),
        outcome: Some(UpdateOutcomeStatus::RolledBack),
        reason: Some(Reason::JobFailed),
        phases: vec![PhaseStatus {
            name: "Staging".to_owned(),
            started: at("2026-11-20T12:00:00Z"),
            finished: None,
        }],
        actions: vec![ActionStatus {
            kind: "Restart".to_owned(),
            unit: Some("chronyd.service".to_owned()),
            state: "Started".to_owned(),
        }],
        left_behind: vec!["/home/bob/app.conf: a link".to_owned()],
    }]
}

/// A status with one of every kind of entry.
fn full() -> Status {
    let mut status = Status::starting("/", Mode::Machine, at("2026-11-21T12:00:00Z"));
    status.version = "9.9.9".to_owned();
    status.source = "dir:/etc/machinist/machine.d".to_owned();
    status.admin = "127.0.0.1:10480".to_owned();
    status.phase = "RunningActions".to_owned();
    status.failure = Some(FailureStatus {
        code: Reason::JobFailed,
        message: "chronyd.service: the restart failed".to_owned(),
        retryable: true,
        refusals: Vec::new(),
    });
    status.held = Some(PinStatus {
        config: "machine-2".to_owned(),
        digest: "sha256:22".to_owned(),
        by: "rollback".to_owned(),
        since: at("2026-11-21T12:00:02Z"),
    });
    status.requested = 1;
    status.config = ConfigStatus {
        desired_digest: "sha256:22".to_owned(),
        current: "machine-1".to_owned(),
        desired: "machine-2".to_owned(),
        digest: "sha256:00ff".to_owned(),
        warnings: vec!["a.yaml:9:5: filesystem has no effect in 3.5.0".to_owned()],
        plan_warnings: vec![
            "a.service cannot start: it requires b.service, which is masked".to_owned(),
        ],
        drift: vec![DriftStatus {
            path: "/etc/chrony.conf".to_owned(),
            kind: DriftKind::Content,
            entry: None,
            repair_suspended: false,
        }],
        labels_pending: vec!["/etc/ours.conf".to_owned()],
    };
    status.gates = gates();
    status.blockers = blockers();
    status.devices = devices().into();
    status.vendors = vec![VendorStatus {
        vendor: "acme".to_owned(),
        connected: true,
        instance: Some("one".to_owned()),
        sessions: 2,
        refused: 1,
        last_reason: Some("generation 1 is older than 2".to_owned()),
        ..VendorStatus::default()
    }];
    status.device_problems = vec!["bad.yaml: it is not UTF-8 text [SourceUnreadable]".to_owned()];
    status.orphaned_resources = vec!["acme.dev/gone".to_owned()];
    status.updates = updates();
    status
}

#[test]
fn status_json_matches_the_snapshot() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&full()).unwrap());
}

#[test]
fn status_page_matches_the_snapshot() {
    let page = render(&full(), at("2026-11-21T12:05:02Z"));
    insta::assert_snapshot!(anstream::adapter::strip_str(&page).to_string());
}

#[test]
fn status_json_writes_missing_values_as_null() {
    let status = Status::starting("./sandbox", Mode::Offline, at("2026-11-21T12:00:00Z"));
    let value = serde_json::to_value(&status).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    let mut promised = [
        "apiVersion",
        "kind",
        "version",
        "node",
        "root",
        "mode",
        "source",
        "admin",
        "ready",
        "phase",
        "since",
        "failure",
        "config",
        "held",
        "requested",
        "gates",
        "blockers",
        "devices",
        "deviceProblems",
        "holdersUnknown",
        "orphanedResources",
        "vendors",
        "updates",
    ];
    promised.sort_unstable();
    assert_eq!(keys, promised);
    assert!(value["node"].is_null() && value["failure"].is_null());
    assert_eq!(value["mode"], "offline");
    assert_eq!(value["since"], "2026-11-21T12:00:00Z");
}

#[test]
fn the_status_of_an_agent_of_an_earlier_version_is_read() {
    let mut text = serde_json::to_string(&full()).unwrap();
    for (today, former) in [
        ("\"retryable\":", "\"again\":"),
        ("\"requested\":", "\"asked\":"),
        ("\"orphanedResources\":", "\"zeroResources\":"),
    ] {
        assert!(text.contains(today), "{today}");
        text = text.replace(today, former);
    }
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), full());
}

#[test]
fn status_json_round_trips() {
    let status = full();
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
}

#[test]
fn the_status_summary_names_the_current_phase() {
    assert_eq!(
        full().summary(),
        "RunningActions; not ready: Config (machine-2 is applied, not verified yet)"
    );
}

#[test]
fn a_download_has_a_status_line() {
    let mut status = full();
    status.download = Some(DownloadStatus {
        received_bytes: Some(310 << 20),
        layers: 3,
        needed_layers: Some(12),
        needed_size: Some("1.2 GB".to_owned()),
    });
    let text = render(&status, at("2026-11-21T12:00:10Z"));
    let line = text.lines().find(|line| line.contains("download"));
    assert_eq!(
        line.unwrap().trim(),
        "download 3 of 12 layers (1.2 GB), 310 MiB received"
    );
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["download"]["receivedBytes"], 325_058_560);
}

#[test]
fn every_refusal_of_a_config_has_a_status_line() {
    let mut status = full();
    let refusals = (1..=10).map(|line| Refusal {
        line: Some(line),
        column: Some(1),
        ..Refusal::new(Reason::ValueInvalid, "this is bad; really [so]; so").file("a.yaml")
    });
    let refusals: Vec<_> = refusals.collect();
    let message = refused_message(&refusals);
    status.failure = Some(FailureStatus {
        code: Reason::ValueInvalid,
        message: message.clone(),
        retryable: false,
        refusals: refusals.clone(),
    });
    let page = render(&status, at("2026-11-21T12:05:02Z"));
    let page = anstream::adapter::strip_str(&page).to_string();
    let shown: Vec<_> = page.lines().skip(2).take(9).collect();
    let first = "  failure  ValueInvalid: the config is refused: a.yaml:1:1: this is bad; really";
    assert_eq!(shown[..2], [first, "           [so]; so [ValueInvalid]"]);
    assert_eq!(
        shown[2],
        "           a.yaml:2:1: this is bad; really [so]; so [ValueInvalid]"
    );
    assert!(
        page.contains("\n           and 2 more: run machinist plan for all\n"),
        "{page}"
    );
    let found = super::explain(&status, "auto");
    assert_eq!(found[9].message, refusals[9].to_string());
    assert!(found[8].advice.is_empty() && !found[9].advice.is_empty());
    let short = super::in_short(&message, &refusals);
    assert_eq!(
        short,
        "the config is refused: a.yaml:1:1: this is bad; really [so]; so [ValueInvalid] and 9 more, see machinist status"
    );
}

fn refused_message(refusals: &[Refusal]) -> String {
    let all: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    format!("the config is refused: {}", all.join("; "))
}

#[test]
fn a_failure_of_a_version_without_the_list_is_shown_as_one_sentence() {
    let text = r#"{"code": "ValueInvalid", "message": "a [ValueInvalid]; b [ValueInvalid]", "retryable": false}"#;
    let failure: FailureStatus = serde_json::from_str(text).unwrap();
    assert!(failure.refusals.is_empty());
    let shown = super::sentences(&failure.message, &failure.refusals);
    assert_eq!(shown, [failure.message.as_str()]);
    assert_eq!(super::in_short(&failure.message, &[]), failure.message);
}

#[test]
fn a_suspended_repair_is_shown_with_its_cause() {
    let mut status = Status::starting("/", Mode::Machine, at("2026-11-21T12:00:00Z"));
    let differs = |path: &str, repair_suspended| DriftStatus {
        path: path.to_owned(),
        kind: DriftKind::Content,
        entry: None,
        repair_suspended,
    };
    status.config.drift = vec![differs("/etc/a", false), differs("/etc/b", true)];
    let page = render(&status, at("2026-11-21T12:05:02Z"));
    let page = anstream::adapter::strip_str(&page).to_string();
    assert!(
        page.contains("  drift    /etc/b (content, repair suspended)\n"),
        "{page}"
    );
    let found = super::explain(&status, "auto");
    let drift: Vec<_> = found
        .iter()
        .filter(|it| it.message.contains("not as configured"))
        .collect();
    assert_eq!(drift.len(), 1, "{found:?}");
    let message = &drift[0].message;
    assert!(
        message.starts_with("/etc/b is") && message.contains("another program changed it again"),
        "{message}"
    );
}
