//! Objects that users move below names of the config: their new mode and owner never give a user what the user
//! could not read before.

use machinist_base::reason::Reason;
use machinist_ignition::{Directory, EntryOrigin};

use super::*;

const FILE: &str = "/home/bob/file";
const SECRET: &str = "/home/bob/secret";

fn chmod(sandbox: &Sandbox, path: &str, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(sandbox.path(path), mode).unwrap();
}

fn attributes(sandbox: &Sandbox, path: &str) -> (u32, u32) {
    let stat = sandbox.root().stat(&at(path)).unwrap().unwrap();
    (stat.mode, stat.uid)
}

/// A config that sets owner and mode of a file, and not its contents.
fn partial(path: &str, user: Option<u32>, mode: Option<u32>) -> Written {
    let name = format!("partial-{path}-{user:?}-{mode:?}");
    let mut wanted = config(&name).file(path, "", 0o644);
    let file = wanted.0.files.get_mut(&at(path)).unwrap();
    (file.content, file.mode) = (None, mode);
    file.user = user.map(Owner::Id);
    file.group.clone_from(&file.user);
    wanted
}

fn directory(path: &str, user: u32, mode: u32) -> Written {
    let mut wanted = config("directory");
    let entry = Directory {
        mode: Some(mode),
        user: Some(Owner::Id(user)),
        group: Some(Owner::Id(user)),
        origin: EntryOrigin::default(),
    };
    wanted.0.directories.insert(at(path), entry);
    wanted
}

/// A machine with an object of root's at `path` that only root may read.
fn with_secret(path: &str) -> Sandbox {
    let sandbox = machine(&[File(path, 0)]);
    chmod(&sandbox, path, 0o600);
    sandbox
}

fn must_refuse(sandbox: &Sandbox, wanted: &Written) {
    let refusals = apply(sandbox, wanted).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
}

/// Bob moves a file of root's from elsewhere in his home over a file of the config.
fn swap_in_secret(sandbox: &Sandbox) {
    sandbox.write(SECRET, "secret\n");
    chmod(sandbox, SECRET, 0o600);
    std::fs::rename(sandbox.path(SECRET), sandbox.path(FILE)).unwrap();
}

#[test]
fn a_file_that_a_user_cannot_read_is_not_given_to_the_user() {
    if !plays_users() {
        return;
    }
    for wanted in [
        partial(FILE, Some(BOB), Some(0o640)),
        partial(FILE, Some(BOB), None),
        partial(FILE, None, Some(0o644)),
    ] {
        let sandbox = with_secret(FILE);
        must_refuse(&sandbox, &wanted);
        assert_eq!(attributes(&sandbox, FILE), (0o600, 0));
    }
    // A file that everybody may read, and a file of the user's own.
    let wanted = partial(FILE, Some(BOB), Some(0o640));
    for (owner, mode) in [(0, 0o644), (BOB, 0o600)] {
        let sandbox = machine(&[File(FILE, owner)]);
        chmod(&sandbox, FILE, mode);
        apply(&sandbox, &wanted).unwrap();
        assert_eq!(attributes(&sandbox, FILE), (0o640, BOB));
    }
}

#[test]
fn a_directory_that_a_user_cannot_read_is_not_given_to_the_user() {
    if !plays_users() {
        return;
    }
    const PATH: &str = "/home/bob/.config";
    let wanted = directory(PATH, BOB, 0o755);
    let sandbox = machine(&[Dir(PATH, 0, 0o700)]);
    must_refuse(&sandbox, &wanted);
    assert_eq!(attributes(&sandbox, PATH), (0o700, 0));
    let sandbox = machine(&[Dir(PATH, 0, 0o755)]);
    apply(&sandbox, &wanted).unwrap();
    assert_eq!(attributes(&sandbox, PATH), (0o755, BOB));
    apply(&sandbox, &config("nothing")).unwrap();
    assert_eq!(attributes(&sandbox, PATH), (0o755, 0));
}

#[test]
fn a_removed_entry_restores_its_own_object_only() {
    if !plays_users() {
        return;
    }
    for swapped in [false, true] {
        let sandbox = machine(&[File(FILE, BOB)]);
        apply(&sandbox, &partial(FILE, Some(0), Some(0o600))).unwrap();
        assert_eq!(attributes(&sandbox, FILE), (0o600, 0));
        if swapped {
            swap_in_secret(&sandbox);
        }
        apply(&sandbox, &config("nothing")).unwrap();
        let expected = if swapped { (0o600, 0) } else { (0o644, BOB) };
        assert_eq!(attributes(&sandbox, FILE), expected);
    }
}

/// The file without contents is a copy of the original: only that copy gets its mode back.
#[test]
fn a_copy_of_an_original_gets_its_mode_back() {
    if !plays_users() {
        return;
    }
    for swapped in [false, true] {
        let sandbox = machine(&[File(FILE, 0)]);
        chmod(&sandbox, FILE, 0o644);
        let with_contents = config("contents").file(FILE, "ours\n", 0o644);
        apply(&sandbox, &with_contents).unwrap();
        apply(&sandbox, &partial(FILE, None, Some(0o600))).unwrap();
        assert_eq!(attributes(&sandbox, FILE), (0o600, 0));
        if swapped {
            swap_in_secret(&sandbox);
        }
        apply(&sandbox, &config("nothing")).unwrap();
        let expected = if swapped { 0o600 } else { 0o644 };
        assert_eq!(attributes(&sandbox, FILE), (expected, 0));
    }
}

#[test]
fn a_rollback_restores_its_own_object_only() {
    if !plays_users() {
        return;
    }
    for swapped in [false, true] {
        let sandbox = machine(&[File(FILE, BOB)]);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&partial(FILE, Some(0), Some(0o600))).unwrap();
        hand.commit().unwrap();
        if swapped {
            swap_in_secret(&sandbox);
        }
        hand.undo().unwrap();
        let expected = if swapped { (0o600, 0) } else { (0o644, BOB) };
        assert_eq!(attributes(&sandbox, FILE), expected);
    }
}

/// The file is exchanged after the plan, and after the intent.
#[test]
fn an_object_that_is_exchanged_during_an_update_is_not_given_to_the_user() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(FILE, BOB)]);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&partial(FILE, Some(BOB), Some(0o640))).unwrap();
    swap_in_secret(&sandbox);
    hand.commit().unwrap_err();
    hand.undo().unwrap();
    assert_eq!(attributes(&sandbox, FILE), (0o600, 0));
}

#[test]
fn files_of_other_users_in_a_shared_directory_are_not_given_away() {
    if !plays_users() {
        return;
    }
    const REPORT: &str = "/srv/shared/report";
    let wanted = partial(REPORT, Some(BOB), Some(0o644));
    for (owner, mode) in [(ALICE, 0o600), (ALICE, 0o644), (0, 0o600)] {
        let sandbox = machine(&[Dir("/srv/shared", 0, 0o2777), File(REPORT, owner)]);
        chmod(&sandbox, REPORT, mode);
        must_refuse(&sandbox, &wanted);
        assert_eq!(attributes(&sandbox, REPORT), (mode, owner));
    }
    let sandbox = with_secret("/tmp/f");
    must_refuse(&sandbox, &partial("/tmp/f", None, Some(0o644)));
    assert_eq!(attributes(&sandbox, "/tmp/f"), (0o600, 0));
}
