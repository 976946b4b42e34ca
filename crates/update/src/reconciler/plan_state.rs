//! The plan in progress, with everything that is decided about it before it begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{drift_repair, newer_config::RejectedConfig, start_time::StartTime};
use crate::{journal::Transaction, observe_and_plan::AdoptedOsChanges};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::MachineConfig;
use machinist_plan::Plan;

/// Maximum number of a plan's warnings that the status and the journal keep; `machinist plan` prints all.
const MAX_WARNINGS: usize = 64;

/// Maximum number of plans in a row that a change of the machine may invalidate: after that, another program is
/// configuring the machine.
const MAX_REPLANS: u32 = 3;

/// A plan with its input.
#[derive(Debug)]
pub(super) struct PlannedUpdate {
    pub(super) plan: Plan,
    pub(super) from: Arc<MachineConfig>,
    /// The canonical paths that `to` names.
    pub(super) named: BTreeSet<AbsPath>,
    /// The canonical paths of those paths in both configs that differ from them.
    pub(super) moved: BTreeMap<AbsPath, AbsPath>,
    pub(super) to: Arc<MachineConfig>,
    pub(super) digest: Digest,
    /// The caller has approved it.
    pub(super) is_approved: bool,
    /// What another daemon has added to the operating system.
    pub(super) adopted_os: Option<AdoptedOsChanges>,
    /// The number of changes in the plan. The list of changes is dropped once it has been shown.
    pub(super) changes: usize,
}

impl PlannedUpdate {
    /// Returns as many warnings of the plan as the status and the journal keep.
    pub(super) fn kept_warnings(&self) -> Vec<String> {
        self.plan
            .warnings
            .iter()
            .take(MAX_WARNINGS)
            .cloned()
            .collect()
    }
}

/// The plan in progress, and what limits it.
#[derive(Debug, Default)]
pub(super) struct PlanState {
    planned: Option<PlannedUpdate>,
    /// The warnings of the last plan, with the digest of its config.
    warnings: Option<(Digest, Vec<String>)>,
    replans: u32,
    /// The drifted path that is being repaired: the plan is limited to it.
    repair: Option<AbsPath>,
    /// The newer config that could not begin while an update was open.
    pub(super) rejected: Option<RejectedConfig>,
    pub(super) start: StartTime,
}

impl PlanState {
    /// Returns the state at the start of a process: the warnings of an open update's plan are in the journal.
    pub(super) fn resumed(open: Option<&Transaction>) -> Self {
        Self {
            warnings: open.map(|tx| (tx.to.digest, tx.warnings.clone())),
            ..Self::default()
        }
    }

    pub(super) const fn planned(&self) -> Option<&PlannedUpdate> {
        self.planned.as_ref()
    }

    /// Returns the digest of the planned config.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.planned.as_ref().map(|planned| planned.digest)
    }

    /// Returns the name of the planned config.
    pub(super) fn config_name(&self) -> Option<String> {
        let planned = self.planned.as_ref();
        planned.map(|planned| planned.to.name.clone())
    }

    pub(super) fn set(&mut self, planned: PlannedUpdate) {
        self.planned = Some(planned);
    }

    /// Takes the plan, for work that owns it meanwhile.
    pub(super) const fn take(&mut self) -> Option<PlannedUpdate> {
        self.planned.take()
    }

    /// Drops the plan.
    pub(super) fn discard(&mut self) {
        self.planned = None;
    }

    /// Adopts the new name of an unchanged config.
    pub(super) fn rename(&mut self, config: &Arc<MachineConfig>, digest: Digest) {
        let planned = self.planned.as_mut();
        if let Some(planned) = planned.filter(|planned| planned.digest == digest) {
            planned.to = Arc::clone(config);
        }
    }

    /// Returns whether the planned update drains a node first. The repair of a drifted path does not.
    pub(super) fn drains(&self) -> bool {
        let planned = self.planned.as_ref();
        !self.is_repair() && planned.is_some_and(|planned| planned.plan.drain)
    }

    /// Keeps the warnings of a new plan. A repair plans for one path only, so it keeps the warnings of the update.
    pub(super) fn keep_warnings(&mut self, planned: &PlannedUpdate) {
        if !self.is_repair() {
            self.warnings = Some((planned.digest, planned.kept_warnings()));
        }
    }

    /// Returns the warnings of the last plan, if it was for this config.
    pub(super) fn warnings_for(&self, config: Digest) -> &[String] {
        let warnings = self.warnings.as_ref();
        let warnings = warnings.filter(|(planned, _)| *planned == config);
        warnings.map_or(&[], |(_, warnings)| warnings)
    }

    /// Counts a plan that the machine has invalidated. Returns false if there were too many in a row.
    pub(super) const fn count_replan(&mut self) -> bool {
        self.replans += 1;
        if self.replans < MAX_REPLANS {
            return true;
        }
        self.replans = 0;
        false
    }

    pub(super) const fn reset_replans(&mut self) {
        self.replans = 0;
    }

    pub(super) fn begin_repair(&mut self, path: AbsPath) {
        self.repair = Some(path);
    }

    pub(super) fn end_repair(&mut self) {
        self.repair = None;
    }

    pub(super) const fn is_repair(&self) -> bool {
        self.repair.is_some()
    }

    /// Returns the drifted path to which the plan is limited.
    pub(super) const fn repair_path(&self) -> Option<&AbsPath> {
        self.repair.as_ref()
    }

    /// Limits a plan to what a repair may do.
    pub(super) fn limit_to_repair(&self, plan: &mut Plan) {
        if self.is_repair() {
            drift_repair::without_reboot(plan);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_invalid_plan_in_a_row_is_one_too_many() {
        let mut plan = PlanState::default();
        assert_eq!(
            [(); 4].map(|()| plan.count_replan()),
            [true, true, false, true]
        );
        plan.reset_replans();
        assert_eq!([(); 3].map(|()| plan.count_replan()), [true, true, false]);
    }
}
