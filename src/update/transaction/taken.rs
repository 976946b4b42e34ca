//! Originals that somebody else has kept, taken into our own keeping; and handed out again.

use super::{TransactionError, holders, kept, places::Places};
use crate::{
    path::AbsPath,
    root::{Kind, Meta, Root},
    update::journal::Journal,
};

/// The largest file that is copied.
const LARGEST: u64 = 1 << 30;

/// Copies what stood at `target`, and lies at `kept`, to where originals of the target's mount are kept,
/// under the name `id`, and makes that durable. The same again does the same.
///
/// A copy, since whoever kept it may want it again, and an original must lie on its target's mount to
/// come back by one rename.
pub fn take_original(
    root: &Root,
    journal: &mut Journal,
    id: &str,
    target: &AbsPath,
    kept: &AbsPath,
) -> Result<AbsPath, TransactionError> {
    let staging = Places::new(root, id, holders::known(journal))?.staging_for(target)?;
    journal.holders.extend(holders::secure(root, &staging)?);
    let holder = kept::holder_of_staging(&staging);
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

/// Makes `to` a copy of the file or link at `from`, with mode, owner and label, in place of what is there.
/// The caller makes its name durable.
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
    if stat.kind == Kind::Link {
        root.build_link(to, &root.read_link(from)?)?;
        return Ok(root.own_link(to, &meta)?);
    }
    copy_file(root, from, to, &meta)?;
    Ok(root.sync_file(to)?)
}

/// Makes `to`, which must be free, a copy of the file at `from` with another mode and owner.
pub(super) fn copy_file(
    root: &Root,
    from: &AbsPath,
    to: &AbsPath,
    meta: &Meta,
) -> Result<(), TransactionError> {
    let bytes = root.read_nofollow(from, LARGEST)?;
    root.build_file(to, &bytes, meta)?;
    for (name, error) in root.copy_meta_extras(from, to)?.left {
        tracing::warn!(path = %to, "attribute {name} is not kept: {error}");
    }
    Ok(())
}
