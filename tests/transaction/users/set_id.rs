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
fn a_former_user_file_is_not_restored_as_a_set_id_program_of_root() {
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
fn rollback_does_not_restore_set_id_bits_of_a_former_user_file() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, 0)]);
    set_mode(&sandbox, 0o4755);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&owned_by(BOB, Some(0o755))).unwrap();
    hand.commit().unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (BOB, 0o755));
    hand.undo().unwrap();
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o755));
}

#[test]
fn set_id_bits_for_user_content_are_rejected() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, BOB)]);
    let refusals = apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
    assert_eq!(owner(&sandbox, APP), BOB);
    // In his home, bob could put any file of root's there.
    let sandbox = machine(&[File(APP, 0)]);
    apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap_err();
    // The bits of a file that only root can change may be set.
    let sandbox = with_tool(0, 0o755);
    apply(&sandbox, &tool(Some(0o4755), None, None)).unwrap();
    assert_eq!(tool_is(&sandbox).0, 0o4755);
}

/// A user whom an access control list lets write a file of root could have written its content, also if the mode masks
/// the list now, and may add a hard link.
#[test]
fn set_id_bits_for_a_file_writable_by_acl_are_rejected_and_its_links_do_not_block() {
    if !plays_users() {
        return;
    }
    let sandbox = with_tool(0, 0o664);
    let file = sandbox.path(TOOL);
    let list = crate::transaction::attributes::list_for_1001();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&file, "system.posix_acl_access", &list, flags).is_err() {
        println!("skipped: no access control lists here");
        return;
    }
    for first in [0o644, 0o700] {
        apply(&sandbox, &tool(Some(first), None, None)).unwrap();
        let refusals = apply(&sandbox, &tool(Some(0o4755), None, None)).unwrap_err();
        let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
    }
    std::fs::hard_link(&file, file.with_extension("link")).unwrap();
    apply(&sandbox, &tool(Some(0o640), None, None)).unwrap();
    assert_eq!(tool_is(&sandbox).0, 0o640);
}

#[test]
fn set_id_bits_for_user_content_passed_to_root_earlier_are_rejected() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File(APP, BOB)]);
    apply(&sandbox, &owned_by(0, None)).unwrap();
    let refusals = apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
    assert_eq!((owner(&sandbox, APP), mode(&sandbox)), (0, 0o644));
    // The same with a config between the two that gives contents.
    apply(&sandbox, &config("contents").file(APP, "x", 0o755)).unwrap();
    let refusals = apply(&sandbox, &owned_by(0, Some(0o4755))).unwrap_err();
    assert_eq!(refusals[0].reason, Reason::UnsafePath, "{refusals:?}");
}

const TOOL: &str = "/usr/bin/tool";
const WHEEL: u32 = 10;

/// A machine with a program in a directory of root's.
fn with_tool(owner: u32, mode: u32) -> Sandbox {
    let sandbox = machine(&[Dir("/usr/bin", 0, 0o755), File(TOOL, owner)]);
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(sandbox.path(TOOL), mode).unwrap();
    sandbox
}

/// A config that gives the program these values, and no contents.
fn tool(mode: Option<u32>, user: Option<u32>, group: Option<u32>) -> Written {
    let name = format!("tool-{mode:?}-{user:?}-{group:?}");
    let mut wanted = config(&name).file(TOOL, "", 0o644);
    let file = wanted.0.files.get_mut(&at(TOOL)).unwrap();
    (file.content, file.mode) = (None::<Content>, mode);
    (file.user, file.group) = (user.map(Owner::Id), group.map(Owner::Id));
    wanted
}

fn tool_is(sandbox: &Sandbox) -> (u32, u32, u32) {
    let stat = sandbox.root().stat(&at(TOOL)).unwrap().unwrap();
    (stat.mode, stat.uid, stat.gid)
}

/// Applies the config, and checks that a second plan has nothing left to do.
fn settles(sandbox: &Sandbox, wanted: &Written) {
    apply(sandbox, wanted).unwrap();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(wanted).unwrap();
    assert_eq!(hand.journal.transactions[0].operations.len(), 0);
    hand.undo().unwrap();
}

#[test]
fn a_program_of_root_gets_its_set_id_mode_together_with_another_owner() {
    if !plays_users() {
        return;
    }
    for (mode, user, group) in [
        (0o4750, None, Some(WHEEL)),
        (0o2755, None, Some(WHEEL)),
        (0o6755, Some(0), Some(WHEEL)),
        (0o4755, Some(BOB), None),
        (0o4755, Some(BOB), Some(WHEEL)),
    ] {
        let sandbox = with_tool(0, 0o755);
        let wanted = tool(Some(mode), user, group);
        settles(&sandbox, &wanted);
        let expected = (mode, user.unwrap_or(0), group.unwrap_or(0));
        assert_eq!(tool_is(&sandbox), expected);
        settles(&sandbox, &config("nothing"));
        assert_eq!(tool_is(&sandbox), (0o755, 0, 0));
        // An undo brings the same back.
        let sandbox = with_tool(0, 0o755);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&wanted).unwrap();
        hand.commit().unwrap();
        hand.undo().unwrap();
        assert_eq!(tool_is(&sandbox), (0o755, 0, 0));
    }
}

#[test]
fn a_set_id_program_of_root_is_as_before_when_its_entry_leaves() {
    if !plays_users() {
        return;
    }
    for (before, mode) in [
        (0o4755, Some(0o750)),
        (0o2755, Some(0o755)),
        (0o4755, None),
        (0o6755, None),
    ] {
        let sandbox = with_tool(0, before);
        settles(&sandbox, &tool(mode, None, Some(WHEEL)));
        assert_eq!(tool_is(&sandbox), (mode.unwrap_or(before), 0, WHEEL));
        settles(&sandbox, &config("nothing"));
        assert_eq!(tool_is(&sandbox), (before, 0, 0), "{mode:?}");
    }
}

#[test]
fn a_program_owned_by_a_user_between_two_configs_gets_no_set_id_bits() {
    if !plays_users() {
        return;
    }
    let sandbox = with_tool(0, 0o4755);
    settles(&sandbox, &tool(Some(0o755), Some(BOB), Some(BOB)));
    settles(&sandbox, &tool(Some(0o700), Some(0), Some(0)));
    settles(&sandbox, &config("nothing"));
    assert_eq!(tool_is(&sandbox), (0o755, 0, 0));
}

#[test]
fn set_id_bits_for_a_file_writable_by_others_are_rejected() {
    if !plays_users() {
        return;
    }
    let group_of_bobs = tool(Some(0o2755), None, Some(WHEEL));
    let to_root = tool(Some(0o4755), Some(0), Some(0));
    let group = tool(Some(0o4750), None, Some(WHEEL));
    let mode_alone = tool(Some(0o4755), None, None);
    let for_others = tool(Some(0o4757), None, None);
    let bobs_group = tool(Some(0o2755), Some(BOB), Some(WHEEL));
    for (owner, mode, wanted) in [
        (BOB, 0o755, &group_of_bobs),
        (BOB, 0o755, &to_root),
        (0, 0o757, &group),
        (0, 0o777, &mode_alone),
        (0, 0o755, &for_others),
        (0, 0o755, &bobs_group),
    ] {
        let sandbox = with_tool(owner, mode);
        let refusals = apply(&sandbox, wanted).unwrap_err();
        let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, [Reason::UnsafePath], "{refusals:?}");
        assert_eq!(tool_is(&sandbox), (mode, owner, owner));
    }
    // Bob could set this bit himself.
    let sandbox = with_tool(BOB, 0o755);
    settles(&sandbox, &tool(Some(0o4755), None, Some(WHEEL)));
    assert_eq!(tool_is(&sandbox), (0o4755, BOB, WHEEL));
}

#[test]
fn set_id_bits_are_refused_for_a_new_file_that_its_user_may_write() {
    if !plays_users() {
        return;
    }
    let sandbox = with_tool(0, 0o755);
    std::fs::remove_file(sandbox.path(TOOL)).unwrap();
    let refusals = apply(&sandbox, &tool(Some(0o2755), Some(BOB), Some(WHEEL))).unwrap_err();
    assert_eq!(refusals[0].reason, Reason::UnsafePath);
    apply(&sandbox, &tool(Some(0o4755), None, None)).unwrap();
    assert_eq!(tool_is(&sandbox), (0o4755, 0, 0));
}

#[test]
fn set_id_bits_are_refused_for_a_file_that_a_user_owned_between_two_configs() {
    if !plays_users() {
        return;
    }
    let sandbox = with_tool(0, 0o755);
    settles(&sandbox, &tool(Some(0o755), Some(BOB), Some(BOB)));
    settles(&sandbox, &tool(Some(0o755), Some(0), Some(0)));
    for _ in 0..2 {
        let refusals = apply(&sandbox, &tool(Some(0o4755), None, None)).unwrap_err();
        assert_eq!(refusals[0].reason, Reason::UnsafePath);
        settles(&sandbox, &config("nothing"));
    }
}
