//! One step of path resolution: what a name in a directory means for a path that passes through it.

use std::{io, os::fd::OwnedFd};

use rustix::io::Errno;

use super::{
    Control, Kind, Own, Root, RootError, Stat,
    control::{Bound, Found, Trusted},
    found::mount_of,
    walk,
};
use crate::path::AbsPath;

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A directory, and who controls it.
    Directory(Control),
    /// A link that may be followed.
    Link(Followed),
    /// An object that is neither.
    Other,
    /// Nothing exists there.
    Absent,
}

/// The target of a link that may be followed, and the limits for following it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The target as written in the link.
    pub target: String,
    pub(super) bound: Option<Bound>,
}

impl Followed {
    /// A link that the config itself will create, in a directory controlled by `control`.
    ///
    /// # Errors
    /// The reason, if other users may exchange the link, so that it cannot be followed.
    pub fn planned(target: String, at: &AbsPath, control: &Control) -> Result<Self, String> {
        match control {
            Control::Root => Ok(Self {
                target,
                bound: None,
            }),
            Control::User {
                uid: Some(user),
                top,
            } => {
                let (link, user, top) = (at.clone(), *user, top.clone());
                let bound = Some(Bound {
                    link,
                    owner: user,
                    user,
                    top,
                });
                Ok(Self { target, bound })
            }
            Control::Sticky | Control::User { uid: None, .. } => Err(format!(
                "the link {at} of the config is in a directory that others may write"
            )),
        }
    }

    /// Whether the link may lead through `at`.
    ///
    /// # Errors
    /// The reason why not.
    pub fn passes(&self, root: &Root, at: &AbsPath) -> Result<(), String> {
        let Some(bound) = &self.bound else {
            return Ok(());
        };
        // An object that cannot be examined must not be passed.
        let uid = match at.is_under(&bound.top).then(|| root.stat(at)) {
            Some(Ok(stat)) => stat.map(|stat| stat.uid),
            _ => return Err(bound.refusal(at.as_str())),
        };
        bound.passes(at, uid)
    }
}

impl Root {
    /// Examines the object at `at`, which is in the directory `holder` (a path without links,
    /// controlled by `above`).
    pub fn step(&self, holder: &AbsPath, above: &Control, at: &AbsPath) -> Result<Step, RootError> {
        let failed = |error| self.failed("look at", at, error);
        let dir = match self.open_without_links(holder.relative()) {
            Ok(dir) => dir,
            Err(error) if walk::is_absent(&error) => return Ok(Step::Absent),
            Err(error) => return Err(failed(error)),
        };
        let (_, mount) = mount_of(&dir).map_err(failed)?;
        match self.found(&dir, at.file_name(), mount) {
            Ok((handle, found, _)) => {
                let trusted = self.trusted().map_err(failed)?;
                self.judged(trusted, above, at, &handle, &found)
            }
            Err(error) if walk::is_absent(&error) => Ok(Step::Absent),
            Err(error) => Err(self.not_let_in(at, error)),
        }
    }

    /// A file system that denies access even to root is one that a user has mounted, or whose
    /// server does not trust this machine.
    pub(super) fn not_let_in(&self, at: &AbsPath, error: io::Error) -> RootError {
        let kept_out = [Errno::ACCESS, Errno::NOTCONN].map(|errno| Some(errno.raw_os_error()));
        match kept_out.contains(&error.raw_os_error()) && rustix::process::geteuid().is_root() {
            true => refused(at, format!("the file system of {at} denies access to root")),
            false => self.failed("look at", at, error),
        }
    }

    pub(super) fn judged(
        &self,
        trusted: Trusted,
        above: &Control,
        at: &AbsPath,
        handle: &OwnedFd,
        found: &Found,
    ) -> Result<Step, RootError> {
        let refused = |why| refused(at, why);
        Ok(match found.stat.kind {
            Kind::Directory => Step::Directory(trusted.enter(above, at, found).map_err(refused)?),
            Kind::Link => {
                let bound = trusted.follow(above, at, found).map_err(refused)?;
                let target = rustix::fs::readlinkat(handle, "", Vec::new())
                    .map_err(|errno| self.failed("read the link", at, errno.into()))?;
                let target = target.into_string().map_err(|_| match above {
                    Control::Root => RootError::NotText {
                        what: "the link target",
                        path: self.host_path(at),
                    },
                    _ => refused(format!("the link {at} leads to a path that is not UTF-8")),
                })?;
                Step::Link(Followed { target, bound })
            }
            _ => Step::Other,
        })
    }

    /// Why the object at `p`, in a directory controlled by `control`, may not be replaced or read;
    /// `None` if it may.
    pub fn foreign_target(
        &self,
        p: &AbsPath,
        stat: &Stat,
        control: &Control,
        own: &Own<'_>,
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
