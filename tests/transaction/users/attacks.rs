//! Attacks that succeeded in the past.

use std::os::unix::process::CommandExt as _;

use machinist_base::reason::Reason;
use rustix::fs::{XattrFlags, setxattr};

use super::*;

fn reasons(applied: Result<(), Vec<Refusal>>) -> Vec<Reason> {
    let refusals = applied.err().unwrap_or_default();
    refusals.iter().map(|refusal| refusal.reason).collect()
}

/// A directory of root that a user may write by its access control list counts as that user's.
#[test]
fn a_directory_writable_by_acl_is_not_treated_as_root_owned() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir("/srv/x", 0, 0o775), Link("/srv/x/conf", 0, "/etc")]);
    let list = crate::transaction::attributes::list_for_1001();
    let directory = sandbox.path("/srv/x");
    if setxattr(
        directory,
        "system.posix_acl_access",
        &list,
        XattrFlags::empty(),
    )
    .is_err()
    {
        println!("skipped: no access control lists here");
        return;
    }
    let refused = reasons(apply(&sandbox, &with_file("/srv/x/conf/evil", 0)));
    assert_eq!(refused, [Reason::UnsafePath]);
    assert_eq!(sandbox.read("/etc/evil"), None);
}

/// The planner's recursion over it crashed the agent, at each start again.
#[test]
fn a_link_with_thousands_of_components_does_not_crash_the_agent() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[]);
    apply(&sandbox, &with_file("/home/bob/d/sub/app", BOB)).unwrap();
    std::fs::rename(
        sandbox.path("/home/bob/d/sub"),
        sandbox.path("/home/bob/away"),
    )
    .unwrap();
    add(&sandbox, &Link("/home/bob/d/sub", BOB, &"x/".repeat(2000)));
    let work = move || {
        let again = apply(&sandbox, &with_file("/home/bob/d/sub/app", BOB));
        let changed = with_file("/home/bob/d/sub/app", BOB).file("/home/bob/d/sub/app", "x", 0o644);
        let changed = reasons(apply(&sandbox, &changed));
        let leaving = apply(&sandbox, &config("nothing"));
        (
            again.is_ok(),
            changed,
            leaving.is_ok(),
            sandbox.read("/etc/plain"),
        )
    };
    // The stack size of the agent's threads.
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let (again, changed, left, plain) = thread.spawn(work).unwrap().join().unwrap();
    assert!(again, "an unchanged entry");
    assert_eq!(changed, [Reason::UnsafePath]);
    assert!(left);
    assert_eq!(plain, None, "the rest of the config has left");
}

/// An unmanaged file with as many names as the config's file has is not treated as the config's.
#[test]
fn a_users_hard_link_to_a_root_file_is_not_counted_as_managed() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[
        Dir("/home/bob/d", BOB, 0o755),
        Hard("/home/bob/d/one", "/etc/shadow"),
    ]);
    let wanted = with_file("/home/bob/d/one", BOB).hard("/home/bob/d/other", "/home/bob/d/one");
    assert_eq!(reasons(apply(&sandbox, &wanted)), [Reason::UnsafePath]);
}

/// The sticky bit keeps bob from moving root's links out of `/tmp`, but not from moving a link of
/// root's there: root cannot distinguish one that it made there itself.
#[test]
fn a_root_link_movable_by_a_user_is_not_followed() {
    if !plays_users() {
        return;
    }
    let wanted = with_file("/tmp/app/conf", 0);
    let message = "the link /tmp/app, which belongs to user 0, is in a directory to which every user may move links";
    let made = machine(&[Link("/tmp/app", 0, "/etc")]);
    let moved = machine(&[Link("/home/bob/app", 0, "/etc")]);
    let top = moved.path("/");
    std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut move_it = std::process::Command::new("mv");
    move_it.args([moved.path("/home/bob/app"), moved.path("/tmp/app")]);
    let status = move_it.uid(BOB).gid(BOB).status().unwrap();
    assert!(status.success(), "bob may move the link");
    assert_eq!(owner(&moved, "/tmp/app"), 0);
    for sandbox in [made, moved] {
        let refusals = apply(&sandbox, &wanted).unwrap_err();
        let texts: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        assert!(texts.len() == 1 && texts[0].contains(message), "{texts:?}");
        assert_eq!(sandbox.read("/etc/conf"), None);
    }
}
