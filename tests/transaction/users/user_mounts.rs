//! Mounts inside a user's directory: root enters one only if its top is root's.

use machinist_base::reason::Reason;

use super::*;
use crate::transaction::tmpfs::Tmpfs;
use machinist_testkit::sandbox::difference;

const TOP: &str = "/home/bob/mnt";
const APP: &str = "/home/bob/mnt/app";

/// The names at the top of the mount.
fn names(sandbox: &Sandbox) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.path(TOP)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Mounts a tmpfs of this user, with a file of the user's in it.
fn mounted(sandbox: &Sandbox, uid: u32) -> Option<Tmpfs> {
    let mounted = Tmpfs::new(sandbox, TOP, uid)?;
    add(sandbox, &File("/home/bob/mnt/theirs", uid));
    Some(mounted)
}

#[test]
fn a_new_entry_on_a_users_mount_in_a_home_is_refused() {
    if !plays_users() {
        return;
    }
    for uid in [BOB, ALICE] {
        for owner in [0, BOB] {
            let sandbox = machine(&[Dir(TOP, BOB, 0o755)]);
            let Some(_mounted) = mounted(&sandbox, uid) else {
                return;
            };
            let refusals = apply(&sandbox, &with_file(APP, owner)).unwrap_err();
            let [refusal] = &refusals[..] else {
                panic!("{refusals:?}");
            };
            assert_eq!(refusal.reason, Reason::UnsafePath, "{refusal}");
            let why = format!("{TOP} is a mount or a subvolume whose top belongs to user {uid}");
            assert!(refusal.to_string().contains(&why), "{refusal}");
            assert_eq!(names(&sandbox), ["theirs"]);
        }
    }
}

#[test]
fn an_entry_on_roots_mount_in_a_home_is_written_and_removed() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir(TOP, BOB, 0o755)]);
    let Some(_mounted) = Tmpfs::new(&sandbox, TOP, 0) else {
        return;
    };
    apply(&sandbox, &with_file(APP, 0)).unwrap();
    assert_eq!(sandbox.read(APP).as_deref(), Some("ours\n"));
    apply(&sandbox, &config("nothing")).unwrap();
    assert_eq!(sandbox.read(APP), None);
}

#[test]
fn a_users_mount_that_appears_after_staging_rolls_the_update_back_and_is_left_alone() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir(TOP, BOB, 0o755)]);
    let before = outside(&sandbox);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&with_file(APP, BOB)).unwrap();
    let Some(mounted) = mounted(&sandbox, BOB) else {
        return;
    };
    hand.commit().unwrap_err();
    hand.undo().unwrap();
    assert_eq!(names(&sandbox), ["theirs"]);
    drop(mounted);
    let after = outside(&sandbox);
    assert!(before == after, "{}", difference(&before, &after));
    assert!(names(&sandbox).is_empty());
}

#[test]
fn undo_and_leaving_skip_a_users_mount_that_appears_after_the_commit() {
    if !plays_users() {
        return;
    }
    for is_undone in [true, false] {
        let sandbox = machine(&[Dir(TOP, BOB, 0o755)]);
        let before = outside(&sandbox);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&with_file(APP, BOB)).unwrap();
        hand.commit().unwrap();
        if !is_undone {
            hand.close();
        }
        let Some(mounted) = mounted(&sandbox, BOB) else {
            return;
        };
        // A file of the same name belongs to the user.
        add(&sandbox, &File(APP, BOB));
        if is_undone {
            hand.undo().unwrap();
        } else {
            drop(hand);
            apply(&sandbox, &config("nothing")).unwrap();
        }
        assert_eq!(sandbox.read(APP).as_deref(), Some("found\n"));
        let mut names = names(&sandbox);
        names.sort();
        assert_eq!(names, ["app", "theirs"], "undo: {is_undone}");
        drop(mounted);
        assert_eq!(sandbox.read(APP).as_deref(), Some("ours\n"), "left behind");
        let after = outside(&sandbox);
        assert!(before == after, "{}", difference(&before, &after));
    }
}
