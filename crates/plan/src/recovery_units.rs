//! Requires that interrupted updates are recovered before ordinary services start. Without that,
//! updates on a running machine are refused, because after a power failure during a commit the
//! services would start with a mix of two configs.

use super::{MachineFacts, UNIT_DIR, steps::PathSteps};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// Recovers an interrupted update early in the boot.
pub const RECOVER_UNIT: &str = "machinist-recover.service";

/// Judges the boot; the unit above pulls it in.
pub const GUARD_UNIT: &str = "machinist-guard.service";

/// Restarts the machine if recovery cannot run in a boot that tries an operating system.
pub const FALLBACK_UNIT: &str = "machinist-trial-fallback.service";

/// The target that pulls recovery in.
pub const RECOVERY_TARGET: &str = "sysinit.target";

/// The directory where the in-cluster agent keeps the copy of its program that the units run.
pub const COPY_DIR: &str = "/usr/local/libexec/machinist";

/// Refuses an update on a running machine that has no working recovery.
pub(super) fn missing(observed: &MachineFacts) -> Option<Refusal> {
    let why = observed.recovery_missing.as_ref()?;
    let message = format!("an update interrupted by a power failure could not be recovered: {why}");
    let expected = format!(
        "{RECOVER_UNIT} and {GUARD_UNIT} to be installed, and {RECOVER_UNIT} to be enabled"
    );
    Some(Refusal::new(Reason::RecoveryMissing, message).expected(expected))
}

/// Refuses an update that would change the recovery units or program.
pub(super) fn touched(steps: &PathSteps) -> impl Iterator<Item = Refusal> {
    let own = steps.at.iter().filter(|(path, _)| is_part(path));
    own.map(|(path, step)| {
        let message = format!(
            "{path} is required to recover interrupted updates and cannot be changed by a config"
        );
        Refusal::new(Reason::ForeignContent, message).at(&step.entry.origin)
    })
}

/// Whether an object belongs to recovery: the units, the links that enable them, the program they
/// run.
fn is_part(path: &AbsPath) -> bool {
    let text = path.as_str();
    if let Some(below) = text
        .strip_prefix(UNIT_DIR)
        .and_then(|text| text.strip_prefix('/'))
    {
        let enables = below
            .strip_suffix(RECOVER_UNIT)
            .and_then(|dir| dir.strip_suffix('/'));
        return [RECOVER_UNIT, GUARD_UNIT, FALLBACK_UNIT].contains(&below)
            || enables.is_some_and(|dir| dir.ends_with(".wants") || dir.ends_with(".requires"));
    }
    AbsPath::new(COPY_DIR).is_ok_and(|copy| path.is_under(&copy))
}
