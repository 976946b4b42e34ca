//! Files without contents whose owner changes: the set-ID bits of content that a user wrote never
//! come to serve another user.

use machinist_base::reason::Reason;
use machinist_ignition::Content;

use super::*;

const APP: &str = "/home/bob/app";

fn set_mode(sandbox: &Sandbox, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(sandbox.path(APP), mode).unwrap();
}

/// Bob replaces the file by one of his own, which has set-ID bits.
fn replace_by_own(sandbox: &Sandbox) {
    std::fs::remove_file(sandbox.path(APP)).unwrap();
    add(sandbox, &File(APP, BOB));
    set_mode(sandbox, 0o6755);
}

fn mode(sandbox: &Sandbox) -> u32 {
    sandbox.root().stat(&at(APP)).unwrap().unwrap().mode
}

/// A config that gives the file an owner, no contents, and a mode only if there is one here.
fn owned_by(uid: u32, mode: Option<u32>) -> Written {
    let mut wanted = config(&format!("owner-{uid}-{mode:?}")).file(APP, "", 0o644);
    let file = wanted.0.files.get_mut(&at(APP)).unwrap();
    (file.content, file.mode) = (None::<Content>, mode);
    (file.user, file.group) = (Some(Owner::Id(uid)), Some(Owner::Id(uid)));
    wanted
}

#[test]
fn a_file_that_changes_its_owner_loses_its_set_id_bits() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, BOB)]);
    set_mode(&sandbox, 0o6755);
    apply(&sandbox, &owned_by(0, None)).unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o755));
    // The user puts another file in its place, and the config is applied again.
    replace_by_own(&sandbox);
    apply(&sandbox, &owned_by(0, None)).unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o755));
}

#[test]
fn a_file_that_a_user_had_does_not_become_a_set_id_program_of_roots_again() {
    if !plays_users() {
        return;
    }
    for given in [Some(0o755), None] {
        let sandbox = machine(&[File(APP, 0)]);
        set_mode(&sandbox, 0o4755);
        apply(&sandbox, &owned_by(BOB, given)).unwrap();
        assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (BOB, 0o755));
        set_mode(&sandbox, 0o4755);
        apply(&sandbox, &config("nothing")).unwrap();
        assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o755));
    }
}

#[test]
fn an_undo_does_not_restore_set_id_bits_of_a_file_that_a_user_had() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, 0)]);
    set_mode(&sandbox, 0o4755);
    let mut hand = ByHand::open(&sandbox.root());
    hand.stage(&owned_by(BOB, Some(0o755))).unwrap();
    hand.commit().unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (BOB, 0o755));
    hand.undo().unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o755));
}

#[test]
fn set_id_bits_for_a_users_content_are_refused() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, BOB)]);
    let refusals = apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
    assert_eq!(owner(&sandbox, APP), BOB);
    // The bits of a file that is root's own may be set.
    let sandbox = machine(&[File(APP, 0)]);
    apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap();
    assert_eq!(mode(&sandbox), 0o4755);
}
