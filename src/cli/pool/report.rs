//! Reports pools with their rollouts: target, grants, and each node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    controller_report::ControllerReport,
    decision::decision,
    grants::{NodeGrant, grants_by_node},
};
use crate::cli::fleet::{self, NodePart, PoolNotFound, annotations, or_warn};
use machinist_cluster::{Cluster, ControllerLease, Fleet, fleet_queries};
use machinist_kube_api::{
    Condition, MachineConfigNodeStatus, NodeView, PoolView,
    keys::{annotation, pool_annotation},
};
use machinist_pool::{
    HoldReason, NodePoolStatus, PINNED, PoolDecision, PoolMembers, ROLLOUT_HELD, RolloutStart,
    max_unavailable, split,
};

/// Conditions that repeat what other fields of the report show.
const SHOWN_ELSEWHERE: [&str; 4] = ["Updated", "Updating", ROLLOUT_HELD, PINNED];

/// The objects that a report is made of.
#[derive(Debug, Default)]
pub(super) struct PoolObjects {
    pub(super) pools: Vec<PoolView>,
    pub(super) nodes: Vec<NodeView>,
    pub(super) progress: BTreeMap<String, MachineConfigNodeStatus>,
    /// The Lease, if there is one; none if it could not be read.
    pub(super) lease: Option<Option<ControllerLease>>,
    /// When nodes may begin; none if it could not be read.
    pub(super) start: Option<RolloutStart>,
    pub(super) warnings: Vec<String>,
}

impl PoolObjects {
    /// Reads all pools and nodes; an error if the pool `name` is not among them.
    pub(super) async fn read(cluster: &Cluster, name: Option<&str>) -> anyhow::Result<Self> {
        let pools = fleet_queries::pools(cluster).await?;
        let pools = with_pool(pools, name)?;
        let nodes = fleet_queries::nodes(cluster).await?;
        let mut warnings = Vec::new();
        let progress = fleet::progress(cluster, &mut warnings).await?;
        let lease = or_warn(cluster.controller_lease().await, &mut warnings)?;
        Ok(Self {
            pools,
            nodes,
            progress,
            lease,
            start: cluster.rollout_start().await?,
            warnings,
        })
    }

    /// What a watch continues with.
    pub(super) fn fleet(&self) -> Fleet {
        let pools = self.pools.iter();
        let nodes = self.nodes.iter();
        Fleet {
            pools: pools.map(|it| (it.name.clone(), it.clone())).collect(),
            nodes: nodes.map(|it| (it.name.clone(), it.clone())).collect(),
            progress: self.progress.clone(),
        }
    }

    /// Takes over what a watch has seen; an error if the pool `name` was deleted.
    pub(super) fn put_fleet(&mut self, fleet: Fleet, name: Option<&str>) -> anyhow::Result<()> {
        self.pools = with_pool(fleet.pools.into_values().collect(), name)?;
        self.nodes = fleet.nodes.into_values().collect();
        self.progress = fleet.progress;
        Ok(())
    }

    /// Reads again when nodes may begin, and which controller acts. Keeps what is known if the API server does not
    /// answer: the watches report that.
    pub(super) async fn read_start(&mut self, cluster: &Cluster) {
        if let Ok(lease) = cluster.controller_lease().await {
            self.lease = Some(lease);
        }
        if let Ok(start) = cluster.rollout_start().await {
            self.start = start;
        }
    }

    /// When nodes may begin, as far as it is known.
    pub(super) fn start(&self) -> RolloutStart {
        self.start.clone().unwrap_or_default()
    }
}

/// The pools, if the pool `name` is among them.
fn with_pool(pools: Vec<PoolView>, name: Option<&str>) -> Result<Vec<PoolView>, PoolNotFound> {
    match name.filter(|name| pools.iter().all(|pool| pool.name != *name)) {
        Some(name) => Err(PoolNotFound::new(name, pools)),
        None => Ok(pools),
    }
}

/// The document of `pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolProgress {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) controller: ControllerReport,
    pub(super) pools: Vec<PoolRollout>,
    pub(super) warnings: Vec<String>,
}

/// One pool with its rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolRollout {
    pub(super) name: String,
    /// The config that its nodes are to run, with its pin; none if none has been rendered.
    pub(super) target: Option<String>,
    pub(super) pinned: bool,
    pub(super) paused: bool,
    pub(super) pause_reason: Option<String>,
    /// How many nodes are on the target.
    pub(super) updated: usize,
    pub(super) machines: usize,
    /// None if the value is not a valid limit; a warning reports that.
    pub(super) max_unavailable: Option<usize>,
    /// Why no further node begins: as published, or else as the decision about these objects.
    pub(super) held: Option<HeldRollout>,
    /// Other conditions that are true, as published.
    pub(super) conditions: Vec<TrueCondition>,
    /// The nodes that are granted next, in order; not all if there are many.
    pub(super) next: Vec<String>,
    /// Grants whose Node does not exist.
    pub(super) grants_without_node: Vec<NodeGrant>,
    pub(super) nodes: Vec<NodeRollout>,
}

/// Why a rollout is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct HeldRollout {
    pub(super) code: String,
    pub(super) message: String,
    /// Whether the controller has published it.
    pub(super) published: bool,
}

/// A condition that is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TrueCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// One node of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRollout {
    #[serde(flatten)]
    pub(super) node: NodePart,
    /// The running step of the update, and its message.
    pub(super) phase: Option<String>,
    pub(super) phase_message: Option<String>,
    /// When the agent last confirmed one of its conditions.
    pub(super) last_heartbeat_time: Option<Timestamp>,
    pub(super) grant: Option<NodeGrant>,
    /// Whether an administrator left it out of the rollout of the target.
    pub(super) skipped: bool,
}

impl PoolProgress {
    /// Reports the pool `name`, or all pools.
    pub(super) fn of(objects: &PoolObjects, name: Option<&str>, now: Timestamp) -> Self {
        let controller = ControllerReport::of(objects.lease.as_ref(), now);
        let decision = decision(&objects.pools, &objects.nodes, &objects.start(), now);
        let grants = grants_by_node(&objects.pools, &objects.nodes);
        let split = split(&objects.pools, &objects.nodes);
        let mut warnings = objects.warnings.clone();
        let mut pools = Vec::new();
        let members = split.pools.iter();
        for (members, decided) in members.zip(&decision.pools) {
            if name.is_some_and(|name| name != members.pool.name) {
                continue;
            }
            warnings.extend(decided.warnings.iter().cloned());
            let machines = members.nodes.len();
            let limit = max_unavailable(members.pool, machines);
            warnings.extend(limit.as_ref().err().map(ToString::to_string));
            let mut pool = PoolRollout::of(members, decided, objects, &grants.by_node);
            pool.max_unavailable = limit.ok().map(|limit| limit.at_most);
            let missing = grants.without_node.iter();
            let missing = missing.filter(|grant| grant.pool == pool.name);
            pool.grants_without_node = missing.cloned().collect();
            pools.push(pool);
        }
        warnings.extend(grants.warnings);
        Self {
            api_version: "machinist.dev/v1",
            kind: "PoolProgress",
            controller,
            pools,
            warnings,
        }
    }
}

impl PoolProgress {
    /// The same report without the times at which the controller and agents report that nothing has changed.
    pub(super) fn without_times(&self) -> Self {
        let mut report = self.clone();
        report.controller.renewed = None;
        for node in report.pools.iter_mut().flat_map(|pool| &mut pool.nodes) {
            node.last_heartbeat_time = None;
        }
        report
    }
}

impl PoolRollout {
    fn of(
        members: &PoolMembers<'_>,
        decided: &PoolDecision,
        objects: &PoolObjects,
        grants: &BTreeMap<String, NodeGrant>,
    ) -> Self {
        let pool = members.pool;
        let target = decided.target.as_deref();
        let is_updated = |node: &&&NodeView| NodePoolStatus::of(node, target).updated;
        let text = |name| pool.annotation(name).map(str::to_owned);
        let conditions = pool.status.conditions.iter();
        let shown =
            |it: &&Condition| it.status == "True" && !SHOWN_ELSEWHERE.contains(&it.kind.as_str());
        let nodes = members.nodes.iter();
        Self {
            name: pool.name.clone(),
            target: decided.target.clone(),
            pinned: pool.annotation(pool_annotation::PINNED_CONFIG).is_some(),
            paused: pool.spec.paused,
            pause_reason: text(pool_annotation::PAUSE_REASON).filter(|_| pool.spec.paused),
            updated: nodes.clone().filter(is_updated).count(),
            machines: members.nodes.len(),
            max_unavailable: None,
            held: held(pool, decided),
            conditions: conditions
                .filter(shown)
                .map(|it| TrueCondition {
                    kind: it.kind.clone(),
                    reason: it.reason.clone(),
                    message: it.message.clone(),
                })
                .collect(),
            next: decided.next.clone(),
            grants_without_node: Vec::new(),
            nodes: nodes
                .map(|node| {
                    let progress = objects.progress.get(node.name.as_str());
                    let grant = grants.get(node.name.as_str()).cloned();
                    NodeRollout::of(node, target, progress, grant)
                })
                .collect(),
        }
    }
}

/// Why the rollout is held. The published condition knows more than a decision that is made here, such as gates and
/// other controllers.
fn held(pool: &PoolView, decided: &PoolDecision) -> Option<HeldRollout> {
    let conditions = pool.status.conditions.iter();
    let mut published = conditions.filter(|it| it.kind == ROLLOUT_HELD);
    if let Some(found) = published.next() {
        // The soak time of the canary is a step of the rollout, but no node begins meanwhile.
        let is_soaking = found.reason == HoldReason::CanarySoaking.as_str();
        return (found.status == "True" || is_soaking).then(|| HeldRollout {
            code: found.reason.clone(),
            message: found.message.clone(),
            published: true,
        });
    }
    let found = decided.rollout_held().filter(|it| it.status)?;
    Some(HeldRollout {
        code: found.reason.to_owned(),
        message: found.message.clone(),
        published: false,
    })
}

impl NodeRollout {
    fn of(
        node: &NodeView,
        target: Option<&str>,
        progress: Option<&MachineConfigNodeStatus>,
        grant: Option<NodeGrant>,
    ) -> Self {
        let (phase, phase_message) = progress.and_then(annotations::step).unzip();
        Self {
            node: NodePart::of(node, target, progress),
            phase,
            phase_message,
            last_heartbeat_time: node.agent_heartbeat(),
            grant,
            skipped: target.is_some() && node.annotation(annotation::SKIP_ROLLOUT) == target,
        }
    }
}
