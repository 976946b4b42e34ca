//! Real file systems, created for the test, that fill up at a chosen moment. Needs root; skipped by
//! name elsewhere.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, Root};
use machinist_update::phase::Phase;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::faults::{
    harness::Driver,
    io_errors::{drive, length, must_be_new, must_be_old_or_new, paused},
};
use machinist_testkit::{
    sandbox::{long, temporary},
    update_case::Case,
};

/// A small file system of a kind, mounted until it is dropped.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn tmpfs() -> Option<Self> {
        let dir = temporary();
        let options = Some("size=16m,nr_inodes=400");
        let mounted = mount(
            Some("tmpfs"),
            &dir.path().join(""),
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        );
        mounted.ok().map(|()| Self { dir })
    }

    /// Created by `mkfs.<kind>` with these flags in a file of this many MiB.
    fn image(kind: &str, size: u64, flags: &[&str]) -> Option<Self> {
        let dir = temporary();
        let image = dir.path().with_extension("img");
        File::create(&image).unwrap().set_len(size << 20).unwrap();
        let run = |program: &str, words: &[&str]| {
            let ran = Command::new(program).args(words).output();
            ran.is_ok_and(|ran| ran.status.success())
        };
        let shown = image.to_str().unwrap();
        let made = run(&format!("mkfs.{kind}"), &[flags, &[shown]].concat());
        let mounted = made
            && run(
                "mount",
                &["-o", "loop", shown, dir.path().to_str().unwrap()],
            );
        std::fs::remove_file(&image).unwrap();
        mounted.then(|| Self { dir })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}

/// Uses up the rest of something on a disk, and releases it.
#[derive(Clone)]
struct Ballast {
    dir: PathBuf,
    inodes: bool,
}

impl Ballast {
    fn load(&self) {
        std::fs::create_dir_all(&self.dir).unwrap();
        match self.inodes {
            true => (0..100_000).any(|n| File::create(self.dir.join(n.to_string())).is_err()),
            false => fill(&self.dir),
        };
    }

    fn unload(&self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Uses every block: large pieces first, then the rest in small pieces.
fn fill(dir: &Path) -> bool {
    let file = File::create(dir.join("blocks")).unwrap();
    let (mut at, mut piece) = (0, 256 << 20);
    while piece >= 1024 {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, piece) {
            Ok(()) => at += piece,
            Err(_) => piece /= 2,
        }
    }
    true
}

/// Fills the disk at every `step`-th operation of an update, one after the other.
fn fills_up(name: &str, disk: Option<Disk>, step: usize) {
    let Some(disk) = disk else {
        println!("skipped: {name} cannot be mounted here");
        return;
    };
    let case = Case::everything();
    for inodes in [false, true] {
        let kind = if inodes { "inodes" } else { "blocks" };
        let (went_back, went_on) = paused(each(&case, &disk, inodes, step));
        println!("{name}, {kind}: {went_back} updates went back and came again, {went_on} went on");
        assert!(went_back > 0, "{name}, {kind}");
    }
}

async fn each(case: &Case, disk: &Disk, inodes: bool, step: usize) -> (usize, usize) {
    let (mut went_back, mut went_on) = (0, 0);
    let length = length(case).await;
    for number in (0..length).step_by(step) {
        let what = format!("full at operation {number} of {length}, inodes: {inodes}");
        let sandbox = case.sandbox_on(disk.path());
        let dir = disk.path().join("ballast");
        let ballast = Ballast { dir, inodes };
        let root = loading(sandbox.root(), number, ballast.clone());
        let mut driver = drive(case, &root);
        match ended(&mut driver, case).await {
            Some(Reason::NoSpace) => went_back += 1,
            None => went_on += 1,
            other => panic!("{what}: {other:?}"),
        }
        must_be_old_or_new(case, &sandbox, &what);
        if ballast.dir.exists() {
            ballast.unload();
        }
        driver.until_on(&case.to).await;
        driver.stop().await;
        must_be_new(case, &sandbox, &what);
    }
    (went_back, went_on)
}

/// Fills the disk just before operation `number`.
fn loading(root: Root, number: usize, ballast: Ballast) -> Root {
    let count = AtomicUsize::new(0);
    root.with_fault(Arc::new(move |_: &FsOp| {
        if count.fetch_add(1, Ordering::Relaxed) == number {
            ballast.load();
        }
        None
    }))
}

/// Waits until the update is done or has failed, and returns the reason of a failure.
async fn ended(driver: &mut Driver, case: &Case) -> Option<Reason> {
    let new = machinist_ignition::digest(&case.to.0);
    let report = driver
        .until("an end", |report| {
            let current = report.config.current.as_ref().map(|name| name.digest);
            let on = current == Some(new) && report.phase == Phase::Idle;
            on || report.phase == Phase::Failed
        })
        .await;
    report.failure.as_ref().map(|failure| failure.code)
}

#[test]
fn a_full_tmpfs_is_retried_until_there_is_space() {
    fills_up("tmpfs", Disk::tmpfs(), if long() { 1 } else { 9 });
}

#[test]
fn a_full_ext4_is_retried_until_there_is_space() {
    let disk = Disk::image("ext4", 16, &["-q", "-N", "160", "-m", "0"]);
    fills_up("ext4", disk, if long() { 1 } else { 19 });
}

#[test]
fn a_full_xfs_is_retried_until_there_is_space() {
    if !long() {
        println!("skipped: xfs only in the long run");
        return;
    }
    let disk = Disk::image("xfs", 320, &["-q", "-i", "maxpct=1"]);
    let Some(disk) = disk else {
        println!("skipped: xfs cannot be mounted here");
        return;
    };
    // Its inodes use blocks.
    let case = Case::everything();
    let (went_back, went_on) = paused(each(&case, &disk, false, 3));
    println!("xfs: {went_back} updates went back and came again, {went_on} went on");
    assert!(went_back > 0);
}

#[test]
fn an_immutable_target_fails_the_update_until_the_flag_is_removed() {
    let Some(disk) = Disk::image("ext4", 16, &["-q"]) else {
        println!("skipped: ext4 cannot be mounted here");
        return;
    };
    let chattr = |flag: &str, path: &Path| {
        let ran = Command::new("chattr").arg(flag).arg(path).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
    };
    let case = Case::everything();
    paused(async {
        let length = length(&case).await;
        for number in (0..length).step_by(if long() { 1 } else { 23 }) {
            let what = format!("immutable at operation {number} of {length}");
            let sandbox = case.sandbox_on(disk.path());
            let target = sandbox.path("/etc/gone");
            let (count, flagged) = (AtomicUsize::new(0), target.clone());
            let root = sandbox.root().with_fault(Arc::new(move |_: &FsOp| {
                let now = count.fetch_add(1, Ordering::Relaxed) == number;
                if now && flagged.exists() {
                    chattr("+i", &flagged);
                }
                None
            }));
            let mut driver = drive(&case, &root);
            if let Some(reason) = ended(&mut driver, &case).await {
                assert_eq!(reason, Reason::Immutable, "{what}");
            }
            must_be_old_or_new(&case, &sandbox, &what);
            if target.exists() {
                chattr("-i", &target);
            }
            driver.until_on(&case.to).await;
            driver.stop().await;
            must_be_new(&case, &sandbox, &what);
        }
    });
}
