//! Recovery before ordinary services start: without it nothing is staged on a running machine, since a
//! power cut in the midst of a commit would leave a mix of two configs to whoever starts next.

use super::{Observed, UNIT_DIR, difference::Steps};
use crate::{machine_config::Refusal, path::AbsPath, reason::Reason};

/// Settles an interrupted update early in a boot.
pub const RECOVER: &str = "machinist-recover.service";

/// Judges the boot; the unit before wants it.
pub const GUARD: &str = "machinist-guard.service";

/// What pulls recovery in.
pub const TARGET: &str = "sysinit.target";

/// Where the agent of a cluster keeps the copy of itself that the units run.
pub const COPY_DIR: &str = "/usr/local/libexec/machinist";

/// The refusal of a running machine where nobody would settle the update.
pub(super) fn missing(observed: &Observed) -> Option<Refusal> {
    let why = observed.recovery_missing.as_ref()?;
    let message = format!("nothing here would settle an update that a power cut interrupts: {why}");
    let expected = format!("{RECOVER} and {GUARD} installed, and the first one enabled");
    Some(Refusal::new(Reason::RecoveryMissing, message).expected(expected))
}

/// The refusals of an update that would change who settles it.
pub(super) fn touched(steps: &Steps) -> impl Iterator<Item = Refusal> {
    let own = steps.at.iter().filter(|(path, _)| is_part(path));
    own.map(|(path, step)| {
        let message = format!(
            "{path} belongs to what settles interrupted updates, and is not changed by one"
        );
        Refusal::new(Reason::ForeignContent, message).at(&step.entry.origin)
    })
}

/// Whether an object takes part in recovery: the units, what enables them, the program that they run.
fn is_part(path: &AbsPath) -> bool {
    let text = path.as_str();
    if let Some(below) = text
        .strip_prefix(UNIT_DIR)
        .and_then(|text| text.strip_prefix('/'))
    {
        let enables = below
            .strip_suffix(RECOVER)
            .and_then(|dir| dir.strip_suffix('/'));
        return below == RECOVER
            || below == GUARD
            || enables.is_some_and(|dir| dir.ends_with(".wants") || dir.ends_with(".requires"));
    }
    AbsPath::new(COPY_DIR).is_ok_and(|copy| path.is_under(&copy))
}
