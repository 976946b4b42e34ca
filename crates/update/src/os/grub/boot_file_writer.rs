//! Writes files that GRUB reads so that it finds the former or the new content after a power cut.

use super::{
    boot_file_system::flush,
    error::GrubError,
    host_files::{MAX_CONFIG_BYTES, path},
    host_mounts::real_path,
};
use crate::os::HostCommand;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// Added to the name of a file while its new content is written.
pub(in crate::os) const NEW_SUFFIX: &str = ".machinist";

/// Writes a file that GRUB reads. It keeps its mode; a new one has this mode. A link stays, and its target is written.
pub(in crate::os) async fn write(
    root: &Root,
    commands: &impl HostCommand,
    file: &AbsPath,
    text: &str,
    mode: u32,
) -> Result<(), GrubError> {
    let (file, mode) = target(root, file, mode)?;
    let new = path(&format!("{file}{NEW_SUFFIX}"))?;
    root.replace(&new, text.as_bytes(), mode)?;
    replace(root, commands, &new, &file).await
}

/// Replaces a file by a new one. GRUB does not read the journal of the file system, so the new one is on the disk before it
/// has the name, and the former one keeps its blocks and its inode until the change is on the disk. Otherwise GRUB could
/// find no file, or that of a reused inode.
pub(super) async fn replace(
    root: &Root,
    commands: &impl HostCommand,
    new: &AbsPath,
    at: &AbsPath,
) -> Result<(), GrubError> {
    let former = root.read(at, MAX_CONFIG_BYTES).ok();
    root.sync_file(new)?;
    let directory = at.parent().unwrap_or_else(AbsPath::root);
    let flush_all = || flush(root, commands, &directory);
    flush_all().await?;
    match root.exchange(new, at) {
        Err(error) if error.exchange_unsupported() || error.is_not_found() => {
            root.move_over(new, at)?;
        }
        Err(error) => return Err(error.into()),
        // Another program may have written it since.
        Ok(()) if root.read(new, MAX_CONFIG_BYTES).ok() != former => {
            root.exchange(new, at)?;
            root.remove_file(new)?;
            return Err(GrubError::FileChanged(at.clone()));
        }
        Ok(()) => {}
    }
    flush_all().await?;
    Ok(root.remove_file(new)?)
}

/// The file to which the links lead, and its mode; a new one has this mode.
fn target(root: &Root, at: &AbsPath, mode: u32) -> Result<(AbsPath, u32), GrubError> {
    let at = real_path(root, at).unwrap_or_else(|| at.clone());
    let mode = root.stat(&at)?.map_or(mode, |stat| stat.mode & 0o777);
    Ok((at, mode))
}

/// Replaces a file that GRUB does not read. It keeps its mode; a new one has this mode. A link stays, and its target is
/// replaced.
pub(super) fn replace_plain(root: &Root, at: &str, text: &str, mode: u32) -> Result<(), GrubError> {
    let (at, mode) = target(root, &path(at)?, mode)?;
    if let Some(parent) = at.parent() {
        root.make_dirs(&parent, 0o755)?;
    }
    Ok(root.replace(&at, text.as_bytes(), mode)?)
}
