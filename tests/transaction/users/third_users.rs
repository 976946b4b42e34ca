//! Files without contents that a config gives to a third user, in a user's directory.

use machinist_base::reason::Reason;

use super::{planned_owners::without_contents, *};

/// Applies the config, which must be refused as unsafe for this path, and nothing may change.
pub(super) fn refused(name: &str, sandbox: &Sandbox, wanted: &Written, path: &str) {
    let before = without_staging(&sandbox.tree());
    let refusals = apply(sandbox, wanted).expect_err(name);
    let unsafe_at = |it: &Refusal| {
        it.reason == Reason::UnsafePath && it.message.starts_with(&format!("{path} "))
    };
    assert!(refusals.iter().any(unsafe_at), "{name}: {refusals:?}");
    assert!(without_staging(&sandbox.tree()) == before, "{name}");
}

/// Applies the config, then one without entries, which restores the tree.
pub(super) fn applies_and_leaves(name: &str, sandbox: &Sandbox, wanted: &Written) {
    let before = without_staging(&sandbox.tree());
    sandbox.applied(wanted);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(wanted)
        .unwrap_or_else(|why| panic!("{name}: {why:?}"));
    assert_eq!(hand.journal.transactions[0].operations.len(), 0, "{name}");
    hand.undo().unwrap();
    drop(hand);
    sandbox.applied(&config("nothing"));
    let after = without_staging(&sandbox.tree());
    let shown = machinist_testkit::sandbox::difference(&before, &after);
    assert!(before == after, "{name}: {shown}");
}

/// What an administrator does by hand.
pub(super) fn give(sandbox: &Sandbox, path: &str, uid: u32) {
    std::os::unix::fs::lchown(sandbox.path(path), Some(uid), Some(uid)).unwrap();
}

#[test]
fn a_file_without_contents_is_not_given_to_a_third_user() {
    if !plays_users() {
        return;
    }
    for (path, owner, to) in [
        ("/home/bob/z", BOB, ALICE),
        ("/home/bob/z", 0, ALICE),
        ("/home/bob/z", ALICE, ALICE),
        ("/tmp/z", 0, ALICE),
    ] {
        let name = format!("{path} of {owner} to {to}");
        let sandbox = machine(&[File(path, owner)]);
        refused(&name, &sandbox, &without_contents(path, to), path);
    }
    for (path, owner, to) in [
        ("/home/bob/z", 0, BOB),
        ("/home/bob/z", BOB, 0),
        ("/srv/z", BOB, ALICE),
    ] {
        let name = format!("{path} of {owner} to {to}");
        let sandbox = machine(&[File(path, owner)]);
        applies_and_leaves(&name, &sandbox, &without_contents(path, to));
    }
    // The entry creates the file, and it goes with the entry.
    let sandbox = machine(&[]);
    let created = without_contents("/home/bob/z", ALICE);
    applies_and_leaves("created", &sandbox, &created);
}

#[test]
fn an_existing_file_of_a_third_user_does_not_block_later_updates() {
    if !plays_users() {
        return;
    }
    let path = "/srv/e/z";
    let sandbox = machine(&[Dir("/srv/e", 0, 0o755), File(path, BOB)]);
    sandbox.applied(&without_contents(path, ALICE));
    give(&sandbox, "/srv/e", BOB);
    for other in [without_contents(path, BOB), with_file(path, BOB)] {
        refused("another owner", &sandbox, &other, path);
    }
    let next = config("next").file("/etc/next", "next\n", 0o644);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&next).unwrap();
    let behind = hand.journal.transactions[0].left_behind.join("\n");
    assert!(behind.starts_with(path), "{behind}");
    assert!(behind.contains("belongs to user 1002"), "{behind}");
    hand.commit().unwrap();
    hand.close();
    drop(hand);
    assert_eq!(owner(&sandbox, path), ALICE);
    assert_eq!(sandbox.read("/etc/plain"), None);
    sandbox.applied(&config("nothing"));
    assert_eq!(sandbox.read("/etc/next"), None);
}
