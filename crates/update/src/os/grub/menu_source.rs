//! Where GRUB finds the entries of kernels.

use super::host_files::{HostFiles, in_grub_directory};
use machinist_boot_loader::grub::GrubFiles as _;
use machinist_rootfs::Root;

/// Where GRUB finds the entries of kernels, and their arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::os) enum MenuSource {
    /// In grub.cfg, into which grub-mkconfig writes them.
    GrubConfig,
    /// In files of the Boot Loader Specification, which the command `blscfg` of Fedora's GRUB reads.
    BlsConfig,
}

impl MenuSource {
    pub(in crate::os) fn of(root: &Root) -> Self {
        let config = HostFiles::new(root).text(&in_grub_directory(root, "grub.cfg"));
        let config = config.unwrap_or_default();
        match config.lines().any(|line| line.trim() == "blscfg") {
            true => Self::BlsConfig,
            false => Self::GrubConfig,
        }
    }
}
