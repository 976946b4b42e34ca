//! Decides what `machinist plan --pool` shows: the change of the rendered config, what each node needs for it, and the
//! rollout as the controller would carry it out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    controller_report::{ControllerReport, ControllerState},
    drain_blockers::DrainBlocker,
    plan_policies::{PlanPolicies, PolicySource},
    report::PoolObjects,
    rollback_plan::{WaitReason, decided, target_of},
    rollout_estimate::{HELD_NOTE, RolloutEstimate, estimate},
};
use machinist_controller::{PreviewConfigs, PreviewedConfig, RenderError, reboot_of};
use machinist_ignition::{ConfigRules, MachineConfig, Refusal};
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};
use machinist_plan::{Action, Cost, Plan, without_machine};
use machinist_pool::{HoldReason, PINNED, ROLLOUT_HELD, RebootKind, split};

/// What a change is planned with, beside the config itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigSource<'a> {
    pub(super) configs: &'a PreviewConfigs,
    /// The rules of the controller.
    pub(super) rules: &'a ConfigRules,
    pub(super) policies: &'a PlanPolicies,
}

/// The document of `plan --pool`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolPlan {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) pool: String,
    /// The config that was rendered last; none if none has been rendered.
    pub(super) from: Option<String>,
    /// The config that would be rendered; none if that is refused.
    pub(super) to: Option<String>,
    /// The MachineConfigs that would be merged, in their order.
    pub(super) sources: Vec<String>,
    /// Those of them that come from the given files.
    pub(super) from_files: Vec<String>,
    /// Why no config would be rendered.
    pub(super) refused: Option<RefusedRender>,
    /// The change of a machine that is on the config of `from`; none if that config cannot be read or the change is
    /// refused.
    pub(super) plan: Option<Plan>,
    /// The disruption policies that the plans are made with.
    pub(super) policies: PolicySource,
    pub(super) nodes: Vec<NodePlan>,
    /// The waves of the rollout; none if they cannot be estimated.
    pub(super) rollout: Option<RolloutEstimate>,
    /// Why no node would be granted now.
    pub(super) waits: Vec<WaitReason>,
    /// Budgets that block the drains now; none if pods or budgets could not be read.
    pub(super) blockers: Option<Vec<DrainBlocker>>,
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Why no config would be rendered.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RefusedRender {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) refusals: Vec<Refusal>,
}

impl RefusedRender {
    pub(super) fn of(error: RenderError) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            refusals: match error {
                RenderError::Refused(refusals) => refusals,
                _ => Vec::new(),
            },
        }
    }
}

/// What the rollout needs on one node.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodePlan {
    pub(super) name: String,
    pub(super) current: Option<String>,
    /// Whether it is on another config.
    pub(super) updates: bool,
    /// None if it depends on the node.
    pub(super) cost: Option<Cost>,
    pub(super) drain: Option<bool>,
    /// The actions, as `Restart chronyd.service`.
    pub(super) actions: Vec<String>,
    /// Why the agent would refuse the config, or could.
    pub(super) refusals: Vec<Refusal>,
    /// Why nothing can be said about it.
    pub(super) unknown: Option<String>,
}

impl PoolPlan {
    /// A plan whose config is refused.
    pub(super) fn refused(pool: &PoolView, refused: RefusedRender) -> Self {
        Self {
            refused: Some(refused),
            ..Self::empty(pool)
        }
    }

    fn empty(pool: &PoolView) -> Self {
        let from = pool.spec.configuration.name.as_str();
        Self {
            api_version: "machinist.dev/v1",
            kind: "PoolPlan",
            pool: pool.name.clone(),
            from: Some(from.to_owned()).filter(|from| !from.is_empty()),
            ..Self::default()
        }
    }

    /// Whether the config or a node changes.
    pub(super) fn has_changes(&self) -> bool {
        self.from != self.to || self.nodes.iter().any(|node| node.updates)
    }

    /// The nodes that a rollout drains, or may drain.
    pub(super) fn drained(&self) -> Vec<&str> {
        let drained = self.nodes.iter();
        let drained = drained.filter(|node| node.updates && node.drain != Some(false));
        drained.map(|node| node.name.as_str()).collect()
    }
}

/// The reboot that the change of the nodes needs; one of the machine if that is not known for every node.
fn reboot_of_nodes(nodes: &[NodePlan]) -> RebootKind {
    let updated = nodes.iter().filter(|node| node.updates);
    let kinds = updated.map(|node| node.cost.map_or(RebootKind::Full, reboot_of));
    kinds.max().unwrap_or_default()
}

/// The reboot that the rollout of a pool's present target needs.
pub(super) fn reboot_of_target(
    objects: &PoolObjects,
    name: &str,
    source: &ConfigSource<'_>,
) -> RebootKind {
    let target = target_of(&objects.pools, name);
    let target = target.map(|target| source.configs.rendered(&target, source.rules));
    let Some(Ok(Some(to))) = target else {
        return RebootKind::Full;
    };
    let mut plans = ConfigPlans {
        to: &to,
        source,
        known: BTreeMap::new(),
    };
    reboot_of_nodes(&plans.of_members(objects, name))
}

/// Plans the rollout of a pool to a config that was rendered for it.
pub(super) fn pool_plan(
    objects: &PoolObjects,
    pool: &PoolView,
    preview: PreviewedConfig,
    source: &ConfigSource<'_>,
    now: Timestamp,
) -> anyhow::Result<PoolPlan> {
    let to = &preview.config;
    let mut plan = PoolPlan {
        to: Some(to.name.clone()),
        sources: preview.sources,
        from_files: preview.manifests,
        policies: source.policies.source,
        warnings: objects.warnings.clone(),
        ..PoolPlan::empty(pool)
    };
    plan.warnings.extend(preview.warnings);
    let mut plans = ConfigPlans {
        to,
        source,
        known: BTreeMap::new(),
    };
    plan.plan = match &plan.from {
        Some(from) => match plans.of(from) {
            Ok(change) => Some(change.clone()),
            Err(unknown) => {
                plan.notes.push(unknown.text(from));
                None
            }
        },
        None => plans.without_config().ok(),
    };
    plan.nodes = plans.of_members(objects, &pool.name);
    plan.add_rollout(objects, &to.name, now)?;
    Ok(plan)
}

impl PoolPlan {
    /// Adds what the controller would do, if the config were rendered now.
    fn add_rollout(
        &mut self,
        objects: &PoolObjects,
        to: &str,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let mut rolled = PoolObjects {
            pools: objects.pools.clone(),
            nodes: objects.nodes.clone(),
            progress: objects.progress.clone(),
            start: objects.start.clone(),
            ..PoolObjects::default()
        };
        let pin = target_of(&objects.pools, &self.pool).filter(|_| {
            let mut pools = objects.pools.iter().filter(|it| it.name == self.pool);
            pools.any(|it| it.annotation(pool_annotation::PINNED_CONFIG).is_some())
        });
        if let Some(pin) = pin {
            self.waits.push(WaitReason {
                code: PINNED,
                message: format!(
                    "the pool is pinned to {pin}: {to} is rendered and not rolled out until machinist resume --pool {}",
                    self.pool
                ),
            });
        }
        for pool in rolled.pools.iter_mut().filter(|it| it.name == self.pool) {
            self.waits.extend(known_to_controller(pool));
            to.clone_into(&mut pool.spec.configuration.name);
            pool.annotations.remove(pool_annotation::PINNED_CONFIG);
        }
        let decision = decided(
            &rolled.pools,
            &rolled.nodes,
            &self.pool,
            &rolled.start(),
            now,
        )?;
        if decision.pending > 0 {
            let holds = decision.holds.into_iter().map(WaitReason::from);
            self.waits.extend(holds);
        }
        match estimate(&rolled, &self.pool, reboot_of_nodes(&self.nodes), now) {
            Ok(mut estimate) => {
                // The plan shows it as a reason to wait.
                estimate.notes.retain(|note| !note.starts_with(HELD_NOTE));
                self.rollout = Some(estimate);
            }
            Err(error) => self
                .notes
                .push(format!("the waves are not known: {error:#}")),
        }
        let controller = ControllerReport::of(objects.lease.as_ref(), now);
        match controller.state {
            ControllerState::Active => {}
            ControllerState::Unknown => self.notes.push(
                "it is not known whether a controller acts: its Lease could not be read".to_owned(),
            ),
            ControllerState::Absent | ControllerState::Silent => self
                .notes
                .push("no controller acts now: nothing is rendered and rolled out".to_owned()),
        }
        Ok(())
    }
}

/// The published reason to wait that a decision made here does not know, and that a new config does not end.
fn known_to_controller(pool: &PoolView) -> Option<WaitReason> {
    let mut conditions = pool.status.conditions.iter();
    let held = conditions.find(|it| it.kind == ROLLOUT_HELD && it.status == "True")?;
    let reason = HoldReason::named(&held.reason)?;
    let is_known = matches!(reason, HoldReason::OtherGrantor | HoldReason::GateClosed);
    is_known.then(|| WaitReason {
        code: reason.as_str(),
        message: held.message.clone(),
    })
}

/// Why the change from a config is not known.
#[derive(Clone, Debug)]
enum UnknownPlan {
    Missing,
    Unreadable(String),
    Refused(Vec<Refusal>),
}

impl UnknownPlan {
    fn text(&self, config: &str) -> String {
        match self {
            Self::Missing => format!("MachineConfig {config} does not exist"),
            Self::Unreadable(why) => format!("MachineConfig {config} cannot be read: {why}"),
            Self::Refused(refusals) => {
                let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                format!(
                    "an agent on {config} would refuse the change: {}",
                    all.join("; ")
                )
            }
        }
    }
}

/// The plans from the configs that nodes are on.
struct ConfigPlans<'a> {
    to: &'a MachineConfig,
    source: &'a ConfigSource<'a>,
    known: BTreeMap<String, Result<Plan, UnknownPlan>>,
}

impl ConfigPlans<'_> {
    fn of(&mut self, config: &str) -> &Result<Plan, UnknownPlan> {
        let Self { to, source, known } = self;
        let ConfigSource { configs, rules, .. } = source;
        known.entry(config.to_owned()).or_insert_with(|| {
            let from = match configs.rendered(config, rules) {
                Ok(Some(from)) => from,
                Ok(None) if to.name == config => (*to).clone(),
                Ok(None) => return Err(UnknownPlan::Missing),
                Err(error) => return Err(UnknownPlan::Unreadable(error.to_string())),
            };
            planned(&from, to, source.policies).map_err(UnknownPlan::Refused)
        })
    }

    /// The change of a machine without a config.
    fn without_config(&self) -> Result<Plan, Vec<Refusal>> {
        planned(&MachineConfig::default(), self.to, self.source.policies)
    }

    /// The plan of each node of a pool.
    fn of_members(&mut self, objects: &PoolObjects, pool: &str) -> Vec<NodePlan> {
        let split = split(&objects.pools, &objects.nodes);
        let members = split.pools.iter().find(|it| it.pool.name == pool);
        let members = members.map(|it| it.nodes.as_slice()).unwrap_or_default();
        members.iter().map(|node| self.node(node)).collect()
    }

    fn node(&mut self, node: &NodeView) -> NodePlan {
        let target = self.to.name.clone();
        let current = node.current_config();
        let found = NodePlan {
            name: node.name.clone(),
            current: current.map(str::to_owned),
            updates: [current, node.desired_config()] != [Some(target.as_str()); 2],
            ..NodePlan::default()
        };
        let Some(current) = current else {
            return NodePlan {
                unknown: Some("the node has no config yet".to_owned()),
                ..found
            };
        };
        match self.of(current) {
            Ok(plan) => NodePlan {
                cost: Some(plan.cost),
                drain: Some(plan.drain),
                actions: plan.actions.iter().map(action).collect(),
                ..found
            },
            Err(UnknownPlan::Refused(refusals)) => NodePlan {
                refusals: refusals.clone(),
                ..found
            },
            Err(unknown) => NodePlan {
                unknown: Some(unknown.text(current)),
                ..found
            },
        }
    }
}

/// Plans a change as an agent does, which refuses every config if the policies are invalid.
fn planned(
    from: &MachineConfig,
    to: &MachineConfig,
    policies: &PlanPolicies,
) -> Result<Plan, Vec<Refusal>> {
    without_machine(from, to, policies.rules.as_ref().map_err(Clone::clone)?)
}

fn action(action: &Action) -> String {
    match &action.unit {
        Some(unit) => format!("{:?} {unit}", action.kind),
        None => format!("{:?}", action.kind),
    }
}
