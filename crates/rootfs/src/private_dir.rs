//! Directories that no other user can read or change.

use std::os::fd::AsFd;

use rustix::{
    fs::{Access, AtFlags},
    io::Errno,
};

use super::{FileKind, Meta, Mount, ObjectIdentity, Root, RootError, Stat};
use machinist_base::abs_path::AbsPath;

/// File systems without owners: every object has the owner given by the mount.
const OWNERLESS_FILESYSTEMS: [&str; 2] = ["vfat", "exfat"];

impl Stat {
    /// Whether it is a directory of this process's own user that no other user may enter. On a file
    /// system without owners, where the mount gives all directories the same mode, it is enough
    /// that no other user may write.
    pub fn is_private(&self, fs_type: &str) -> bool {
        let others = match OWNERLESS_FILESYSTEMS.contains(&fs_type) {
            true => 0o022,
            false => 0o077,
        };
        let own = self.uid == rustix::process::geteuid().as_raw();
        self.kind == FileKind::Directory && own && self.mode & others == 0
    }
}

impl Root {
    /// The private directory at `p`, which is created if nothing exists there. `None` if something
    /// else exists there.
    pub fn private_dir(&self, p: &AbsPath) -> Result<Option<ObjectIdentity>, RootError> {
        if self.stat(p)?.is_none() {
            let meta = Meta {
                mode: 0o700,
                uid: 0,
                gid: 0,
                chown: false,
            };
            match self.build_dir(p, &meta) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            self.sync_dir(p)?;
            self.sync_dir(&p.parent().unwrap_or_else(AbsPath::root))?;
        }
        let fs_type = self.mount(p)?.fs_type;
        let there = self.stat(p)?.filter(|stat| stat.is_private(&fs_type));
        Ok(there.map(|stat| stat.identity))
    }

    /// Whether [`Root::private_dir`] can create one at the top of `mount`.
    pub fn takes_private_dirs(&self, mount: &Mount) -> Result<bool, RootError> {
        let top = &mount.top;
        if OWNERLESS_FILESYSTEMS.contains(&mount.fs_type.as_str()) {
            let stat = self.stat(top)?;
            return Ok(stat.is_some_and(|stat| stat.is_private(&mount.fs_type)));
        }
        let ask = || {
            let dir = self.dir_handle(top.relative())?;
            let (how, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            Ok(rustix::fs::accessat(dir.as_fd(), ".", how, flags)?)
        };
        let refused = [Errno::ACCESS, Errno::PERM, Errno::ROFS];
        match ask() {
            Ok(()) => Ok(true),
            Err(error) => {
                let error: std::io::Error = error;
                let number = error.raw_os_error();
                match refused.iter().any(|one| Some(one.raw_os_error()) == number) {
                    true => Ok(false),
                    false => Err(self.failed("look into", top, error)),
                }
            }
        }
    }
}
