//! One step of path resolution: what a name in a directory means for a path that passes through it.

use std::{io, os::fd::OwnedFd};

use rustix::io::Errno;

use super::{
    DirectoryControl, ExpectedObject, FileKind, Meta, Root, RootError, Stat,
    directory_control::{ComponentFacts, LinkBound, TrustedUsers},
    mount_crossing::mount_of,
    resolve,
};
use machinist_base::abs_path::AbsPath;

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// A directory, and who controls it.
    Directory(DirectoryControl),
    /// A link that may be followed.
    Link(LinkTarget),
    /// An object that is neither.
    Other,
    /// Nothing exists there.
    Absent,
}

/// The target of a link that may be followed, and the limits for following it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTarget {
    /// The target as written in the link.
    pub target: String,
    pub(super) bound: Option<LinkBound>,
}

impl LinkTarget {
    /// A link that the config itself will create, in a directory controlled by `control`. `owner` is none for a user
    /// who does not exist yet.
    ///
    /// # Errors
    /// The reason, if the link cannot be followed once it exists, because another user controls it.
    pub fn planned(
        root: &Root,
        target: String,
        at: &AbsPath,
        control: &DirectoryControl,
        owner: Option<u32>,
    ) -> Result<Self, String> {
        let trusted = root.trusted().map_err(|error| error.to_string())?;
        let owner = match (root.can_chown(), owner, control) {
            (false, ..) => rustix::process::geteuid().as_raw(),
            (true, Some(owner), _) => owner,
            // Below this point, every link counts as that user's.
            (
                true,
                None,
                DirectoryControl::User {
                    uid: Some(user), ..
                },
            ) => *user,
            (true, None, _) => return Err(format!("the link {at} belongs to a new user")),
        };
        let bound = trusted.follow(control, at, owner, &target)?;
        Ok(Self { target, bound })
    }

    /// Whether the link may lead through `at`, an object that gets the owner of `planned`, if given.
    ///
    /// # Errors
    /// The reason why not.
    pub fn passes(&self, root: &Root, at: &AbsPath, planned: Option<&Meta>) -> Result<(), String> {
        let Some(bound) = &self.bound else {
            return Ok(());
        };
        let planned = planned.filter(|meta| meta.chown);
        let owner = || match planned {
            Some(meta) => Ok(Some(meta.uid)),
            None => root.stat(at).map(|stat| stat.map(|stat| stat.uid)),
        };
        // An object that cannot be examined must not be passed.
        let uid = match at.is_under(&bound.top).then(owner) {
            Some(Ok(uid)) => uid,
            _ => return Err(bound.refusal(at.as_str())),
        };
        bound.passes(at, uid)
    }
}

impl Root {
    /// Examines the object at `at`, which is in the directory `holder` (a path without links,
    /// controlled by `above`). A directory is judged with the mode and owner of `planned`, if given.
    pub fn step(
        &self,
        holder: &AbsPath,
        above: &DirectoryControl,
        at: &AbsPath,
        planned: Option<&Meta>,
    ) -> Result<StepResult, RootError> {
        let failed = |error| self.failed("look at", at, error);
        let dir = match self.open_without_links(holder.relative()) {
            Ok(dir) => dir,
            Err(error) if resolve::is_absent(&error) => return Ok(StepResult::Absent),
            Err(error) => return Err(failed(error)),
        };
        let (_, mount) = mount_of(&dir).map_err(failed)?;
        match self.found(&dir, at.file_name(), mount) {
            Ok((handle, mut found, _)) => {
                let trusted = self.trusted().map_err(failed)?;
                if let Some(meta) = planned {
                    found.plan(&handle, meta);
                }
                self.judged(trusted, above, at, &handle, &found)
            }
            Err(error) if resolve::is_absent(&error) => Ok(StepResult::Absent),
            Err(error) => Err(self.inaccessible(at, error)),
        }
    }

    /// Determines who will control the directory at `at`, which does not exist yet, if it is created
    /// with this mode and owner.
    pub fn step_into_new(
        &self,
        above: &DirectoryControl,
        at: &AbsPath,
        meta: &Meta,
    ) -> Result<DirectoryControl, RootError> {
        let trusted = self.trusted();
        let trusted = trusted.map_err(|error| self.failed("look at", at, error))?;
        let own = rustix::process::geteuid().as_raw();
        let (uid, gid) = match meta.chown {
            true => (meta.uid, meta.gid),
            false => (own, own),
        };
        let shared = match meta.mode & 0o022 {
            0 => false,
            0o020 => gid != 0,
            _ => true,
        };
        let control = trusted.enter_as(above, at, (uid, meta.mode), shared);
        control.map_err(|why| refused(at, why))
    }

    /// A file system that denies access even to root is one that a user has mounted, or whose
    /// server does not trust this machine.
    pub(super) fn inaccessible(&self, at: &AbsPath, error: io::Error) -> RootError {
        let kept_out = [Errno::ACCESS, Errno::NOTCONN].map(|errno| Some(errno.raw_os_error()));
        match kept_out.contains(&error.raw_os_error()) && rustix::process::geteuid().is_root() {
            true => refused(at, format!("the file system of {at} denies access to root")),
            false => self.failed("look at", at, error),
        }
    }

    pub(super) fn judged(
        &self,
        trusted: TrustedUsers,
        above: &DirectoryControl,
        at: &AbsPath,
        handle: &OwnedFd,
        found: &ComponentFacts,
    ) -> Result<StepResult, RootError> {
        let refused = |why| refused(at, why);
        Ok(match found.stat.kind {
            FileKind::Directory => {
                StepResult::Directory(trusted.enter(above, at, found).map_err(refused)?)
            }
            FileKind::Link => {
                let target = rustix::fs::readlinkat(handle, "", Vec::new())
                    .map_err(|errno| self.failed("read the link", at, errno.into()))?;
                let target = target.into_string().map_err(|_| match above {
                    DirectoryControl::Root => RootError::NotText {
                        what: "the link target",
                        path: self.host_path(at),
                    },
                    _ => refused(format!("the link {at} leads to a path that is not UTF-8")),
                })?;
                let bound = trusted
                    .follow(above, at, found.stat.uid, &target)
                    .map_err(refused)?;
                StepResult::Link(LinkTarget { target, bound })
            }
            _ => StepResult::Other,
        })
    }

    /// Why the object at `p`, in a directory controlled by `control`, may not be replaced or read;
    /// `None` if it may.
    pub fn foreign_target(
        &self,
        p: &AbsPath,
        stat: &Stat,
        control: &DirectoryControl,
        own: &ExpectedObject<'_>,
    ) -> Result<Option<String>, RootError> {
        let trusted = self
            .trusted()
            .map_err(|error| self.failed("look at", p, error))?;
        Ok(trusted.target(control, p, stat, own).err())
    }
}

pub(super) fn refused(at: &AbsPath, why: String) -> RootError {
    let path = at.clone();
    RootError::Unsafe { path, why }
}
