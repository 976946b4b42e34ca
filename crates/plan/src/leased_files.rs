//! Warns of files that cannot be read because another process holds a lease on them, as their owners may for ever.

use super::{
    MachineFacts,
    desired_tree::DesiredObject,
    steps::{PathAction, PathStep, PathSteps},
};
use machinist_base::abs_path::AbsPath;

impl PathSteps {
    /// Warns of a file that is replaced without being read.
    pub(super) fn warn_of_leased(&mut self, asked: &AbsPath) {
        self.warnings.push(format!(
            "{asked} cannot be read, because it is held by a lease of another process: this update replaces it"
        ));
    }

    /// Warns if the original's content belongs there and cannot be read.
    pub(super) fn warn_of_leased_original(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        observed: &MachineFacts,
    ) {
        let put = |step: &PathStep| matches!(step.act, PathAction::Put(_));
        let original = observed.originals.get(path);
        if let Some(place) = original.filter(|place| observed.leased.contains(*place))
            && wanted.object.is_without_content()
            && self.at.get(path).is_some_and(put)
        {
            self.warnings.push(format!(
                "the original of {path} cannot be read, because it is held by a lease of another process: {path} will \
                 be empty, and the original stays at {place}"
            ));
        }
    }
}
