//! Imports originals that another daemon has kept, and exports machinist's originals.

use super::{TransactionError, holder_path, mount_point_dirs, staging_dirs::StagingDirs};
use crate::journal::Journal;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FileKind, Meta, Root};

/// Copies the original of `target`, which another daemon keeps at `kept`, to the originals on the target's mount,
/// under the name `id`, and makes the copy durable. It is idempotent.
///
/// It copies because the other daemon may need its original again, and because an original must be on its target's
/// mount to be restored by one rename.
pub fn take_original(
    root: &Root,
    journal: &mut Journal,
    id: &str,
    target: &AbsPath,
    kept: &AbsPath,
) -> Result<AbsPath, TransactionError> {
    let staging =
        StagingDirs::new(root, id, mount_point_dirs::known(journal))?.staging_for(target)?;
    journal
        .holders
        .extend(mount_point_dirs::secure(root, &staging)?);
    let holder = holder_path::holder_of_staging(&staging);
    let originals = holder.join("originals")?;
    root.make_dirs(&originals, 0o700)?;
    let place = originals.join(id)?;
    copy_original(root, kept, &place)?;
    for dir in [&originals, &holder] {
        root.sync_dir(dir)?;
    }
    if let Some(above) = holder.parent() {
        root.sync_dir(&above)?;
    }
    Ok(place)
}

/// Copies a file or link to `to`, with mode, owner, and label, and replaces what is there. The caller makes its
/// name durable.
pub fn copy_original(root: &Root, from: &AbsPath, to: &AbsPath) -> Result<(), TransactionError> {
    let Some(stat) = root.stat(from)? else {
        let target = from.clone();
        return Err(TransactionError::Changed { target });
    };
    root.remove_tree(to)?;
    let meta = Meta {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        chown: root.can_chown(),
    };
    if stat.kind == FileKind::Link {
        root.build_link(to, &root.read_link(from)?)?;
        return Ok(root.own_link(to, &meta)?);
    }
    copy_file(root, from, to, &meta)?;
    Ok(root.sync_file(to)?)
}

/// Copies a file to `to`, which must not exist, with another mode and owner.
pub(super) fn copy_file(
    root: &Root,
    from: &AbsPath,
    to: &AbsPath,
    meta: &Meta,
) -> Result<(), TransactionError> {
    root.build_copy(to, &root.pieces(from)?, meta)?;
    for (name, error) in root.copy_meta_extras(from, to, None)?.left {
        tracing::warn!(path = %to, "attribute {name} was not kept: {error}");
    }
    Ok(())
}
