//! Prometheus metrics of the controller.
//!
//! The state of pools is that of the leader's last turn; a process that is not the leader has none, so that sums over all
//! replicas are correct. Every label has few values: names of pools and configs, codes, verbs and resources, never the
//! names of nodes. `docs/metrics.md` lists all.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{
        MetricType, counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram,
    },
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use crate::pool_report::PoolReport;
use machinist_base::text::escape_line;
use machinist_pool::{GrantOutcome, HoldReason, PoolWrite};

/// Upper bounds of a decision's duration, in seconds: the goal is 10 ms.
const DECISION_BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

/// Upper bounds of a node's update, in seconds: from a restart of a service to a slow drain before a slow reboot.
const UPDATE_BUCKETS: [f64; 9] = [
    30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 4800.0, 14400.0,
];

/// The outcome of a grant that ended without an end mark: its node was deleted, or an administrator declared it free.
const RELEASED: &str = "Released";

/// The results of rollouts beside the codes that stop one.
const ROLLOUT_RESULTS: [&str; 5] = [
    "Completed",
    "Superseded",
    HoldReason::StoppedAfterFailures.as_str(),
    HoldReason::CanaryFailed.as_str(),
    HoldReason::StartDeadlineMissed.as_str(),
];

type Labels = Vec<(&'static str, String)>;
type Durations = Family<Labels, Histogram, fn() -> Histogram>;

/// The end of a notification about a rollout. The names are those of the label.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotificationResult {
    Delivered,
    Failed,
    Dropped,
}

/// All metrics. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub(crate) struct ControllerMetrics {
    registry: Arc<Registry>,
    leader: Arc<Mutex<LeaderState>>,
    rollouts: Family<Labels, Counter>,
    grants: Family<Labels, Counter>,
    render_failures: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
    notifications: Family<Labels, Counter>,
    updates: Durations,
    decisions: Histogram,
}

/// What the leader has found last.
#[derive(Debug, Default)]
struct LeaderState {
    is_leader: bool,
    /// The pools, each with the time of the last step of its rollout.
    pools: Vec<(PoolReport, Instant)>,
}

impl ControllerMetrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("machinist_controller");
        let leader = Arc::new(Mutex::new(LeaderState::default()));
        registry.register_collector(Box::new(LeaderCollector(Arc::clone(&leader))));
        let mut counters = |name: &str, help: &str| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let rollouts = counters("rollouts", "Rollouts that ended, by result");
        let grants = counters("grants", "Grants that ended, by outcome");
        let render_failures = counters("render_failures", "Configs that could not be rendered");
        let requests = counters("api_requests", "Requests to the API server, by status code");
        let help = "Notifications about rollouts, by result";
        let notifications = counters("notifications", help);
        let new: fn() -> Histogram = || Histogram::new(UPDATE_BUCKETS);
        let updates = Durations::new_with_constructor(new);
        registry.register_with_unit(
            "node_update_duration",
            "Time from the grant of a node to the end of its successful update",
            Unit::Seconds,
            updates.clone(),
        );
        let decisions = Histogram::new(DECISION_BUCKETS);
        registry.register_with_unit(
            "decision_duration",
            "Time of a decision about all pools",
            Unit::Seconds,
            decisions.clone(),
        );
        Self {
            registry: Arc::new(registry),
            leader,
            rollouts,
            grants,
            render_failures,
            requests,
            notifications,
            updates,
            decisions,
        }
    }

    /// Records whether this process is the leader.
    pub(crate) fn set_leader(&self, is_leader: bool) {
        let pools = Vec::new();
        *lock(&self.leader) = LeaderState { is_leader, pools };
    }

    /// Replaces the state of all pools.
    pub(crate) fn publish(&self, reports: Vec<PoolReport>) {
        for report in &reports {
            self.begin_counting(&report.pool);
        }
        let now = Instant::now();
        let mut leader = lock(&self.leader);
        let known = std::mem::take(&mut leader.pools);
        let since = |report: &PoolReport| {
            let before = known.iter().find(|(it, _)| it.pool == report.pool);
            let is_same = |it: &&(PoolReport, Instant)| {
                it.0.progress == report.progress && it.0.is_to_proceed()
            };
            before.filter(is_same).map_or(now, |(_, since)| *since)
        };
        leader.pools = reports
            .into_iter()
            .map(|report| {
                let since = since(&report);
                (report, since)
            })
            .collect();
    }

    /// Makes the counters of a pool exist before they count, so that rates over them are correct.
    fn begin_counting(&self, pool: &str) {
        for result in ROLLOUT_RESULTS {
            drop(
                self.rollouts
                    .get_or_create(&of_pool(pool, "result", result)),
            );
        }
        let outcomes = [
            GrantOutcome::Done,
            GrantOutcome::Failed,
            GrantOutcome::RolledBack,
            GrantOutcome::Cancelled,
            GrantOutcome::Declined,
            GrantOutcome::Withdrawn,
        ];
        for outcome in outcomes.iter().map(Some).chain([None]) {
            let labels = of_pool(pool, "outcome", &outcome_name(outcome));
            drop(self.grants.get_or_create(&labels));
        }
        let labels = vec![("pool", pool.to_owned())];
        drop(self.render_failures.get_or_create(&labels));
        drop(self.updates.get_or_create(&labels));
    }

    /// Counts what a write of a pool's record has ended.
    pub(crate) fn wrote(&self, write: &PoolWrite) {
        for edge in &write.ends {
            let result = match ROLLOUT_RESULTS.contains(&edge.result.as_str()) {
                true => edge.result.as_str(),
                false => "Unknown",
            };
            let labels = of_pool(&edge.pool, "result", result);
            self.rollouts.get_or_create(&labels).inc();
        }
        for (grant, end) in &write.freed {
            let outcome = outcome_name(end.as_ref().map(|end| &end.outcome));
            let labels = of_pool(&grant.pool, "outcome", &outcome);
            self.grants.get_or_create(&labels).inc();
            let done = end.as_ref().filter(|it| it.outcome == GrantOutcome::Done);
            if let Some(end) = done {
                let took = end.time.duration_since(grant.time).as_secs_f64();
                let labels = vec![("pool", grant.pool.clone())];
                self.updates.get_or_create(&labels).observe(took.max(0.0));
            }
        }
    }

    /// Counts a refused rendering.
    pub(crate) fn render_failed(&self, pool: &str) {
        let labels = vec![("pool", pool.to_owned())];
        self.render_failures.get_or_create(&labels).inc();
    }

    /// Counts a request; without a code if there was no response.
    pub(crate) fn requested(&self, verb: &str, resource: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let labels = vec![
            ("verb", verb.to_owned()),
            ("resource", resource.to_owned()),
            ("code", code),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a notification.
    pub(crate) fn notified(&self, result: NotificationResult) {
        let labels = vec![("result", format!("{result:?}"))];
        self.notifications.get_or_create(&labels).inc();
    }

    /// Measures a decision.
    pub(crate) fn decided(&self, took: Duration) {
        self.decisions.observe(took.as_secs_f64());
    }

    /// All metrics in the OpenMetrics text format.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        let lines: Vec<_> = page.split('\n').map(escape_line).collect();
        Ok(lines.join("\n"))
    }
}

fn of_pool(pool: &str, label: &'static str, value: &str) -> Labels {
    vec![("pool", pool.to_owned()), (label, value.to_owned())]
}

/// The outcome as a label. Those of a later version have one value: the text is another writer's.
fn outcome_name(outcome: Option<&GrantOutcome>) -> String {
    match outcome {
        None => RELEASED.to_owned(),
        Some(GrantOutcome::Unknown(_)) => "Unknown".to_owned(),
        Some(known) => String::from(known.clone()),
    }
}

fn lock(leader: &Mutex<LeaderState>) -> MutexGuard<'_, LeaderState> {
    leader.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the leader's state at each scrape.
#[derive(Debug)]
struct LeaderCollector(Arc<Mutex<LeaderState>>);

impl Collector for LeaderCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let leader = lock(&self.0);
        let help = "Whether this process is the leader";
        let single = encoder.encode_descriptor("is_leader", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(leader.is_leader)).encode(single)?;
        encode_nodes(&mut encoder, &leader.pools)?;
        encode_rollouts(&mut encoder, &leader.pools)
    }
}

fn labels_of(report: &PoolReport) -> Labels {
    vec![("pool", report.pool.clone())]
}

/// Encodes how many nodes and grants the pools have.
fn encode_nodes(
    encoder: &mut DescriptorEncoder<'_>,
    pools: &[(PoolReport, Instant)],
) -> fmt::Result {
    let counts = pools.iter().flat_map(|(it, _)| {
        let counts = [
            ("total", it.counts.machines),
            ("updated", it.counts.updated),
            ("ready", it.counts.ready),
            ("unavailable", it.counts.unavailable),
            ("degraded", it.counts.degraded),
        ];
        let one = |(state, count)| (of_pool(&it.pool, "state", state), i64::from(count));
        counts.map(one)
    });
    let help = "Nodes of the pool, by state";
    gauge(encoder, ("pool_machines", None), help, counts)?;
    let counted =
        |it: &PoolReport, count| (labels_of(it), i64::try_from(count).unwrap_or(i64::MAX));
    let grants = pools
        .iter()
        .map(|(it, _)| counted(it, it.progress.grants.len()));
    let help = "Open grants of the pool's nodes";
    gauge(encoder, ("pool_grants", None), help, grants)?;
    let ambiguous = pools.iter().map(|(it, _)| counted(it, it.ambiguous));
    let help = "Nodes of the pool that other pools select, too";
    gauge(encoder, ("pool_ambiguous_nodes", None), help, ambiguous)
}

/// Encodes what the rollouts of the pools do.
fn encode_rollouts(
    encoder: &mut DescriptorEncoder<'_>,
    pools: &[(PoolReport, Instant)],
) -> fmt::Result {
    let held = pools.iter().filter_map(|(it, _)| {
        let reason = it.hold.filter(|_| it.is_held)?.as_str();
        Some((of_pool(&it.pool, "reason", reason), 1))
    });
    let help = "Why the pool's rollout waits; always 1, absent while it does not";
    gauge(encoder, ("pool_held", None), help, held)?;
    let targets = pools.iter().filter_map(|(it, _)| {
        let target = it.progress.target.as_deref()?;
        Some((of_pool(&it.pool, "config", target), 1))
    });
    let help = "The config that the pool is to run; always 1";
    gauge(encoder, ("pool_target_info", None), help, targets)?;
    let stuck = pools.iter().map(|(it, since)| {
        let stuck = since.elapsed().as_secs() * u64::from(it.is_to_proceed());
        (labels_of(it), i64::try_from(stuck).unwrap_or(i64::MAX))
    });
    let help = "Time since the last step of a rollout that is to proceed";
    let name = ("pool_stuck", Some(&Unit::Seconds));
    gauge(encoder, name, help, stuck)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    (name, unit): (&str, Option<&Unit>),
    help: &str,
    values: impl Iterator<Item = (Labels, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
