//! Writes the journal of the file system with GRUB's files to their places: GRUB reads a file system as it is on the disk,
//! without its journal, which `syncfs` alone leaves in use.

use std::time::Duration;

use super::{
    host_files::grub_directory,
    obstacles::{mount_of, mounts},
};
use crate::os::HostCommand;
use machinist_base::error_chain::chain;
use machinist_rootfs::Root;

/// Freezing writes everything to its place. The commands are one program of the host, so that the end of the agent cannot
/// leave the file system frozen, nor can a signal; the last command makes the kernel thaw every file system (sysrq.rst).
const FREEZE: &str = "trap '' HUP INT TERM; fsfreeze --freeze \"$1\" && \
                      { fsfreeze --unfreeze \"$1\" || echo j >/proc/sysrq-trigger; }";

const SHELL: &str = "/bin/sh";

/// Time limit, after which the program is killed. What was written before is on the disk already, so that little is left;
/// a program that is killed while it freezes could not thaw, so that the limit is far above what a slow disk needs.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The file systems that have a journal.
const WITH_JOURNAL: [&str; 3] = ["ext3", "ext4", "xfs"];

/// Writes the journal of the file system with GRUB's files.
pub(super) async fn flush(root: &Root, commands: &impl HostCommand) {
    let mounts = mounts(root);
    let mount = mount_of(&mounts, grub_directory(root));
    let mount = mount.filter(|mount| WITH_JOURNAL.contains(&mount.fs_type));
    let Some(mount) = mount else {
        return;
    };
    let arguments = ["-c", FREEZE, "sh", mount.point];
    if let Err(error) = commands.run(SHELL, &arguments, FREEZE_TIMEOUT).await {
        tracing::warn!(
            "a power cut in the next seconds may boot the previous deployment: the journal of {} was not written: {}",
            mount.point,
            chain(&*error)
        );
    }
}
