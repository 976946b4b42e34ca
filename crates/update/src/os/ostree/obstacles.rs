//! Checks what can be changed on this host, and whether a deployment can be tried.

use super::{
    OSTREE, error::OstreeError, package_update::RPM_OSTREE, read_only_mounts::UNSHARE,
    state::OstreeState,
};
use crate::os::{
    grub::{GrubError, loader_obstacle},
    host_detection::{host_kind, is_composefs, is_there},
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::BootError;
use machinist_plan::{OsCapabilities, ProviderObstacle};
use machinist_rootfs::Root;

/// The function of libostree that locks and unlocks a staged deployment. `ostree admin lock-finalization`, which version
/// 2023.8 introduced, imports it.
const REQUIRED_FUNCTION: &[u8] = b"ostree_sysroot_change_finalization";

/// Maximum length of the program.
const MAX_PROGRAM_BYTES: u64 = 16 << 20;

/// libostree's extension for container images: `ostree container`.
const EXTENSION: &str = "/usr/libexec/libostree/ext/ostree-container";

/// Reads images for the extension.
const SKOPEO: &str = "/usr/bin/skopeo";

/// What the provider can change on the host below `root`.
pub(in crate::os) fn capabilities(root: &Root) -> OsCapabilities {
    let has_rpm_ostree = is_there(root, RPM_OSTREE);
    OsCapabilities {
        image: is_there(root, EXTENSION) && is_there(root, SKOPEO),
        kernel_arguments: true,
        kernel_type: has_rpm_ostree,
        extensions: has_rpm_ostree,
        ..OsCapabilities::without_provider(host_kind(root))
    }
}

/// Returns why a deployment cannot be tried here. A file that cannot be read counts as an obstacle.
pub(in crate::os) fn obstacle(root: &Root) -> Option<ProviderObstacle> {
    if is_composefs(root) {
        return Some(ProviderObstacle::Composefs);
    }
    let program = AbsPath::new(OSTREE).ok()?;
    let program = root.read(&program, MAX_PROGRAM_BYTES).unwrap_or_default();
    let mut parts = program.windows(REQUIRED_FUNCTION.len());
    if !parts.any(|part| part == REQUIRED_FUNCTION) {
        return Some(ProviderObstacle::OldOstree);
    }
    match loader_obstacle(root) {
        Some(ProviderObstacle::GrubReadOnly) if is_there(root, UNSHARE) => {}
        None => {}
        obstacle => return obstacle,
    }
    match OstreeState::read(root) {
        Ok(_) => None,
        Err(
            OstreeError::Boot(BootError::Password(_))
            | OstreeError::Grub(GrubError::Boot(BootError::Password(_))),
        ) => Some(ProviderObstacle::GrubPassword),
        Err(_) => Some(ProviderObstacle::OtherMenu),
    }
}
