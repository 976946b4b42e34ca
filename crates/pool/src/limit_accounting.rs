//! Counts the nodes that a limit must treat as unavailable.
//!
//! The columns of a pool keep OpenShift's numbers (`MachineCounts`). The limit differs in three points: a drifted node
//! is available as long as it takes pods, a fresh node counts only when it is not ready, and every grant counts until
//! it has ended.

use std::collections::BTreeMap;

use machinist_kube_api::{NodeUpdateState, NodeView};

use super::{NodePoolStatus, node_summary::NodeSummary};

/// Why a node counts against the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnavailableCause {
    /// A pool lists a grant for it.
    Granted,
    /// It has a grant that no pool lists.
    UnlistedGrant,
    /// It is cordoned.
    Cordoned,
    /// Its conditions are not good.
    NotReady,
    /// Its update failed, and it still has the pool's target to reach.
    Failing,
    /// Its update is in progress without a grant.
    Updating,
    /// It has a desired config, and no grant to begin the update.
    AwaitingGrant,
}

impl UnavailableCause {
    /// The cause for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::UnlistedGrant => "with a grant that no pool lists",
            Self::Cordoned => "cordoned",
            Self::NotReady => "not ready",
            Self::Failing => "failing",
            Self::Updating => "updating",
            Self::AwaitingGrant => "waiting for a grant",
        }
    }

    /// Whether the node takes pods and nothing is happening on it, although it counts.
    pub const fn is_in_service(self) -> bool {
        matches!(self, Self::Failing | Self::AwaitingGrant)
    }

    /// Returns why `node`, which has this status, counts against the limit of a pool with this target; `None` if it is
    /// available. `is_granted` is whether any pool lists a grant for it.
    pub fn of(
        node: &NodeView,
        status: &NodePoolStatus,
        target: Option<&str>,
        is_granted: bool,
    ) -> Option<Self> {
        if is_granted {
            return Some(Self::Granted);
        }
        let summary = NodeSummary::of(node);
        Self::of_ungranted(&summary, summary.has_open_grant(node), status, target)
    }

    /// The cause of a node that no pool lists a grant for.
    pub(super) fn of_ungranted(
        node: &NodeSummary<&str>,
        has_open_grant: bool,
        status: &NodePoolStatus,
        target: Option<&str>,
    ) -> Option<Self> {
        if has_open_grant {
            return Some(Self::UnlistedGrant);
        }
        if node.is_cordoned {
            return Some(Self::Cordoned);
        }
        if !status.ready {
            return Some(Self::NotReady);
        }
        match status.managed {
            true if status.failing && node.desired_config == target => Some(Self::Failing),
            true if !status.done && !status.degraded => {
                let is_begun = node.state != Some(NodeUpdateState::Done)
                    || node.desired_config == node.current_config;
                Some(match is_begun {
                    true => Self::Updating,
                    false => Self::AwaitingGrant,
                })
            }
            _ => None,
        }
    }
}

/// The nodes that count against a limit, with the cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailableNodes<'a> {
    causes: BTreeMap<&'a str, UnavailableCause>,
}

impl<'a> UnavailableNodes<'a> {
    /// Collects the members of the limit's pools that are unavailable, and the nodes of the grants that these pools
    /// list: a node keeps its grant when it leaves the pool.
    pub fn new(
        members: impl Iterator<Item = (&'a str, UnavailableCause)>,
        granted: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut causes: BTreeMap<_, _> = members.collect();
        for node in granted {
            causes.entry(node).or_insert(UnavailableCause::Granted);
        }
        Self { causes }
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.causes.len()
    }

    /// Whether all nodes are available.
    pub fn is_empty(&self) -> bool {
        self.causes.is_empty()
    }

    /// Why a node counts.
    pub fn cause(&self, node: &str) -> Option<UnavailableCause> {
        self.causes.get(node).copied()
    }

    /// All nodes with their causes, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, UnavailableCause)> {
        self.causes.iter().map(|(node, cause)| (*node, *cause))
    }
}
