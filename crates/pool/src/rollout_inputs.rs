//! What a decision about rollouts is made on.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use jiff::{SignedDuration, Timestamp};

use machinist_kube_api::{NodeView, PoolView};

use super::{NodeFacts, RebootKind, SharedNames};

/// How long a machine may take to reboot before it counts as failed: the default of the agents' own limit.
const REBOOT_TIME_LIMIT: SignedDuration = SignedDuration::from_mins(30);

/// How a pool was read. What is not set is not known, which is always safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolRead {
    /// It was read from the API server, or returned by a write, after the nodes were read. Then a grant that it lists
    /// was still listed when the nodes had the versions that patches test.
    pub is_confirmed: bool,
    /// This leader has rebuilt its grants, or read its first list of nodes after the pool, and the annotation has not
    /// been missing since.
    pub is_rebuilt: bool,
    /// The nodes were listed from the API server after it was read: then no grant that was placed before is missed.
    pub is_listed: bool,
    /// The last write was accepted, but its response did not hold the grants.
    pub is_not_kept: bool,
}

/// The result of a read of one Node from the API server, after all pools were read: it is newer than what any pool lists.
/// It is forgotten when a pool changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRead {
    /// The Node is among the nodes as it was read.
    Exists,
    /// The Node does not exist.
    Absent,
}

/// A gate between grants that an adapter evaluates, such as disruption budgets that have not recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedGate {
    /// The pool that waits; all if unset.
    pub pool: Option<String>,
    /// One sentence.
    pub message: String,
}

/// When nodes may begin their updates, as an UpgradeConfig sets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RolloutStart {
    /// No time is set.
    #[default]
    Anytime,
    /// `upgradeAt`: from then on.
    NotBefore(Timestamp),
    /// The time cannot be parsed, so that nothing begins. The message names the object, the field, its value and the
    /// expected form.
    Invalid(String),
}

impl RolloutStart {
    /// The time that is set.
    pub(super) const fn time(&self) -> Option<Timestamp> {
        match self {
            Self::NotBefore(time) => Some(*time),
            Self::Anytime | Self::Invalid(_) => None,
        }
    }
}

/// Everything that a decision depends on.
#[derive(Clone, Debug)]
pub struct RolloutInputs<'a> {
    /// All pools.
    pub pools: &'a [PoolView],
    /// All nodes, read at one time.
    pub nodes: &'a [NodeView],
    /// The facts of the nodes, in their order.
    pub facts: Cow<'a, [NodeFacts]>,
    /// The time.
    pub now: Timestamp,
    /// How each pool was read, by name.
    pub reads: HashMap<&'a str, PoolRead>,
    /// Nodes that were read from the API server after all pools, by name.
    pub node_reads: BTreeMap<&'a str, NodeRead>,
    /// The node that this controller runs on.
    pub own_node: Option<&'a str>,
    /// The object that shows that another controller grants updates.
    pub other_grantor: Option<&'a str>,
    /// The rendered configs that exist; `None` if that is not known.
    pub configs: Option<BTreeSet<&'a str>>,
    /// Nodes with pods whose disruption budgets allow no eviction now, with the blockers; `None` if they were not read.
    pub blockers: Option<BTreeMap<&'a str, Vec<String>>>,
    /// The gates that are closed.
    pub gates: &'a [ClosedGate],
    /// When nodes may begin.
    pub start: RolloutStart,
    /// The reboot that each pool's update needs, by the pool's name.
    pub reboots: BTreeMap<&'a str, RebootKind>,
    /// How long a machine may take to reboot.
    pub reboot_time_limit: SignedDuration,
    /// How many Nodes may get or lose the taint of the update now.
    pub taint_patches: usize,
}

impl<'a> RolloutInputs<'a> {
    /// Creates the inputs of a leader that knows nothing beside pools and nodes.
    pub fn new(pools: &'a [PoolView], nodes: &'a [NodeView], now: Timestamp) -> Self {
        let mut names = SharedNames::default();
        let facts = nodes.iter().map(|node| NodeFacts::new(node, &mut names));
        Self::with_facts(pools, nodes, Cow::Owned(facts.collect()), now)
    }

    /// As [`RolloutInputs::new`], with the facts of the nodes, in their order.
    pub fn with_facts(
        pools: &'a [PoolView],
        nodes: &'a [NodeView],
        facts: Cow<'a, [NodeFacts]>,
        now: Timestamp,
    ) -> Self {
        Self {
            pools,
            nodes,
            facts,
            now,
            reads: HashMap::new(),
            node_reads: BTreeMap::new(),
            own_node: None,
            other_grantor: None,
            configs: None,
            blockers: None,
            gates: &[],
            start: RolloutStart::Anytime,
            reboots: BTreeMap::new(),
            reboot_time_limit: REBOOT_TIME_LIMIT,
            taint_patches: 0,
        }
    }
}

impl RolloutInputs<'_> {
    /// What keeps pods on a node; empty if nothing does, or if it is not known.
    pub(super) fn blockers_of(&self, node: &str) -> &[String] {
        let blockers = self.blockers.as_ref().and_then(|it| it.get(node));
        blockers.map_or(&[], Vec::as_slice)
    }
}

/// The earliest time at which a decision may change without an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recheck {
    now: Timestamp,
    earliest: Option<Timestamp>,
}

impl Recheck {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            earliest: None,
        }
    }

    /// Adds a time; one that has passed is ignored.
    pub(super) fn at(&mut self, time: Timestamp) {
        if time > self.now {
            self.earliest = Some(self.earliest.map_or(time, |known| known.min(time)));
        }
    }

    pub(super) fn earliest(self) -> Option<Timestamp> {
        self.earliest
    }
}

/// Adds a duration to a time; the end of time if there is no such time.
pub(super) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}
