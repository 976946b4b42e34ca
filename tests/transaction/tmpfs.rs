//! A real file system that a test mounts into its machine.

use std::path::PathBuf;

use machinist_testkit::sandbox::Sandbox;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A mounted tmpfs, which is unmounted on drop. Drop it before the sandbox: declare it later.
pub(super) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts an empty one, whose top belongs to `uid`. `None` where mounts are not permitted.
    pub(super) fn new(sandbox: &Sandbox, path: &str, uid: u32) -> Option<Self> {
        let top = sandbox.path(path);
        std::fs::create_dir_all(&top).unwrap();
        let options = format!("mode=0755,size=256m,uid={uid},gid={uid}");
        let kind = Some("tmpfs");
        match mount(kind, &top, kind, MsFlags::empty(), Some(options.as_str())) {
            Ok(()) => Some(Self(top)),
            Err(error) => {
                println!("skipped: mounting is not permitted: {error}");
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
