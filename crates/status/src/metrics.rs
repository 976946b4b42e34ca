//! Prometheus metrics, as a value that is passed down.
//!
//! States (gates, phase, drift, devices) are read from the status at each scrape, so metrics and
//! `status` cannot disagree. Only events are counted. Every label has few values: names of gates,
//! codes and outcomes, and declared resources. `docs/metrics.md` lists all.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use tokio::sync::watch;

use crate::{DriftKind, Status, UpdateOutcomeStatus};
use machinist_base::text::escape_line;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The result of reading the config source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceReadResult {
    /// It contains a usable config.
    Accepted,
    /// It contains a config that was refused.
    Refused,
    /// It could not be read.
    Unreadable,
}

impl SourceReadResult {
    const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::Unreadable];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
        }
    }
}

/// All metrics. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    updates: Family<Labels<1>, Counter>,
    registrations: Family<Labels<1>, Counter>,
    source_reads: Family<Labels<1>, Counter>,
    images: Family<Labels<1>, Gauge>,
}

type Labels<const N: usize> = [(&'static str, &'static str); N];

const UPDATE_OUTCOMES: [UpdateOutcomeStatus; 5] = [
    UpdateOutcomeStatus::Done,
    UpdateOutcomeStatus::AppliedOffline,
    UpdateOutcomeStatus::RolledBack,
    UpdateOutcomeStatus::Withdrawn,
    UpdateOutcomeStatus::Failed,
];

impl Metrics {
    /// Metrics of the agent whose state `status` holds. Counters start at zero and all exist from the first scrape
    /// on, so that rates over them are correct.
    pub fn new(status: watch::Receiver<Arc<Status>>) -> Self {
        let mut registry = Registry::with_prefix("machinist");
        registry.register_collector(Box::new(StatusCollector(status)));
        let mut family = |name: &str, help: &str, values: &[Labels<1>]| {
            let family = Family::<Labels<1>, Counter>::default();
            for labels in values {
                drop(family.get_or_create(labels));
            }
            registry.register(name, help, family.clone());
            family
        };
        let outcomes = UPDATE_OUTCOMES.map(outcome);
        let updates = family("updates", "Updates that ended, by outcome", &outcomes);
        let registrations = family(
            "kubelet_registrations",
            "Registrations of a resource with the kubelet, by result",
            &[true, false].map(registration),
        );
        let source_reads = family(
            "source_reads",
            "Reads of the config source, by result",
            &SourceReadResult::ALL.map(source_read),
        );
        let images = Family::<Labels<1>, Gauge>::default();
        for is_present in [true, false] {
            drop(images.get_or_create(&image(is_present)));
        }
        registry.register(
            "pinned_images",
            "Images of the node's PinnedImageSets, by state",
            images.clone(),
        );
        Self {
            registry: Arc::new(registry),
            updates,
            registrations,
            source_reads,
            images,
        }
    }

    /// Sets how many images of PinnedImageSets are present, and how many are not.
    pub fn set_pinned_images(&self, present: usize, missing: usize) {
        for (is_present, count) in [(true, present), (false, missing)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.images.get_or_create(&image(is_present)).set(count);
        }
    }

    /// Counts a finished update.
    pub fn update_ended(&self, how: UpdateOutcomeStatus) {
        self.updates.get_or_create(&outcome(how)).inc();
    }

    /// Counts an attempt to register a resource with the kubelet.
    pub fn registered(&self, accepted: bool) {
        let labels = registration(accepted);
        self.registrations.get_or_create(&labels).inc();
    }

    /// Counts a read of the config source.
    pub fn source_was_read(&self, how: SourceReadResult) {
        self.source_reads.get_or_create(&source_read(how)).inc();
    }

    /// All metrics in the OpenMetrics text format. Labels with names from elsewhere cannot control a
    /// terminal or look like other lines.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        let lines: Vec<_> = page.split('\n').map(escape_line).collect();
        Ok(lines.join("\n"))
    }
}

const fn outcome(how: UpdateOutcomeStatus) -> Labels<1> {
    [("outcome", how.as_str())]
}

const fn image(is_present: bool) -> Labels<1> {
    let state = if is_present { "present" } else { "missing" };
    [("state", state)]
}

const fn registration(accepted: bool) -> Labels<1> {
    let result = if accepted { "accepted" } else { "failed" };
    [("result", result)]
}

const fn source_read(how: SourceReadResult) -> Labels<1> {
    [("result", how.as_str())]
}

/// Reads the status at each scrape.
#[derive(Debug)]
struct StatusCollector(watch::Receiver<Arc<Status>>);

impl Collector for StatusCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = Arc::clone(&self.0.borrow());
        let mut page = MetricsEncoder(encoder);
        agent(&mut page, &status)?;
        blockers(&mut page, &status)?;
        gates(&mut page, &status)?;
        devices(&mut page, &status)?;
        vendors(&mut page, &status)
    }
}

fn agent(page: &mut MetricsEncoder<'_>, status: &Status) -> fmt::Result {
    let version = [("version", status.version.as_str())];
    page.gauge(
        "build_info",
        "The running version; always 1",
        [(version, 1)],
    )?;
    let ready = i64::from(status.ready);
    page.single("ready", "Whether no blocking gate is closed", None, ready)?;
    let phase = [("phase", status.phase.as_str())];
    page.gauge("phase", "The phase of the update; always 1", [(phase, 1)])?;
    page.single(
        "phase_start_time",
        "When that phase began, in seconds since 1970",
        Some(Unit::Seconds),
        status.since.as_second(),
    )?;
    let failure = status.failure.iter();
    page.gauge(
        "failure",
        "The last update failed with this code; absent when it did not",
        failure.map(|failure| ([("reason", failure.code.as_str())], 1)),
    )?;
    let pinned = i64::from(status.held.is_some());
    let help = "Whether a rollback or a command pins the machine to a config";
    page.single("config_pinned", help, None, pinned)?;
    let drift = &status.config.drift;
    let of = |kind| drift.iter().filter(|one| one.kind == kind).count();
    page.gauge(
        "drift_paths",
        "Paths that are not as configured",
        DRIFT_KINDS.map(|kind| ([("kind", kind.as_str())], count(of(kind)))),
    )
}

/// By reason and not by name, since pods have many names.
fn blockers(page: &mut MetricsEncoder<'_>, status: &Status) -> fmt::Result {
    let mut waits = BTreeMap::<&str, usize>::new();
    for blocker in &status.blockers {
        *waits.entry(blocker.reason.as_str()).or_default() += 1;
    }
    let waits = waits.into_iter();
    page.gauge(
        "update_blockers",
        "Blockers of the update, by reason",
        waits.map(|(reason, many)| ([("reason", reason)], count(many))),
    )
}

const DRIFT_KINDS: [DriftKind; 9] = [
    DriftKind::Content,
    DriftKind::Mode,
    DriftKind::Owner,
    DriftKind::Label,
    DriftKind::Missing,
    DriftKind::Unit,
    DriftKind::Unreachable,
    DriftKind::Unsafe,
    DriftKind::KernelArgument,
];

fn gates(page: &mut MetricsEncoder<'_>, status: &Status) -> fmt::Result {
    let gates = status.gates.iter();
    page.gauge(
        "gate_open",
        "Whether this gate is open",
        gates.map(|gate| ([("gate", gate.name.as_str())], i64::from(gate.open))),
    )
}

fn devices(page: &mut MetricsEncoder<'_>, status: &Status) -> fmt::Result {
    let resources = &status.devices;
    let counted = resources.iter().flat_map(|resource| {
        ["Healthy", "Unhealthy"].map(|health| {
            let devices = resource.devices.iter();
            let number = devices.filter(|one| one.health == health).count();
            let labels = [("resource", resource.resource.as_str()), ("health", health)];
            (labels, count(number))
        })
    });
    page.gauge("devices", "Devices by health", counted)?;
    page.gauge(
        "devices_held",
        "Devices held by a container, as last reported by the kubelet",
        resources.iter().map(|resource| {
            let devices = resource.devices.iter();
            let held = devices.filter(|one| one.holder.is_some()).count();
            ([("resource", resource.resource.as_str())], count(held))
        }),
    )?;
    page.gauge(
        "resource_registered",
        "Whether this resource is registered with the kubelet",
        resources.iter().map(|resource| {
            let labels = [("resource", resource.resource.as_str())];
            (labels, i64::from(resource.registered))
        }),
    )
}

fn vendors(page: &mut MetricsEncoder<'_>, status: &Status) -> fmt::Result {
    let vendors = &status.vendors;
    page.gauge(
        "vendor_connected",
        "Whether this vendor's device driver is connected",
        vendors.iter().map(|one| {
            let labels = [("vendor", one.vendor.as_str())];
            (labels, i64::from(one.connected))
        }),
    )?;
    page.counter(
        "vendor_sessions",
        "Sessions of this vendor's device driver that were accepted",
        vendors
            .iter()
            .map(|one| ([("vendor", one.vendor.as_str())], one.sessions)),
    )?;
    page.counter(
        "vendor_refused",
        "Connections, sessions and messages of this vendor that were refused",
        vendors
            .iter()
            .map(|one| ([("vendor", one.vendor.as_str())], one.refused)),
    )
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

struct MetricsEncoder<'a>(DescriptorEncoder<'a>);

impl MetricsEncoder<'_> {
    fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, i64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn single(&mut self, name: &str, help: &str, unit: Option<Unit>, value: i64) -> fmt::Result {
        let unit = unit.as_ref();
        let single = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(single)
    }
}

#[cfg(test)]
mod tests;
