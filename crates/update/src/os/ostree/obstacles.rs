//! Checks whether a deployment can be tried on this host.

use super::{OSTREE, state::OstreeState};
use crate::os::grub::loader_obstacle;
use machinist_base::abs_path::AbsPath;
use machinist_plan::ProviderObstacle;
use machinist_rootfs::Root;

/// The function of libostree that locks and unlocks a staged deployment. `ostree admin lock-finalization`, which version
/// 2023.8 introduced, imports it.
const REQUIRED_FUNCTION: &[u8] = b"ostree_sysroot_change_finalization";

/// Maximum length of the program.
const MAX_PROGRAM_BYTES: u64 = 16 << 20;

/// Returns why a deployment cannot be tried here. A file that cannot be read counts as an obstacle.
pub(in crate::os) fn obstacle(root: &Root) -> Option<ProviderObstacle> {
    let program = AbsPath::new(OSTREE).ok()?;
    let program = root.read(&program, MAX_PROGRAM_BYTES).unwrap_or_default();
    let mut parts = program.windows(REQUIRED_FUNCTION.len());
    if !parts.any(|part| part == REQUIRED_FUNCTION) {
        return Some(ProviderObstacle::OldOstree);
    }
    if let Some(obstacle) = loader_obstacle(root) {
        return Some(obstacle);
    }
    let state = OstreeState::read(root);
    state.is_err().then_some(ProviderObstacle::OtherMenu)
}
