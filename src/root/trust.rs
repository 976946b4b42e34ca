//! Who else may change what is read: the owners, modes and mounts of a path and of all that is above it.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{fs::StatVfsMountFlags, io::Errno};

use super::{Kind, Root, RootError, Stat, walk};
use crate::path::AbsPath;

/// Extended attribute of an access control list. Where there is one, the group's bits are the most that anybody
/// on the list has.
const ACL: &str = "system.posix_acl_access";

impl Root {
    /// Whether this process acts with root's rights on a machine that runs: then it obeys only what root alone
    /// may write.
    pub fn obeys_root_alone(&self) -> bool {
        rustix::process::geteuid().is_root() && self.is_live()
    }

    /// Fails where a user other than root and this process's own may write what `p` leads to, or put something else
    /// in its place: by owner, mode and access control list of every object on the way, links included.
    /// What a read-only mount shows cannot be written there. Nothing at `p` is no failure.
    pub fn check_trusted(&self, p: &AbsPath) -> Result<(), RootError> {
        if self.0.shown != Path::new("/")
            && let Ok(above) = AbsPath::new(self.0.shown.display().to_string())
        {
            Self::open(Path::new("/"))?.check_way(&above, true)?;
        }
        self.check_way(p, true)
    }

    /// Whether only root and this process's own user decide what `p` leads to: the directories and links on the way
    /// are theirs. Who may write the file or device at its end does not count. Nothing there counts as theirs.
    pub fn is_lasting_name(&self, p: &AbsPath) -> bool {
        self.check_way(p, false).is_ok()
    }

    fn check_way(&self, p: &AbsPath, end: bool) -> Result<(), RootError> {
        let failed = |at: &AbsPath, error| self.failed("look at", at, error);
        let mut todo: Vec<String> = p.relative().split('/').rev().map(str::to_owned).collect();
        // The root itself comes first.
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
                Err(error) if walk::is_absent(&error) => return Ok(()),
                found => found.map_err(|error| failed(&next, error))?,
            };
            let stat = walk::statx_of(&found).map_err(|error| failed(&next, error))?;
            let stat = Stat::of(&stat);
            if !end && !matches!(stat.kind, Kind::Directory | Kind::Link) {
                return Ok(());
            }
            if let Some(writer) = writer(&found, &stat).map_err(|error| failed(&next, error))? {
                return Err(RootError::Untrusted {
                    path: self.host_path(&next),
                    writer,
                });
            }
            if stat.kind != Kind::Link {
                at = next;
                continue;
            }
            links += 1;
            if links > super::MOST_LINKS {
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

/// Who besides root and this process's user may write the object, or exchange what is in it. In a sticky
/// directory only an object's own owner may, and the object is looked at next.
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
    let sticky = stat.kind == Kind::Directory && mode & 0o1000 != 0;
    if stat.kind == Kind::Link || sticky || mode & 0o022 == 0 {
        return Ok(None);
    }
    if mode & 0o002 != 0 {
        return Ok(Some(format!("any user may write it (mode {mode:04o})")));
    }
    // A user's own group often has the number of the user, and nobody else in it.
    if gid != 0 && gid != own {
        return Ok(Some(format!("group {gid} may write it (mode {mode:04o})")));
    }
    let listed = match rustix::fs::getxattr(walk::proc_path(object), ACL, &mut [0_u8; 256]) {
        Ok(length) => length > 0,
        Err(errno) => errno == Errno::RANGE,
    };
    Ok(listed.then(|| format!("its access control list lets others write (mode {mode:04o})")))
}
