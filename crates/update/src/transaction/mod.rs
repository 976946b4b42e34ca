//! Implements a transaction on the tree: intent, stage, commit, undo, finish.
//!
//! The list of operations is durable before anything changes ([`Mark::Intent`]). Every new object is built
//! completely in a staging directory *on the target's own mount* and synced ([`Mark::Staged`]). Then each operation
//! is one rename that exchanges the old and the new object (three renames if the file system lacks
//! `RENAME_EXCHANGE`), and a final sync makes them durable ([`Mark::Committed`]). The journal does not record which
//! operations are done: this is *judged* from the objects at the target and in the slot, so that a crash between
//! two renames needs no record. The old object stays in its slot until the update is verified, so an undo needs
//! neither free space nor a copy.
//!
//! This module is synchronous and depends only on the root and the journal: the agent, the command line, and
//! recovery at boot use the same code.
//!
//! [`Mark::Intent`]: super::journal::TransactionState::Intent
//! [`Mark::Staged`]: super::journal::TransactionState::Staged
//! [`Mark::Committed`]: super::journal::TransactionState::Committed

mod adopted_originals;
mod backups;
mod cleanup;
mod commit;
mod finalize;
mod holder_path;
mod intent;
mod mount_point_dirs;
mod ownership;
mod passwd_entries;
mod progress;
mod rollback;
mod staging;
mod staging_dirs;
mod target_directory;
mod target_path;
mod three_step_swap;

pub use adopted_originals::{copy_original, take_original};
pub use cleanup::{RestoredOriginal, clean_up, release};
pub use commit::commit;
pub use finalize::{changed_objects, finish, labels, made, modes, originals, user_written};
pub use intent::{TransactionIntent, begin};
pub use mount_point_dirs::is_holder_name;
pub use ownership::owned_files;
pub use passwd_entries::{databases, kept_entries};
pub use rollback::{RollbackSummary, UnrevertedTarget, drop_staging, undo};
pub use staging::{AbortFlag, stage};

use std::collections::BTreeMap;

use crate::{
    journal::{ObjectId, Transaction},
    store::StoreError,
};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_plan::MAX_TOTAL_FILE_BYTES;
use machinist_rootfs::{FileKind, MountId, Root, RootError, Stat, SyncPoint};

/// Reasons why a transaction cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// The objects at the target and in the slot match neither the state before nor the state after.
    #[error("{target} was changed by another process during the update")]
    Changed {
        /// The target.
        target: AbsPath,
    },
    /// A user could redirect the path of the target.
    #[error("{target} is not changed")]
    Unsafe {
        /// The target.
        target: AbsPath,
        /// How.
        source: Box<RootError>,
    },
    /// The agent was stopped before the commit.
    #[error("stopped before the commit")]
    Stopped,
    /// The file system of the target is not mounted.
    #[error("the file system of {target} is not mounted, or its staged content was removed")]
    MountMissing {
        /// The target.
        target: AbsPath,
    },
    /// Another process holds the lock on the user databases.
    #[error("{path} is locked by another process that changes users or groups")]
    Locked {
        /// The lock.
        path: AbsPath,
    },
    /// The list of operations does not match the plan; this is a defect.
    #[error("the operation at {target} differs from the plan")]
    NotThePlan {
        /// The target.
        target: AbsPath,
    },
    /// The config was read without the contents of its files; this is a defect.
    #[error("content {digest} of the config is missing")]
    NoContent {
        /// The missing content.
        digest: Digest,
    },
    /// A path could not be formed.
    #[error(transparent)]
    Path(#[from] machinist_base::abs_path::BadPath),
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The journal could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TransactionError {
    /// Returns whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Changed { .. }
            | Self::Stopped
            | Self::MountMissing { .. }
            | Self::Locked { .. } => true,
            Self::NotThePlan { .. } | Self::NoContent { .. } | Self::Path(_) => false,
            Self::Root(error) => error.is_retryable(),
            Self::Unsafe { source, .. } => source.is_retryable(),
            Self::Store(error) => error.is_retryable(),
        }
    }

    /// Returns the target that another writer has changed, if that is the cause.
    pub const fn changed_target(&self) -> Option<&AbsPath> {
        match self {
            Self::Changed { target } | Self::Unsafe { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Returns whether another writer's change of the tree is the cause: then a retry of the same commit would not
    /// succeed.
    pub fn is_foreign_change(&self) -> bool {
        match self {
            Self::Changed { .. } | Self::Unsafe { .. } => true,
            Self::Root(error) => error.is_unsafe(),
            _ => false,
        }
    }

    /// Returns the reason code for status and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Changed { .. } => Reason::TargetChanged,
            Self::Stopped => Reason::Withdrawn,
            Self::Locked { .. } => Reason::CommitFailed,
            Self::MountMissing { .. } => Reason::MountMissing,
            Self::NotThePlan { .. } | Self::NoContent { .. } | Self::Path(_) => {
                Reason::StagingFailed
            }
            Self::Root(error) => error.reason(),
            Self::Unsafe { source, .. } => source.reason(),
            Self::Store(error) => error.reason(),
        }
    }
}

/// Returns the identity of the object at `path`; `None` if there is none.
fn object_at(root: &Root, path: &AbsPath) -> Result<Option<ObjectId>, TransactionError> {
    root.stat(path)?
        .map(|stat| identify(root, path, &stat))
        .transpose()
}

/// Identifies an object by its inode and birth time, or by the digest of its content if the file system has no
/// birth times.
fn identify(root: &Root, path: &AbsPath, stat: &Stat) -> Result<ObjectId, TransactionError> {
    let birth = stat.identity.birth;
    let digest = match (birth, stat.kind) {
        (None, FileKind::File) => Some(content_of(root, path, stat)?),
        _ => None,
    };
    Ok(ObjectId {
        kind: kind_name(stat.kind).to_owned(),
        ino: stat.identity.ino,
        birth,
        digest,
    })
}

/// Returns the digest of a file's content. For a file that is longer than a config allows, or that another process
/// holds by a lease, returns a digest of its size and modification time.
fn content_of(root: &Root, path: &AbsPath, stat: &Stat) -> Result<Digest, TransactionError> {
    let digest = match root.digest_within(path, MAX_TOTAL_FILE_BYTES) {
        Err(error) if error.is_leased() => None,
        digest => digest?,
    };
    let outside = || Digest::of(format!("{} {:?}", stat.size, stat.mtime).as_bytes());
    Ok(digest.unwrap_or_else(outside))
}

/// Returns the journal's name of the kind.
const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "charDevice",
        FileKind::BlockDevice => "blockDevice",
    }
}

/// One descriptor for each file system that is written to, opened before the first write so that no write error is
/// missed.
struct SyncPoints<'a> {
    root: &'a Root,
    by_mount: BTreeMap<MountId, SyncPoint>,
}

impl<'a> SyncPoints<'a> {
    fn new(root: &'a Root) -> Self {
        let by_mount = BTreeMap::new();
        Self { root, by_mount }
    }

    /// Opens the file systems of a transaction: each target shares its mount with one of the staging directories.
    fn of(root: &'a Root, tx: &Transaction) -> Result<Self, TransactionError> {
        let mut points = Self::new(root);
        for dir in &tx.staging {
            points.add(dir)?;
        }
        Ok(points)
    }

    /// Adds the file system of `dir`, or of its nearest existing parent.
    fn add(&mut self, dir: &AbsPath) -> Result<(), TransactionError> {
        match (self.add_existing(dir), dir.parent()) {
            // A user has created a link to itself there, or mounted a file system to which root has no access.
            (Err(error), Some(parent)) if error.is_loop() || error.is_unreachable() => {
                self.add(&parent)
            }
            (added, _) => Ok(added?),
        }
    }

    fn add_existing(&mut self, dir: &AbsPath) -> Result<(), RootError> {
        let mount = self.root.mount(dir)?.id;
        if !self.by_mount.contains_key(&mount) {
            self.by_mount.insert(mount, self.root.sync_point(dir)?);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), TransactionError> {
        for point in self.by_mount.values() {
            point.sync()?;
        }
        Ok(())
    }
}
