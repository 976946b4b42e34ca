//! One pool within a decision: what it records, its members, and what changes.

use jiff::Timestamp;

use machinist_kube_api::{PoolView, keys::pool_annotation};

use super::{
    Grant, GrantEnd, Hold, HoldReason, HoldStrength, PoolGrants, PoolMembers, PoolRead,
    RolloutEdge, RolloutHistory, RolloutSettings, RolloutState, RolloutStateError, RolloutStates,
    pool_member::PoolMember, rollout_inputs::RolloutInputs,
};

/// A pool, its record, and the changes of one decision.
#[derive(Debug)]
pub(super) struct PoolLedger<'a> {
    pub(super) pool: &'a PoolView,
    /// The pool that records its rollout.
    pub(super) fence: &'a str,
    pub(super) read: PoolRead,
    pub(super) target: Option<&'a str>,
    pub(super) is_pinned: bool,
    pub(super) members: Vec<PoolMember<'a>>,
    pub(super) settings: RolloutSettings,
    pub(super) history: RolloutHistory,
    pub(super) grants: PoolGrants,
    /// Whether the annotation with the grants exists.
    pub(super) is_recorded: bool,
    pub(super) rollout: Option<RolloutState>,
    pub(super) holds: Vec<Hold>,
    pub(super) warnings: Vec<String>,
    pub(super) freed: Vec<(Grant, Option<GrantEnd>)>,
    /// The IDs of grants that were found on Nodes and not in the record.
    pub(super) found: Vec<String>,
    pub(super) is_rebuild: bool,
    pub(super) begins: Option<RolloutEdge>,
    pub(super) ends: Option<RolloutEdge>,
    /// Whether its grants are to be written.
    pub(super) is_changed: bool,
    /// Whether its rollout is to be written, on the pool that fences its limit.
    pub(super) is_rollout_changed: bool,
}

impl<'a> PoolLedger<'a> {
    /// Reads the record of a pool. What cannot be read holds the pool.
    /// Its rollout is one of `rollouts`, which the pool that fences its limit records.
    pub(super) fn new(
        members: &PoolMembers<'a>,
        fence: &'a str,
        rollouts: &Result<RolloutStates, RolloutStateError>,
        inputs: &'a RolloutInputs<'a>,
    ) -> Self {
        let pool = members.pool;
        let pinned = pool.annotation(pool_annotation::PINNED_CONFIG);
        let rendered = pool.spec.configuration.name.as_str();
        let target = pinned.or((!rendered.is_empty()).then_some(rendered));
        let read = inputs.reads.get(pool.name.as_str()).copied();
        let mut warnings = pool.mistakes();
        warnings.extend(members.ambiguous.iter().cloned());
        let mut ledger = Self {
            pool,
            fence,
            read: read.unwrap_or_default(),
            target,
            is_pinned: pinned.is_some(),
            members: Vec::new(),
            settings: RolloutSettings::default(),
            history: RolloutHistory::of(pool),
            grants: PoolGrants::default(),
            is_recorded: false,
            rollout: None,
            holds: Vec::new(),
            warnings,
            freed: Vec::new(),
            found: Vec::new(),
            is_rebuild: false,
            begins: None,
            ends: None,
            is_changed: false,
            is_rollout_changed: false,
        };
        ledger.read_record(rollouts, inputs.now);
        let nodes = members.nodes.iter().zip(&members.positions);
        let members = nodes.filter_map(|(node, at)| {
            let facts = inputs.facts.get(*at)?;
            Some(PoolMember::new(node, facts, target))
        });
        ledger.members = members.collect();
        ledger
    }

    fn read_record(&mut self, rollouts: &Result<RolloutStates, RolloutStateError>, now: Timestamp) {
        match RolloutSettings::of(self.pool) {
            Ok(settings) => self.settings = settings,
            Err(mistakes) => {
                let all: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
                self.hold(HoldReason::SettingsInvalid, all.join("; "));
            }
        }
        let text = self.pool.annotations.get(pool_annotation::GRANTS);
        match PoolGrants::parse(&self.pool.name, text.map(String::as_str)) {
            Ok(grants) => {
                self.is_recorded = grants.is_some();
                self.grants = grants.unwrap_or_default();
            }
            Err(error) => self.hold(HoldReason::GrantsUnreadable, with_cause(&error)),
        }
        let state = match rollouts {
            Ok(all) => all.rollouts.get(&self.pool.name).cloned(),
            Err(error) => return self.hold(HoldReason::GrantsUnreadable, with_cause(error)),
        };
        let resume = self.pool.annotation(pool_annotation::RESUME);
        let next = self
            .target
            .and_then(|target| RolloutState::updated(state.as_ref(), target, resume, now));
        if let (Some(old), Some(new)) = (&state, &next)
            && old.target != new.target
            && old.started.is_some()
            && old.completed.is_none()
        {
            let target = old.target.clone();
            self.ends = Some(self.edge(target, "Superseded"));
        }
        // While the pool is paused only its status is written; the change is computed again after that.
        self.is_rollout_changed |= next != state && next.is_some() && !self.pool.spec.paused;
        self.rollout = next.or(state);
    }

    /// Adds a hold.
    pub(super) fn hold(&mut self, reason: HoldReason, message: impl Into<String>) {
        let hold = Hold::new(reason, message);
        if !self.holds.contains(&hold) {
            self.holds.push(hold);
        }
    }

    /// The strongest of its holds; `None` if there is none.
    pub(super) fn strength(&self) -> Option<HoldStrength> {
        self.holds.iter().map(|hold| hold.reason.strength()).max()
    }

    /// Whether grants may be placed on nodes.
    pub(super) fn may_place(&self) -> bool {
        self.strength().is_none_or(|it| it == HoldStrength::Waits)
    }

    /// Whether its record cannot be read, so that it must not be written.
    pub(super) fn is_unreadable(&self) -> bool {
        let mut holds = self.holds.iter();
        holds.any(|hold| hold.reason == HoldReason::GrantsUnreadable)
    }

    /// Whether its target is a config that it ran before and is pinned to.
    pub(super) fn is_rollback(&self) -> bool {
        self.is_pinned
            && self
                .target
                .is_some_and(|target| self.history.has_run(target))
    }

    /// Whether a grant belongs to the rollout of its target.
    pub(super) fn is_current(&self, grant: &Grant) -> bool {
        grant.pool == self.pool.name && Some(grant.target.as_str()) == self.target
    }

    /// Whether the annotation of released grants names this one.
    pub(super) fn is_released(&self, grant: &Grant) -> bool {
        let released = self.pool.annotation(pool_annotation::RELEASED_GRANTS);
        released.is_some_and(|ids| ids.split(',').any(|id| id.trim() == grant.id))
    }

    /// The number of members that are not on the target.
    pub(super) fn pending(&self) -> usize {
        let pending = |member: &&PoolMember<'_>| self.target.is_some() && !member.is_on_target;
        self.members.iter().filter(pending).count()
    }

    /// The number of members that the rollout still has to update: those that are not on the target, without the ones
    /// that it leaves out.
    pub(super) fn left(&self) -> usize {
        self.pending() - self.left_out().len()
    }

    /// The members that the rollout leaves out, because an operator skips them, by name.
    pub(super) fn left_out(&self) -> Vec<&'a str> {
        let members = self.members.iter().filter(|it| it.is_left_out());
        let mut names: Vec<_> = members.map(|it| it.node.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Describes the beginning or the end of a rollout of this pool.
    pub(super) fn edge(&self, target: String, result: &str) -> RolloutEdge {
        RolloutEdge {
            pool: self.pool.name.clone(),
            target,
            result: result.to_owned(),
            skipped: Vec::new(),
        }
    }
}

/// An error with its cause, for a condition.
fn with_cause(error: &dyn std::error::Error) -> String {
    machinist_base::error_chain::chain(error)
}
