//! Manages the directories at mount points that contain staging directories and originals. On a mount where every
//! user may create files, such as `/tmp`, another user may have taken the name.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, RandomState},
};

use super::{TransactionError, finalize::originals, holder_path};
use crate::{journal::Journal, store::paths};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Mount, ObjectIdentity, Root};

/// The default name of such a directory, and the prefix of all others.
const HOLDER_DIR_NAME: &str = ".machinist";

/// Returns whether this may be the name of such a directory.
pub fn is_holder_name(name: &str) -> bool {
    name.strip_prefix(HOLDER_DIR_NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The directories that machinist has created, according to the journal.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownHolders {
    recorded: BTreeMap<AbsPath, ObjectIdentity>,
    /// Directories that contain originals: versions that did not record identities have created some.
    in_use: BTreeSet<AbsPath>,
}

pub(super) fn known(journal: &Journal) -> KnownHolders {
    let open = journal.transactions.iter().flat_map(|tx| &tx.holders);
    let recorded = journal.holders.iter().chain(open);
    let kept = originals(journal).into_values();
    KnownHolders {
        recorded: recorded.map(|(path, id)| (path.clone(), *id)).collect(),
        in_use: kept.map(|place| holder_path::holder(&place)).collect(),
    }
}

/// Returns the directory to use at a mount point: one that machinist has created, else a new name. Creates nothing.
pub(super) fn choose(
    root: &Root,
    mount: &Mount,
    known: &KnownHolders,
) -> Result<AbsPath, TransactionError> {
    let usual = mount.top.join(HOLDER_DIR_NAME)?;
    let made = known.recorded.keys().chain(&known.in_use);
    let at_top = made.filter(|path| path.parent().as_ref() == Some(&mount.top));
    for path in at_top {
        let there = root.stat(path)?;
        let ours = there.filter(|stat| stat.is_private(&mount.fs_type));
        let recorded = known.recorded.get(path);
        if ours.is_some_and(|stat| recorded.is_none_or(|id| *id == stat.identity)) {
            return Ok(path.clone());
        }
    }
    if root.stat(&usual)?.is_none() {
        return Ok(usual);
    }
    // A random name, which no user can have taken in advance.
    let drawn = RandomState::new().hash_one(());
    Ok(mount.top.join(&format!("{HOLDER_DIR_NAME}-{drawn:016x}"))?)
}

/// Ensures that the parent of the staging directory `dir` exists and is machinist's own. Returns `None` for the
/// state directory and `/etc`, where no other user can create files.
pub(super) fn secure(
    root: &Root,
    dir: &AbsPath,
) -> Result<Option<(AbsPath, ObjectIdentity)>, TransactionError> {
    let holder = holder_path::holder_of_staging(dir);
    if !is_at_top(&holder)? {
        return Ok(None);
    }
    match root.private_dir(&holder)? {
        Some(identity) => Ok(Some((holder, identity))),
        None => Err(TransactionError::Changed { target: holder }),
    }
}

/// Returns whether the directory's content can be trusted: no other user could have put it there.
pub(super) fn is_private(root: &Root, holder: &AbsPath) -> Result<bool, TransactionError> {
    if !is_at_top(holder)? {
        return Ok(true);
    }
    let fs_type = root.mount(holder)?.fs_type;
    let stat = root.stat(holder)?;
    Ok(stat.is_some_and(|stat| stat.is_private(&fs_type)))
}

/// Returns whether a holder is at the mount point of another file system than those of the state directory and `/etc`.
pub(super) fn is_at_top(holder: &AbsPath) -> Result<bool, TransactionError> {
    let of_etc = AbsPath::root().join("etc")?.join(HOLDER_DIR_NAME)?;
    Ok(*holder != paths::state_dir() && *holder != of_etc)
}

/// Drops the directories that no longer exist.
pub(super) fn drop_removed(root: &Root, journal: &mut Journal) -> Result<(), TransactionError> {
    let mut there = BTreeMap::new();
    for (path, identity) in &journal.holders {
        if root
            .stat(path)?
            .is_some_and(|stat| stat.identity == *identity)
        {
            there.insert(path.clone(), *identity);
        }
    }
    journal.holders = there;
    Ok(())
}
