//! A user who exchanges a directory with a link in a loop, while updates are committed and rolled
//! back.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use machinist_rootfs::FileKind;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;
use machinist_testkit::sandbox::{difference, from_environment, long};

const FILES: u64 = 6;

/// Exchanges two names continuously until it is stopped.
struct Exchanger {
    names: [PathBuf; 2],
    running: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

fn exchange([one, other]: &[PathBuf; 2]) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

impl Exchanger {
    fn start(names: [PathBuf; 2]) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let (flag, pair) = (Arc::clone(&running), names.clone());
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while flag.load(Ordering::Relaxed) {
                exchange(&pair);
                count += 1;
            }
            count
        });
        let thread = Some(thread);
        Self {
            names,
            running,
            thread,
        }
    }

    /// Stops it, with the directory under the first name again. Returns how often the names were
    /// exchanged.
    fn stop(mut self) -> u64 {
        self.running.store(false, Ordering::Relaxed);
        let count = self.thread.take().unwrap().join().unwrap();
        if self.names[0].is_symlink() {
            exchange(&self.names);
        }
        count
    }
}

/// A config of files of bob in one directory, and another mode for a directory there.
fn raced() -> Written {
    let mut wanted = config("raced").dir("/home/bob/a/d", 0o700);
    for number in 0..FILES {
        wanted = wanted.file(&format!("/home/bob/a/{number}"), "ours\n", 0o644);
    }
    for file in wanted.0.files.values_mut() {
        file.user = Some(Owner::Id(BOB));
        file.group = Some(Owner::Id(BOB));
    }
    wanted
}

#[test]
fn a_directory_continuously_exchanged_for_a_link_redirects_no_operation() {
    if !plays_users() {
        return;
    }
    let operations = from_environment("ROUNDS").unwrap_or(if long() { 10_000 } else { 150 });
    let sandbox = machine(&[
        Dir("/home/bob/a", BOB, 0o755),
        Dir("/home/bob/a/d", BOB, 0o755),
        File("/home/bob/a/1", BOB),
        Link("/home/bob/l", BOB, "/etc/systemd/system"),
        Dir("/etc/systemd/system/d", 0, 0o755),
        File("/etc/systemd/system/1", 0),
    ]);
    let names = ["/home/bob/a", "/home/bob/l"].map(|path| sandbox.path(path));
    let before = outside(&sandbox);
    let (mut tried, mut committed, mut exchanged) = (0, 0, 0);
    while tried < operations {
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&raced()).unwrap();
        let exchanger = Exchanger::start(names.clone());
        let done = hand.commit().is_ok();
        let undone = hand.undo();
        exchanged += exchanger.stop();
        undone.unwrap();
        tried += 2 * (FILES + 1);
        committed += u64::from(done);
        let after = outside(&sandbox);
        assert!(after == before, "{}", difference(&before, &after));
        assert_eq!(
            sandbox
                .root()
                .stat(&at("/home/bob/l"))
                .unwrap()
                .unwrap()
                .kind,
            FileKind::Link
        );
        reset(&sandbox);
    }
    println!("{tried} operations, {committed} commits succeeded, {exchanged} exchanges");
}

/// Restores bob's directory; anything left behind there would be his to remove.
fn reset(sandbox: &Sandbox) {
    let home = sandbox.path("/home/bob/a");
    std::fs::remove_dir_all(&home).unwrap();
    for object in [
        Dir("/home/bob/a", BOB, 0o755),
        Dir("/home/bob/a/d", BOB, 0o755),
        File("/home/bob/a/1", BOB),
    ] {
        add(sandbox, &object);
    }
}
