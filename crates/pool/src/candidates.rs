//! Chooses which nodes may be granted an update, and in which order.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use machinist_kube_api::NodeView;

use super::{
    GrantOutcome, UnavailableCause,
    grant_end::grant_ends,
    node_order::OrderKey,
    pool_ledger::PoolLedger,
    pool_member::PoolMember,
    rollout_inputs::{Recheck, RolloutInputs, later},
};

/// No grant to a node whose agent has been silent for this long: three of its heartbeats.
pub const AGENT_SILENCE_LIMIT: SignedDuration = SignedDuration::from_mins(15);

/// How long a node is left alone after its agent declined a grant or did not acknowledge it.
const RETRY_DELAY: SignedDuration = SignedDuration::from_mins(10);

/// Why a node that is not on the target is no candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ineligible {
    /// It has a grant.
    Granted,
    /// It is cordoned or not ready.
    NotReady,
    /// It is being updated without a grant.
    Updating,
    /// It failed on the target, and the rollout has not been resumed since.
    Failed,
    /// Its agent has been silent.
    AgentSilent,
    /// It booted into another pool and has not arrived there.
    InTransit,
    /// An operator leaves it out.
    Skipped,
}

impl Ineligible {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::NotReady => "not ready or cordoned",
            Self::Updating => "updating without a grant",
            Self::Failed => "failed on the target",
            Self::AgentSilent => "without a heartbeat of the agent for 15 min",
            Self::InTransit => "on the way into another pool",
            Self::Skipped => "skipped by an operator",
        }
    }
}

/// A node that may be granted an update.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) node: &'a NodeView,
    /// It counts against the limit already, so that it needs no free slot.
    pub(super) has_slot: bool,
    pub(super) is_blocked: bool,
    pub(super) has_stepped_aside: bool,
    place: CandidatePlace<'a>,
}

impl Candidate<'_> {
    /// Whether it waits, because it has stepped aside and pods still block its drain.
    pub(super) const fn is_passed_over(&self) -> bool {
        self.has_stepped_aside && self.is_blocked
    }
}

/// The place of a candidate: the later a flag is set, the less it matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CandidatePlace<'a> {
    has_stepped_aside: bool,
    /// Its update may never end, so that the own node would never be updated.
    is_blocked: bool,
    is_own_node: bool,
    /// Nodes that failed on another config come first: they have waited for this one.
    is_on_a_config: bool,
    key: OrderKey<'a>,
}

/// How many candidates are put in order first.
const FIRST_ORDERED: usize = 64;

/// The candidates of a pool, and the other nodes that are not on the target.
#[derive(Debug, Default)]
pub(super) struct Candidates<'a> {
    candidates: Vec<Candidate<'a>>,
    /// How many of the candidates are in order, from the first one. A rollout begins with all nodes of a pool, of which
    /// few start at once.
    ordered: usize,
    pub(super) ineligible: Vec<(&'a str, Ineligible)>,
}

impl<'a> Candidates<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Returns the candidate at a position in their order.
    pub(super) fn at(&mut self, position: usize) -> Option<&Candidate<'a>> {
        if position >= self.ordered {
            self.order(position.saturating_mul(2).max(FIRST_ORDERED));
        }
        self.candidates.get(position)
    }

    /// Returns the first candidates in their order.
    pub(super) fn first(&mut self, count: usize) -> impl Iterator<Item = &Candidate<'a>> {
        self.order(count);
        self.candidates.iter().take(count)
    }

    /// Returns the candidates from a position on, in no order.
    pub(super) fn rest(&self, position: usize) -> impl Iterator<Item = &Candidate<'a>> {
        self.candidates.iter().skip(position)
    }

    fn order(&mut self, count: usize) {
        let count = count.min(self.candidates.len());
        let Some(rest) = self.candidates.get_mut(self.ordered..) else {
            return;
        };
        let Some(first) = count.checked_sub(self.ordered) else {
            return;
        };
        let by_place = |a: &Candidate<'_>, b: &Candidate<'_>| a.place.cmp(&b.place);
        if first < rest.len() {
            rest.select_nth_unstable_by(first, by_place);
        }
        let (first, _) = rest.split_at_mut(first);
        first.sort_unstable_by(by_place);
        self.ordered = count;
    }
}

/// Collects the candidates of a pool.
pub(super) fn candidates<'a>(
    ledger: &PoolLedger<'a>,
    inputs: &RolloutInputs<'_>,
    pools: &HashSet<&str>,
    recheck: &mut Recheck,
) -> Candidates<'a> {
    let mut found = Candidates::default();
    if ledger.target.is_none() {
        return found;
    }
    let mut eligible = Vec::new();
    for member in ledger.members.iter().filter(|it| !it.is_on_target) {
        match ineligible(member, ledger, inputs, pools, recheck) {
            Some(why) => found.ineligible.push((&member.node.name, why)),
            None => eligible.push(member),
        }
    }
    found.ineligible.sort_unstable();
    let stepped_aside: HashSet<&str> = ledger
        .rollout
        .iter()
        .flat_map(|it| it.stepped_aside.iter().map(String::as_str))
        .collect();
    let keys = ledger.settings.order.keys(&eligible);
    for (member, key) in eligible.into_iter().zip(keys) {
        let node = member.node;
        let is_blocked = !inputs.blockers_of(&node.name).is_empty();
        let has_stepped_aside = stepped_aside.contains(node.name.as_str());
        let failed_elsewhere = member.status.failing && !member.is_desired;
        found.candidates.push(Candidate {
            node,
            has_slot: member.cause.is_some(),
            is_blocked,
            has_stepped_aside,
            place: CandidatePlace {
                has_stepped_aside,
                is_blocked,
                is_own_node: inputs.own_node == Some(node.name.as_str()),
                is_on_a_config: !failed_elsewhere,
                key,
            },
        });
    }
    found
}

/// Why a node that is not on the target is no candidate; `None` if it is one.
fn ineligible(
    member: &PoolMember<'_>,
    ledger: &PoolLedger<'_>,
    inputs: &RolloutInputs<'_>,
    pools: &HashSet<&str>,
    recheck: &mut Recheck,
) -> Option<Ineligible> {
    if member.is_left_out() {
        return Some(Ineligible::Skipped);
    }
    match member.cause {
        Some(UnavailableCause::Granted | UnavailableCause::UnlistedGrant) => {
            // It keeps its grant until it is healed.
            return Some(match member.is_failing_on_target() {
                true => Ineligible::Failed,
                false => Ineligible::Granted,
            });
        }
        Some(UnavailableCause::Cordoned | UnavailableCause::NotReady) => {
            return Some(Ineligible::NotReady);
        }
        // Without a desired config its agent waits for a grant, whatever it was doing before.
        Some(UnavailableCause::Updating) if member.is_working && member.has_desired_config => {
            return Some(Ineligible::Updating);
        }
        Some(
            UnavailableCause::Failing
            | UnavailableCause::Updating
            | UnavailableCause::AwaitingGrant,
        )
        | None => {}
    }
    if member.is_failing_on_target() && !was_resumed_since(member.node, ledger) {
        return Some(Ineligible::Failed);
    }
    let is_other = |pool: &str| pool != ledger.pool.name && pools.contains(pool);
    // Its present pool would move it to another config and back.
    if member.booted_pool.is_some_and(is_other) {
        return Some(Ineligible::InTransit);
    }
    let heard = member.heartbeat;
    let silent = heard.is_none_or(|time| later(time, AGENT_SILENCE_LIMIT) <= inputs.now);
    if silent {
        return Some(Ineligible::AgentSilent);
    }
    if let Some(time) = heard {
        recheck.at(later(time, AGENT_SILENCE_LIMIT));
    }
    None
}

/// Whether the rollout was resumed after the node failed on its target: then it is tried again.
fn was_resumed_since(node: &NodeView, ledger: &PoolLedger<'_>) -> bool {
    let target = ledger.target.unwrap_or_default();
    let Some(resumed) = ledger.rollout.as_ref().and_then(|it| it.resumed) else {
        return false;
    };
    let ends = grant_ends(node).unwrap_or_default();
    let failed = ends
        .iter()
        .rev()
        .find(|end| end.target == target && end.outcome.is_failure());
    failed.is_none_or(|end| end.time < resumed)
}

/// Returns until when a node is left alone, because a grant for the target ended without an update a short time ago, and
/// the rollout has not been resumed since.
pub(super) fn retry_time(
    node: &NodeView,
    ledger: &PoolLedger<'_>,
    now: Timestamp,
) -> Option<Timestamp> {
    let target = ledger.target?;
    let resumed = ledger.rollout.as_ref().and_then(|it| it.resumed);
    let ends = grant_ends(node).ok()?;
    let last = ends.last()?;
    let retried = matches!(
        last.outcome,
        GrantOutcome::Declined | GrantOutcome::Withdrawn | GrantOutcome::Cancelled
    );
    let due = later(last.time, RETRY_DELAY);
    let is_recent = now < due && resumed.is_none_or(|resumed| resumed < last.time);
    (retried && last.target == target && is_recent).then_some(due)
}
