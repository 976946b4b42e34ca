//! Checks which other users may change a file: the owners, modes and mounts of its path and of all
//! parents.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{fs::StatVfsMountFlags, io::Errno};

use super::{FileKind, Root, RootError, Stat, resolve};
use machinist_base::abs_path::AbsPath;

/// Extended attribute of an access control list. Where one exists, the group bits of the mode are
/// the upper limit for all its entries.
const ACL_XATTR: &str = "system.posix_acl_access";

impl Root {
    /// Whether this process acts with root's rights on a running machine: then it accepts only
    /// files that root alone may write.
    pub fn accepts_only_root(&self) -> bool {
        rustix::process::geteuid().is_root() && self.is_live()
    }

    /// Fails if a user other than root and this process's own may write the object that `p` leads
    /// to, or replace it, by owner, mode and access control list of every object on the path, links
    /// included. Objects on a read-only mount cannot be written there. It is no failure if nothing
    /// exists at `p`.
    pub fn check_trusted(&self, p: &AbsPath) -> Result<(), RootError> {
        if self.0.shown != Path::new("/")
            && let Ok(above) = AbsPath::new(self.0.shown.display().to_string())
        {
            Self::open(Path::new("/"))?.check_way(&above, true)?;
        }
        self.check_way(p, true)
    }

    /// Whether only root and this process's own user can change the target of `p`, that is, own the
    /// directories and links on the path. Write access to the file or device at the end is not
    /// considered. A path that does not exist counts as theirs.
    pub fn is_lasting_name(&self, p: &AbsPath) -> bool {
        self.check_way(p, false).is_ok()
    }

    fn check_way(&self, p: &AbsPath, end: bool) -> Result<(), RootError> {
        let failed = |at: &AbsPath, error| self.failed("look at", at, error);
        let mut todo: Vec<String> = p.relative().split('/').rev().map(str::to_owned).collect();
        // Start with the root itself.
        todo.push(String::new());
        let (mut at, mut links) = (AbsPath::root(), 0);
        while let Some(part) = todo.pop() {
            let next = match part.as_str() {
                "" | "." => at.clone(),
                ".." => at.parent().unwrap_or_else(AbsPath::root),
                name => at
                    .join(name)
                    .map_err(|_| failed(&at, io::ErrorKind::InvalidInput.into()))?,
            };
            let found = match self.handle(&next) {
                Err(error) if resolve::is_absent(&error) => return Ok(()),
                found => found.map_err(|error| failed(&next, error))?,
            };
            let stat = resolve::statx_of(&found).map_err(|error| failed(&next, error))?;
            let stat = Stat::of(&stat);
            if !end && !matches!(stat.kind, FileKind::Directory | FileKind::Link) {
                return Ok(());
            }
            if let Some(writer) = writer(&found, &stat).map_err(|error| failed(&next, error))? {
                return Err(RootError::Untrusted {
                    path: self.host_path(&next),
                    writer,
                });
            }
            if stat.kind != FileKind::Link {
                at = next;
                continue;
            }
            links += 1;
            if links > super::MAX_SYMLINKS {
                return Err(failed(&next, Errno::LOOP.into()));
            }
            let target = self.read_link(&next)?;
            if target.starts_with('/') {
                at = AbsPath::root();
            }
            todo.extend(target.split('/').rev().map(str::to_owned));
        }
        Ok(())
    }
}

/// Which users besides root and this process's own may write the object or exchange its entries. In
/// a sticky directory only an object's own owner may, and the object is checked next.
fn writer(object: &OwnedFd, stat: &Stat) -> io::Result<Option<String>> {
    let own = rustix::process::geteuid().as_raw();
    let mount = rustix::fs::fstatvfs(object)?;
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(None);
    }
    let (mode, gid) = (stat.mode, stat.gid);
    if stat.uid != 0 && stat.uid != own {
        return Ok(Some(format!("it belongs to uid {}", stat.uid)));
    }
    let sticky = stat.kind == FileKind::Directory && mode & 0o1000 != 0;
    if stat.kind == FileKind::Link || sticky || mode & 0o022 == 0 {
        return Ok(None);
    }
    if mode & 0o002 != 0 {
        return Ok(Some(format!("any user may write it (mode {mode:04o})")));
    }
    // A user's private group often has the number of the user, and no other member.
    if gid != 0 && gid != own {
        return Ok(Some(format!("group {gid} may write it (mode {mode:04o})")));
    }
    let listed = match rustix::fs::getxattr(resolve::proc_path(object), ACL_XATTR, &mut [0_u8; 256])
    {
        Ok(length) => length > 0,
        Err(errno) => errno == Errno::RANGE,
    };
    Ok(listed.then(|| format!("its access control list lets others write (mode {mode:04o})")))
}
