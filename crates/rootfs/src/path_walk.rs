//! Walks a path object by object, each through the descriptor of its parent, by the rules of
//! [`DirectoryControl`], and creates roots on which the checked directories stay the same objects.

use std::{io, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use super::{
    DirectoryControl, ObjectIdentity, Root, RootError, Stat,
    directory_control::{LinkBound, TrustedUsers},
    mount_crossing::{MountId, mount_of},
    path_step::{LinkTarget, StepResult, refused},
    resolve::{self, MAX_SYMLINKS, PinnedDir},
};
use machinist_base::abs_path::AbsPath;

/// The directory of an object, and how it was reached.
#[derive(Clone, Debug)]
pub struct WalkedPath {
    /// The path of the object without links in its parents.
    pub path: AbsPath,
    /// Who controls the directory that holds it.
    pub control: DirectoryControl,
    /// The identity of that directory.
    pub holder: ObjectIdentity,
    /// The links that were followed.
    pub links: Vec<AbsPath>,
    dir: Arc<OwnedFd>,
}

impl WalkedPath {
    /// The same with the path as the caller names it, for [`Root::pinned`].
    #[must_use]
    pub fn spelled(self, path: &AbsPath) -> Self {
        let path = path.clone();
        Self { path, ..self }
    }

    /// Whether both lead to the same name in the same directory. The current inode numbers are
    /// compared, since an overlay may have changed them.
    pub fn is_same(&self, other: &Self) -> bool {
        let now = |way: &Self| {
            let stat = Stat::of(&resolve::statx_of(&*way.dir).ok()?);
            Some((stat.identity.ino, stat.device))
        };
        self.path == other.path && now(self).is_some_and(|here| now(other) == Some(here))
    }
}

/// One directory on the path.
struct WalkedDir {
    dir: Arc<OwnedFd>,
    path: AbsPath,
    control: DirectoryControl,
    stat: Stat,
    mount: MountId,
}

struct PathWalker<'a> {
    root: &'a Root,
    trusted: TrustedUsers,
    entered: Vec<WalkedDir>,
    links: Vec<AbsPath>,
}

impl Root {
    /// Walks to the directory that contains `p`; `p` itself is not examined.
    ///
    /// # Errors
    /// [`RootError::is_unsafe`] if an unprivileged user could redirect root; not found if a
    /// directory on the path is missing.
    pub fn walk(&self, p: &AbsPath) -> Result<WalkedPath, RootError> {
        let mut walker = PathWalker::new(self).map_err(|error| self.failed("walk to", p, error))?;
        walker.to(p)
    }

    /// This root with the directories of `ways` fixed at their paths, even if other objects exist
    /// there by now. Below them no link is followed.
    pub fn pinned(&self, ways: &[&WalkedPath]) -> Self {
        let mut inner = super::Inner::clone(&self.0);
        for way in ways {
            // The root itself is a descriptor already.
            let at = way.path.parent().filter(|at| *at != AbsPath::root());
            inner.pins.extend(at.map(|at| PinnedDir {
                at,
                dir: Arc::clone(&way.dir),
                users: way.control != DirectoryControl::Root,
            }));
        }
        // The innermost directory takes precedence.
        inner
            .pins
            .sort_by_key(|pin| std::cmp::Reverse(pin.at.as_str().len()));
        Self(Arc::new(inner))
    }
}

impl Root {
    /// This root with the directory that is at `dir` now fixed there. ELOOP if a link is on the path.
    /// It is not judged who controls the directory.
    pub fn fixed_at(&self, dir: &AbsPath) -> Result<Self, RootError> {
        let handle = self.open_without_links(dir.relative());
        let handle = handle.map_err(|error| self.failed("look into", dir, error))?;
        let mut inner = super::Inner::clone(&self.0);
        if *dir != AbsPath::root() {
            let pin = PinnedDir {
                at: dir.clone(),
                dir: Arc::new(handle),
                users: true,
            };
            inner.pins.insert(0, pin);
        }
        Ok(Self(Arc::new(inner)))
    }
}

impl<'a> PathWalker<'a> {
    fn new(root: &'a Root) -> io::Result<Self> {
        let dir = root.0.dir.clone();
        let stat = Stat::of(&resolve::statx_of(&*dir)?);
        let (_, mount) = mount_of(&dir)?;
        let top = WalkedDir {
            dir,
            path: AbsPath::root(),
            control: DirectoryControl::Root,
            stat,
            mount,
        };
        Ok(Self {
            trusted: root.trusted()?,
            root,
            entered: vec![top],
            links: Vec::new(),
        })
    }

    fn to(&mut self, p: &AbsPath) -> Result<WalkedPath, RootError> {
        let mut todo: Vec<(String, Option<LinkBound>)> = match p.parent() {
            Some(parent) => parent
                .components()
                .rev()
                .map(|part| (part.to_owned(), None))
                .collect(),
            None => Vec::new(),
        };
        while let Some((part, bound)) = todo.pop() {
            match part.as_str() {
                "" | "." => {}
                ".." => self.up(bound.as_ref())?,
                part => self.down(p, part, bound.as_ref(), &mut todo)?,
            }
        }
        let here = self.here();
        let path = match p.parent() {
            Some(_) => here
                .path
                .join(p.file_name())
                .map_err(|bad| self.root.failed("walk to", p, io::Error::other(bad)))?,
            None => p.clone(),
        };
        Ok(WalkedPath {
            path,
            control: here.control.clone(),
            holder: here.stat.identity,
            dir: Arc::clone(&here.dir),
            links: std::mem::take(&mut self.links),
        })
    }

    fn here(&self) -> &WalkedDir {
        &self.entered[self.entered.len() - 1]
    }

    /// Returns to the directory entered before this one. It does not use `..` of the kernel, which
    /// might lead to another directory by now.
    fn up(&mut self, bound: Option<&LinkBound>) -> Result<(), RootError> {
        if self.entered.len() > 1 {
            self.entered.pop();
        }
        self.pass(bound, Some(self.here().stat.uid))
    }

    fn pass(&self, bound: Option<&LinkBound>, uid: Option<u32>) -> Result<(), RootError> {
        let at = &self.here().path;
        match bound.map(|bound| bound.passes(at, uid)) {
            Some(Err(why)) => Err(refused(at, why)),
            _ => Ok(()),
        }
    }

    fn down(
        &mut self,
        p: &AbsPath,
        part: &str,
        bound: Option<&LinkBound>,
        todo: &mut Vec<(String, Option<LinkBound>)>,
    ) -> Result<(), RootError> {
        let here = self.here();
        let failed = |error| self.root.failed("walk to", p, error);
        let at = here
            .path
            .join(part)
            .map_err(io::Error::other)
            .map_err(failed)?;
        let (handle, found, mount) = self
            .root
            .found(&here.dir, part, here.mount)
            .map_err(|error| self.root.inaccessible(&at, error))?;
        let step = self
            .root
            .judged(self.trusted, &here.control, &at, &handle, &found)?;
        if let Some(Err(why)) = bound.map(|bound| bound.passes(&at, Some(found.stat.uid))) {
            return Err(refused(&at, why));
        }
        match step {
            StepResult::Directory(control) => self.entered.push(WalkedDir {
                dir: Arc::new(handle),
                path: at,
                control,
                stat: found.stat,
                mount,
            }),
            StepResult::Link(LinkTarget {
                target,
                bound: inner,
            }) => {
                self.links.push(at);
                if self.links.len() > MAX_SYMLINKS {
                    return Err(self.root.failed("walk to", p, Errno::LOOP.into()));
                }
                // The limits of the link that led here also hold for the rest of the path.
                let inner = inner.or_else(|| bound.cloned());
                if target.starts_with('/') {
                    self.entered.truncate(1);
                    self.pass(inner.as_ref(), Some(self.here().stat.uid))?;
                }
                let parts = target.split('/').rev();
                todo.extend(parts.map(|part| (part.to_owned(), inner.clone())));
            }
            StepResult::Other | StepResult::Absent => {
                return Err(self.root.failed("walk to", p, Errno::NOTDIR.into()));
            }
        }
        Ok(())
    }
}
