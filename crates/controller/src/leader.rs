//! Acts as the leader: takes the reports of the watches, renders, decides, carries out, and writes the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::{
    condition_keeper::ConditionKeeper,
    eviction_blockers::EvictionBlockers,
    failure_log::log_failure,
    inbox::Inbox,
    monitor::ControllerMonitor,
    node_phases::NodePhases,
    operator_condition::OperatorCondition,
    policy_status::PolicyStatusWriter,
    pool_report::pool_reports,
    pool_status::StatusScope,
    reboot_kinds::RebootKinds,
    renderer::Renderer,
    requests::LeaderRequests,
    rollout::{Rollout, RolloutFacts},
    rollout_view::RolloutView,
    status_writer::StatusWriter,
    unused_config_collector::UnusedConfigCollector,
    upgrade_schedule::UpgradeSchedule,
    watches,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
};
use machinist_cluster::ClusterError;
use machinist_ignition::ConfigRules;
use machinist_kube_api::keys;
use machinist_pool::RebootKind;

/// The shortest time between two turns: thousands of nodes report several times a second.
const MIN_TURN_INTERVAL: Duration = Duration::from_millis(500);

/// The longest time between two turns. The wall clock may be set while a turn waits for a time.
const MAX_TURN_INTERVAL: Duration = Duration::from_secs(600);

/// Wait after a failed turn.
const TURN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What a leader acts by.
#[derive(Clone, Debug)]
pub(crate) struct LeaderSettings {
    pub(crate) rules: ConfigRules,
    pub(crate) own_node: Option<String>,
    pub(crate) condition: Option<Arc<OperatorCondition>>,
}

/// Acts as the leader. It never returns; the caller drops it when the leadership ends.
pub(crate) async fn lead(
    requests: LeaderRequests,
    settings: LeaderSettings,
    monitor: ControllerMonitor,
    clock: Clock,
) {
    let inbox = Arc::new(Inbox::default());
    // The watches end when this is dropped.
    let mut watches = watches::start(requests.cluster(), &inbox);
    let mut leader = Leader {
        requests,
        view: RolloutView::default(),
        reboots: RebootKinds::new(settings.rules.clone()),
        renderer: Renderer::new(settings.rules, monitor.clone()),
        rollout: Rollout::new(clock.clone(), monitor.clone()),
        statuses: StatusWriter::default(),
        policies: PolicyStatusWriter::default(),
        collector: UnusedConfigCollector::new(),
        blockers: EvictionBlockers::default(),
        condition: ConditionKeeper::new(settings.condition),
        own_node: settings.own_node,
        grantors: BTreeSet::new(),
        upgrades: UpgradeSchedule::default(),
        phases: NodePhases::default(),
        known: KnownKinds::default(),
        monitor,
        clock,
    };
    let (mut failures, mut wake) = (0, None);
    loop {
        let earliest = Instant::now() + MIN_TURN_INTERVAL;
        leader.take(&inbox);
        if leader.known.all() {
            leader.monitor.synced();
            leader.monitor.turn_step();
            let turned = leader.turn().await;
            leader.monitor.turn_ended();
            wake = match turned {
                Ok(next) => {
                    failures = 0;
                    next
                }
                Err(error) => {
                    log_failure(&error, failures == 0);
                    let wait = TURN_BACKOFF.wait(failures, jitter());
                    failures = failures.saturating_add(1);
                    let wait = wait.max(error.retry_after().unwrap_or_default());
                    sleep_until(Instant::now() + wait).await;
                    continue;
                }
            };
        }
        let latest = Instant::now() + MAX_TURN_INTERVAL;
        tokio::select! {
            // Cancel-safe: a notification that was not received stays stored.
            () = inbox.arrived.notified() => {}
            // Cancel-safe by its contract. A watch ends only by a panic, which must not leave an old view in use.
            Some(Err(ended)) = watches.join_next() => {
                if ended.is_panic() {
                    std::panic::resume_unwind(ended.into_panic());
                }
            }
            () = sleep_until(wake.map_or(latest, |wake| wake.min(latest))) => {}
        }
        sleep_until(earliest).await;
    }
}

/// Which kinds have been listed. Nothing is done before all are known.
#[derive(Debug, Default)]
struct KnownKinds {
    nodes: bool,
    pools: bool,
    configs: bool,
    budgets: bool,
    grantors: bool,
    /// Not needed to begin.
    policies: bool,
    upgrades: bool,
}

impl KnownKinds {
    fn all(&self) -> bool {
        self.nodes && self.pools && self.configs && self.budgets && self.grantors && self.upgrades
    }
}

#[derive(Debug)]
struct Leader {
    requests: LeaderRequests,
    view: RolloutView,
    renderer: Renderer,
    rollout: Rollout,
    reboots: RebootKinds,
    statuses: StatusWriter,
    policies: PolicyStatusWriter,
    collector: UnusedConfigCollector,
    blockers: EvictionBlockers,
    condition: ConditionKeeper,
    own_node: Option<String>,
    /// ControllerConfigs, by name.
    grantors: BTreeSet<String>,
    upgrades: UpgradeSchedule,
    phases: NodePhases,
    known: KnownKinds,
    monitor: ControllerMonitor,
    clock: Clock,
}

impl Leader {
    /// Takes the reports of the watches.
    fn take(&mut self, inbox: &Inbox) {
        let nodes = inbox.nodes.take();
        self.known.nodes |= nodes.listed.is_some();
        self.view.take_nodes(nodes);
        let pools = inbox.pools.take();
        self.known.pools |= pools.listed.is_some();
        self.view.take_pools(pools);
        let configs = inbox.configs.take();
        self.known.configs |= configs.listed.is_some();
        self.renderer.take_configs(configs);
        let budgets = inbox.budgets.take();
        self.known.budgets |= budgets.listed.is_some();
        self.blockers.take_budgets(budgets);
        // Nothing waits for them: their kind may not exist, or must not be read.
        let policies = inbox.policies.take();
        self.known.policies |= policies.listed.is_some();
        self.policies.take(policies);
        let upgrades = inbox.upgrades.take();
        self.known.upgrades |= upgrades.listed.is_some();
        self.upgrades.take(upgrades);
        let grantors = inbox.grantors.take();
        let before = self.grantors.clone();
        if let Some(listed) = grantors.listed {
            self.known.grantors = true;
            self.grantors = listed.into_iter().collect();
        }
        for (name, object) in grantors.changes {
            match object {
                Some(_) => self.grantors.insert(name),
                None => self.grantors.remove(&name),
            };
        }
        if self.grantors != before {
            match self.other_grantor() {
                Some(object) => tracing::warn!(
                    "{object} shows that OpenShift's controllers run; nothing is granted"
                ),
                None => tracing::info!("no other controller grants updates any more"),
            }
        }
    }

    /// The object that shows that another controller grants updates.
    fn other_grantor(&self) -> Option<String> {
        let name = self.grantors.first()?;
        Some(format!("ControllerConfig.{} {name}", keys::GROUP))
    }

    /// The reboot that each pool's update needs, as far as it is known.
    async fn reboots(&mut self) -> BTreeMap<String, RebootKind> {
        if !self.known.policies {
            return BTreeMap::new();
        }
        let (view, configs) = (&self.view, self.renderer.configs());
        let policies = self.policies.spec();
        self.reboots.turn(view, configs, policies).await
    }

    /// Does everything that is due. Returns when the next turn is due without an event.
    async fn turn(&mut self) -> Result<Option<Instant>, ClusterError> {
        let other_grantor = self.other_grantor();
        let mut wake = Vec::new();
        if other_grantor.is_none() {
            let next = self.renderer.turn(&mut self.view, &self.requests).await;
            wake.extend(next);
            wake.extend(self.policies.turn(&self.requests).await);
        }
        let reboots = self.reboots().await;
        let configs = self.renderer.configs().keys().map(String::as_str);
        let facts = RolloutFacts {
            own_node: self.own_node.as_deref(),
            other_grantor: other_grantor.as_deref(),
            configs: configs.collect(),
            reboots,
            start: self.upgrades.start(),
        };
        let turn = self
            .rollout
            .turn(&mut self.view, &facts, &mut self.blockers, &self.requests)
            .await?;
        let events = self.requests.events();
        events.phases(&mut self.phases, &self.view);
        wake.extend(turn.blockers_due);
        let now = self.clock.now();
        let leadership = self.requests.leadership();
        wake.extend(self.condition.turn(&self.view, leadership, now).await);
        let retry = self.view.next_retry(now);
        wake.extend(
            turn.decision
                .recheck
                .into_iter()
                .chain(retry)
                .map(|at| instant(at, now)),
        );
        wake.extend(turn.is_unfinished.then(Instant::now));
        let scope = match other_grantor {
            None => StatusScope::Whole,
            Some(_) => StatusScope::RolloutConditions,
        };
        let (view, renders) = (&mut self.view, self.renderer.outcomes());
        let statuses = &mut self.statuses;
        let due = statuses
            .write(view, &turn.decision, renders, scope, &self.requests, now)
            .await?;
        wake.extend(due);
        let reports = pool_reports(&self.view, &turn.decision);
        self.monitor.metrics.publish(reports);
        if scope == StatusScope::Whole {
            let due = self
                .collector
                .turn(&self.view, &mut self.renderer, &self.requests)
                .await;
            wake.push(due);
        }
        Ok(wake.into_iter().min())
    }
}

/// The time on the monotonic clock at which the wall clock shows `at`.
fn instant(at: Timestamp, now: Timestamp) -> Instant {
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    Instant::now() + wait.min(MAX_TURN_INTERVAL)
}
