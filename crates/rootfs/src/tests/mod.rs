//! Tests of this module against a real directory; results are checked with std's own file calls.
#![allow(clippy::disallowed_methods, reason = "tests judge from outside")]

mod change;
mod look;
mod private;
mod socket;
mod watch;

use std::{path::PathBuf, time::Duration};

use super::*;

/// The longest wait for a condition; it only decides a failure.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn at(p: &str) -> AbsPath {
    p.parse().unwrap()
}

/// A mode without an owner, so that any user may run the tests.
fn meta(mode: u32) -> Meta {
    Meta {
        mode,
        uid: 0,
        gid: 0,
        chown: false,
    }
}

/// A temporary directory with a root in it, and a file outside the root that must stay invisible.
struct Place {
    dir: tempfile::TempDir,
    root: Root,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("root/etc")).unwrap();
        std::fs::write(dir.path().join("outside"), "outside").unwrap();
        let root = Root::open(&dir.path().join("root")).unwrap();
        Self { dir, root }
    }

    /// The real path of `p`, which contains no links.
    fn real(&self, p: &str) -> PathBuf {
        self.dir.path().join("root").join(&p[1..])
    }

    fn file(&self, p: &str, text: &str) -> AbsPath {
        std::fs::write(self.real(p), text).unwrap();
        at(p)
    }

    fn link(&self, p: &str, target: &str) -> AbsPath {
        std::os::unix::fs::symlink(target, self.real(p)).unwrap();
        at(p)
    }

    fn directory(&self, p: &str) -> AbsPath {
        std::fs::create_dir_all(self.real(p)).unwrap();
        at(p)
    }

    fn text(&self, p: &str) -> String {
        std::fs::read_to_string(self.real(p)).unwrap()
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn root_handles_can_be_sent_to_other_threads() {
    const fn sendable<T: Send>() {}
    const fn shareable<T: Send + Sync>() {}
    shareable::<Root>();
    shareable::<SyncPoint>();
    sendable::<Watch>();
    sendable::<FileLock>();
}
