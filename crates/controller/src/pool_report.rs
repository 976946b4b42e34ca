//! Reports the state of each pool at the end of a turn, for metrics.

use std::collections::BTreeMap;

use crate::rollout_view::RolloutView;
use machinist_kube_api::keys::pool_annotation;
use machinist_pool::{Decision, Grant, HoldReason, MachineCounts, PoolGrants, split};

/// The state of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolReport {
    pub(crate) pool: String,
    pub(crate) counts: MachineCounts,
    /// How many of its nodes other pools select, too.
    pub(crate) ambiguous: usize,
    /// The most important hold, if nodes are left, also while the rollout proceeds.
    pub(crate) hold: Option<HoldReason>,
    /// Whether the rollout is held, as in its condition.
    pub(crate) is_held: bool,
    /// What changes when a node of the rollout makes a step.
    pub(crate) progress: RolloutProgress,
}

/// How far a rollout is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutProgress {
    pub(crate) target: Option<String>,
    /// How many nodes are not on the target.
    pub(crate) pending: usize,
    /// The open grants of the pool's nodes: their IDs, and whether they are acknowledged.
    pub(crate) grants: Vec<(String, bool)>,
}

impl PoolReport {
    /// Whether the rollout is to make steps now: nodes are left, and it waits neither for a time nor for an administrator.
    pub(crate) fn is_to_proceed(&self) -> bool {
        let waits_by_request = matches!(
            self.hold,
            Some(
                HoldReason::OtherGrantor
                    | HoldReason::NoConfig
                    | HoldReason::Paused
                    | HoldReason::FirstRollout
                    | HoldReason::NotYetDue
                    | HoldReason::OutsideWindow
                    | HoldReason::CanarySoaking
                    | HoldReason::NodesSkipped
            )
        );
        self.progress.pending > 0 && !waits_by_request
    }
}

/// Reports about all pools.
pub(crate) fn pool_reports(view: &RolloutView, decision: &Decision) -> Vec<PoolReport> {
    let mut grants = BTreeMap::<String, Vec<(String, bool)>>::new();
    for pool in view.pools() {
        let text = pool.annotation(pool_annotation::GRANTS);
        let found: Vec<Grant> = PoolGrants::parse(&pool.name, text)
            .ok()
            .flatten()
            .map(|it| it.grants)
            .unwrap_or_default();
        for grant in found {
            // The record of the control plane pool has the grants of arbiter nodes as well.
            let of_pool = grants.entry(grant.pool).or_default();
            of_pool.push((grant.id, grant.acknowledged));
        }
    }
    let split = split(view.pools(), view.nodes());
    let each = split.pools.iter().filter_map(|members| {
        let name = members.pool.name.as_str();
        let decided = decision.pools.iter().find(|it| it.pool == name)?;
        let condition = decided.rollout_held();
        Some(PoolReport {
            pool: name.to_owned(),
            counts: MachineCounts::of(members),
            ambiguous: members.ambiguous.len(),
            hold: condition.and_then(|it| HoldReason::named(it.reason)),
            is_held: condition.is_some_and(|it| it.status),
            progress: RolloutProgress {
                target: decided.target.clone(),
                pending: decided.pending,
                grants: grants.remove(name).unwrap_or_default(),
            },
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_kube_api::{NodeView, PoolView};

    #[test]
    fn a_custom_role_on_a_control_plane_node_is_reported_for_its_pool() {
        let role = |role: &str| format!("node-role.kubernetes.io/{role}");
        let mut view = RolloutView::default();
        for name in ["infra", "master"] {
            let mut pool = PoolView {
                name: name.to_owned(),
                ..PoolView::default()
            };
            let labels = &mut pool.spec.node_selector.match_labels;
            labels.insert(role(name), String::new());
            view.put_pool(name, Some(pool));
        }
        for (name, roles) in [
            ("a", &["master", "infra"][..]),
            ("b", &["master"]),
            ("c", &["infra"]),
        ] {
            let node = NodeView {
                name: name.to_owned(),
                labels: roles.iter().map(|it| (role(it), String::new())).collect(),
                ..NodeView::default()
            };
            view.put_node(name, Some(node));
        }
        let decision = machinist_pool::decide(&view.inputs(jiff::Timestamp::UNIX_EPOCH));
        let reports = pool_reports(&view, &decision);
        let shown: Vec<_> = reports
            .iter()
            .map(|it| (it.pool.as_str(), it.ambiguous))
            .collect();
        assert_eq!(shown, [("infra", 0), ("master", 1)]);
        let warnings = decision.pools.iter().map(|it| it.warnings.as_slice());
        let named =
            "node a is selected by several pools; it is counted in pool master, not in infra";
        assert_eq!(warnings.collect::<Vec<_>>(), [&[][..], &[named.to_owned()]]);
    }
}
