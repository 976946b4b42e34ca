//! Updates on machines with users who control directories of their own, with real owners.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use machinist_ignition::{Owner, Refusal};
use machinist_rootfs::TreeSnapshot;

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config, without_staging},
    stepwise_update::StepwiseUpdate,
};

mod attacks;
mod directory_swaps;
mod disclosure;
mod drift;
mod full_mounts;
mod hostile;
mod keys;
mod leases;
mod linked_files;
mod linked_keys;
mod moved_paths;
mod moved_staging;
mod path_rules;
mod planned_owners;
mod race;
mod set_id;
mod staged_races;
mod third_users;
mod user_mounts;

const BOB: u32 = 1001;
const ALICE: u32 = 1002;

/// Whether the test can act as several users; prints a message where it cannot.
fn plays_users() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: this needs root, to make objects of other users");
    }
    root
}

/// One object of a machine: its path, its owner, and its kind.
enum Object<'a> {
    Dir(&'a str, u32, u32),
    File(&'a str, u32),
    Link(&'a str, u32, &'a str),
    Hard(&'a str, &'a str),
}
use Object::{Dir, File, Hard, Link};

fn add(sandbox: &Sandbox, object: &Object<'_>) {
    let own = |path: &str, uid| {
        let path = sandbox.path(path);
        std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
    };
    match *object {
        Dir(path, uid, mode) => {
            std::fs::create_dir_all(sandbox.path(path)).unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(sandbox.path(path), mode).unwrap();
            own(path, uid);
        }
        File(path, uid) => {
            sandbox.write(path, "found\n");
            own(path, uid);
        }
        Link(path, uid, to) => {
            let parent = sandbox.path(path).parent().unwrap().to_owned();
            std::fs::create_dir_all(parent).unwrap();
            symlink(to, sandbox.path(path)).unwrap();
            own(path, uid);
        }
        Hard(path, of) => std::fs::hard_link(sandbox.path(of), sandbox.path(path)).unwrap(),
    }
}

/// A machine with a home directory of bob, a shared `/tmp` and a few files of root.
fn machine(more: &[Object<'_>]) -> Sandbox {
    let sandbox = Sandbox::new();
    for object in [
        Dir("/etc/systemd/system", 0, 0o755),
        Dir("/home", 0, 0o755),
        Dir("/home/bob", BOB, 0o755),
        Dir("/tmp", 0, 0o1777),
        File("/etc/shadow", 0),
    ] {
        add(&sandbox, &object);
    }
    for object in more {
        add(&sandbox, object);
    }
    sandbox
}

/// A config with one file of this owner, and one of root elsewhere.
fn with_file(path: &str, owner: u32) -> Written {
    let mut wanted =
        config("wanted")
            .file(path, "ours\n", 0o644)
            .file("/etc/plain", "ours\n", 0o644);
    let file = wanted.0.files.get_mut(&at(path)).unwrap();
    let owner = (owner != 0).then_some(Owner::Id(owner));
    file.user.clone_from(&owner);
    file.group = owner;
    wanted
}

fn apply(sandbox: &Sandbox, wanted: &Written) -> Result<(), Vec<Refusal>> {
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(wanted)?;
    hand.commit().unwrap();
    hand.close();
    Ok(())
}

fn owner(sandbox: &Sandbox, path: &str) -> u32 {
    sandbox.root().stat(&at(path)).unwrap().unwrap().uid
}

/// The tree outside bob's home.
fn outside(sandbox: &Sandbox) -> TreeSnapshot {
    without_staging(&sandbox.tree()).without(|path| path.is_under(&at("/home/bob")))
}
