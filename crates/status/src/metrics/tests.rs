use std::collections::BTreeSet;

use jiff::Timestamp;

use super::*;
use crate::{
    Blocker, DeviceStatus, DriftStatus, FailureStatus, Mode, ResourceStatus, VendorStatus,
    readiness::{Gate, GateName},
};
use machinist_base::reason::Reason;

fn status() -> Status {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut status = Status::starting("/", Mode::Machine, now);
    let gate = |name: GateName| Gate {
        name: name.into(),
        open: name != GateName::DiskSpace,
        effect: name.default_effect(),
        since: now,
        reason: Reason::Ok,
        message: String::new(),
    };
    status.gates = GateName::ALL.into_iter().map(gate).collect();
    status.failure = Some(FailureStatus {
        code: Reason::JobFailed,
        message: String::new(),
        retryable: true,
        refusals: Vec::new(),
    });
    status.blockers = vec![Blocker {
        kind: "Pod".to_owned(),
        namespace: "shop".to_owned(),
        name: "db-0".to_owned(),
        reason: Reason::DrainBlockedByBudget,
        message: String::new(),
        since: now,
    }];
    status.config.drift = vec![DriftStatus {
        path: "/etc/a".to_owned(),
        kind: DriftKind::Content,
        entry: None,
        repair_suspended: false,
    }];
    let device = |health: &str| DeviceStatus {
        id: health.to_owned(),
        health: health.to_owned().into(),
        reason: String::new(),
        holder: None,
        ..DeviceStatus::default()
    };
    status.devices = vec![ResourceStatus {
        resource: "acme.dev/fpga".to_owned(),
        source: String::new(),
        serve: "devicePlugin".to_owned(),
        registered: true,
        since: None,
        reason: String::new(),
        devices: vec![
            device("Healthy"),
            device("Unhealthy"),
            DeviceStatus {
                holder: Some("lab/reads/main".to_owned()),
                ..device("Healthy")
            },
        ],
    }]
    .into();
    status.vendors = vec![VendorStatus {
        vendor: "acme".to_owned(),
        ..VendorStatus::default()
    }];
    status
}

fn page() -> (Metrics, watch::Sender<Arc<Status>>) {
    let (sender, receiver) = watch::channel(Arc::new(status()));
    (Metrics::new(receiver), sender)
}

#[test]
fn metrics_match_the_status() {
    let (metrics, sender) = page();
    metrics.update_ended(UpdateOutcomeStatus::Done);
    metrics.registered(false);
    metrics.source_was_read(SourceReadResult::Refused);
    let text = metrics.text().unwrap();
    for line in [
        "machinist_ready 0",
        "machinist_phase{phase=\"Idle\"} 1",
        "machinist_phase_start_time_seconds 1800000000",
        "machinist_failure{reason=\"JobFailed\"} 1",
        "machinist_update_blockers{reason=\"DrainBlockedByBudget\"} 1",
        "machinist_gate_open{gate=\"DiskSpace\"} 0",
        "machinist_gate_open{gate=\"Config\"} 1",
        "machinist_config_pinned 0",
        "machinist_drift_paths{kind=\"content\"} 1",
        "machinist_drift_paths{kind=\"mode\"} 0",
        "machinist_devices{resource=\"acme.dev/fpga\",health=\"Healthy\"} 2",
        "machinist_devices{resource=\"acme.dev/fpga\",health=\"Unhealthy\"} 1",
        "machinist_devices_held{resource=\"acme.dev/fpga\"} 1",
        "machinist_resource_registered{resource=\"acme.dev/fpga\"} 1",
        "machinist_updates_total{outcome=\"Done\"} 1",
        "machinist_updates_total{outcome=\"Failed\"} 0",
        "machinist_kubelet_registrations_total{result=\"failed\"} 1",
        "machinist_source_reads_total{result=\"refused\"} 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    sender.send_modify(|status| Arc::make_mut(status).failure = None);
    let text = metrics.text().unwrap();
    assert!(!text.contains("machinist_failure{"), "{text}");
}

/// The alert is for every code, and shows it.
#[test]
fn an_unreachable_image_fires_the_alert_of_failed_updates() {
    let (metrics, sender) = page();
    sender.send_modify(|status| {
        let failure = Arc::make_mut(status).failure.as_mut();
        failure.unwrap().code = Reason::ImageUnreachable;
    });
    let text = metrics.text().unwrap();
    let line = "machinist_failure{reason=\"ImageUnreachable\"} 1";
    assert!(text.lines().any(|one| one == line), "{text}");
    let rules = include_str!("../../../../packaging/monitoring/alerts.yaml");
    let (_, alert) = rules.split_once("alert: MachinistUpdateFailed\n").unwrap();
    let query = alert.lines().find(|line| line.contains("expr:")).unwrap();
    assert_eq!(query.trim(), "expr: machinist_failure == 1");
}

#[test]
fn hostile_names_and_texts_cannot_control_a_page_of_metrics() {
    const HOSTILE: &str =
        "x\"} 1\n# EOF\nmachinist_ready 1\r\x1b[2J\x07\x7f\u{9b}\u{2028}\u{202e}\u{2066}y";
    let (metrics, sender) = page();
    let lines = metrics.text().unwrap().lines().count();
    sender.send_modify(|status| {
        let status = Arc::make_mut(status);
        let text = || HOSTILE.to_owned();
        status.version = text();
        status.failure.as_mut().unwrap().message = text();
        let blocker = &mut status.blockers[0];
        (blocker.kind, blocker.namespace, blocker.name) = (text(), text(), text());
        blocker.message = text();
        status.config.drift[0].path = text();
        let gate = |gate: &Gate| Gate {
            message: text(),
            ..gate.clone()
        };
        status.gates = status.gates.iter().map(gate).collect();
        let mut resources = status.devices.to_vec();
        let resource = &mut resources[0];
        (resource.resource, resource.source, resource.reason) = (text(), text(), text());
        for device in &mut resource.devices {
            (device.id, device.reason) = (text(), text());
            device.holder = device.holder.as_ref().map(|_| text());
        }
        status.devices = resources.into();
        status.vendors[0].vendor = text();
    });
    let text = metrics.text().unwrap();
    let misleading = |c: char| machinist_base::text::is_misleading(c) && c != '\n';
    assert!(!text.contains(misleading), "{text:?}");
    assert_eq!(text.lines().count(), lines, "{text}");
    assert!(
        text.contains("machinist_vendor_connected{vendor=\"x\\\"} 1\\n# EOF\\n"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line != "machinist_ready 1"),
        "{text}"
    );
}

#[test]
fn documented_metrics_match_the_code() {
    let (metrics, _sender) = page();
    let text = metrics.text().unwrap();
    let mut served = BTreeSet::new();
    let mut kind = "";
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            kind = described.rsplit_once(' ').unwrap().1;
        } else if !line.starts_with('#') {
            let (name, labels) = line
                .rsplit_once(' ')
                .unwrap()
                .0
                .split_once('{')
                .unwrap_or_else(|| (line.rsplit_once(' ').unwrap().0, ""));
            let labels = labels.trim_end_matches('}').split("\",");
            let labels = labels.filter_map(|one| Some(one.split_once('=')?.0));
            let labels = labels.collect::<Vec<_>>().join(", ");
            served.insert(format!("{name} | {kind} | {labels}"));
        }
    }
    let documented: BTreeSet<_> = include_str!("../../../../docs/metrics.md")
        .lines()
        .filter(|line| {
            line.starts_with("| `machinist_") && !line.starts_with("| `machinist_controller_")
        })
        .map(|row| {
            let cells: Vec<_> = row
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect();
            format!("{} | {} | {}", cells[1], cells[2], cells[3])
        })
        .collect();
    assert_eq!(documented, served);
}
