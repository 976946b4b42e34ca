//! Plans entries on a file system that does not respond.

use super::{
    MachineFacts,
    desired_tree::{DesiredObject, DesiredTree},
    steps::PathSteps,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{MachineConfig, Overwrite, Refusal};

impl PathSteps {
    /// The refusals of entries that cannot be planned.
    pub(super) fn refusals(&self, to: &MachineConfig) -> Vec<Refusal> {
        // A config that was in force may replace objects of any kind.
        let new = matches!(to.overwrite, Overwrite::Except(_));
        let kinds = self.kind_refusals.iter().filter(|_| new);
        let refusals = self.refusals.iter().chain(kinds);
        refusals.map(|(_, refusal)| refusal.clone()).collect()
    }

    /// If the object cannot be read, an entry that the base config already has stays unchanged and
    /// does not block other entries; a new entry cannot be planned.
    pub(super) fn plan_entry(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        before: &DesiredTree,
        observed: &MachineFacts,
        owners: bool,
    ) {
        let Some((at, (reason, text))) = observed.unreachable_at(path) else {
            self.wanted(path, wanted, before, observed, owners);
            self.warn_of_leased_original(path, wanted, observed);
            return;
        };
        let message = format!("{} cannot be examined: {at}: {text}", wanted.asked);
        let had = before.objects.get(path);
        if had.is_some_and(|had| had.object == wanted.object) {
            self.warnings.push(format!("{message}; it is not changed"));
            return;
        }
        let refusal = Refusal::new(*reason, message).at(&wanted.entry.origin);
        self.refusals.push((path.clone(), refusal));
    }
}
