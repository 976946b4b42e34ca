//! Checkpoints the journal of the file system with GRUB's files: GRUB does not read the journal, which `syncfs` alone leaves
//! in use.

use super::host_mounts::{mount_of, mounts};
use crate::os::HostCommand;
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{Root, RootError};

/// Freezing checkpoints the journal. The commands are one program of the host, which neither the end of the agent
/// nor a signal stops while the file system is frozen. If thawing fails, or does not end within a minute because it
/// needs another program that waits for the file system, the kernel thaws every file system (sysrq.rst): for this, the
/// shell starts nothing and opens nothing.
const FREEZE: &str = "exec 3>/proc/sysrq-trigger || exit 1; { sleep 60; echo j >&3; } & \
                      trap '' HUP INT TERM; \
                      fsfreeze --freeze \"$1\" && { fsfreeze --unfreeze \"$1\" || echo j >&3; }; \
                      code=$?; kill $!; exit $code";

const SHELL: &str = "/bin/sh";

/// The file systems that have a journal.
const WITH_JOURNAL: [&str; 3] = ["ext3", "ext4", "xfs"];

/// Writes the file system of this directory to the disk and checkpoints its journal. It is synchronized first, so that other
/// programs wait for an instant only.
pub(in crate::os) async fn flush(
    root: &Root,
    commands: &impl HostCommand,
    directory: &AbsPath,
) -> Result<(), RootError> {
    root.sync_dir(directory)?;
    root.sync_point(directory)?.sync()?;
    let mounts = mounts(root);
    let mount = mount_of(&mounts, directory.as_str());
    let Some(mount) = mount.filter(|mount| WITH_JOURNAL.contains(&mount.fs_type)) else {
        return Ok(());
    };
    let arguments = ["-c", FREEZE, "sh", mount.point];
    if let Err(error) = commands.run_unkillable(SHELL, &arguments).await {
        tracing::warn!(
            "cannot checkpoint the journal of {} (fsfreeze): a power cut in the next minute may boot the previous \
             deployment or none: {}",
            mount.point,
            chain(&*error)
        );
    }
    Ok(())
}
