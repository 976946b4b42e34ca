//! Directories that a user exchanges for links while the config has files in them.

use machinist_base::reason::Reason;
use machinist_rootfs::FileKind;

use super::*;
use machinist_testkit::sandbox::difference;

/// Bob replaces the directory of a managed file with a link.
fn exchange_for_a_link(sandbox: &Sandbox) {
    let (home, away) = (sandbox.path("/home/bob/a"), sandbox.path("/home/bob/away"));
    std::fs::rename(&home, away).unwrap();
    add(sandbox, &Link("/home/bob/a", BOB, "/etc/systemd/system"));
}

#[test]
fn a_link_added_after_apply_blocks_only_changes_and_removal_of_its_own_path() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[
        Dir("/home/bob/a", BOB, 0o755),
        File("/etc/systemd/system/app", 0),
    ]);
    apply(&sandbox, &with_file("/home/bob/a/app", BOB)).unwrap();
    exchange_for_a_link(&sandbox);
    let wanted = with_file("/home/bob/a/app", BOB);
    let changed = Written(wanted.0.clone()).file("/home/bob/a/app", "changed\n", 0o644);
    let refusals = apply(&sandbox, &changed).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::UnsafePath]);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&wanted.file("/etc/more", "y", 0o600)).unwrap();
    let left = &hand.journal.transactions[0].left_behind;
    let [left] = &left[..] else {
        panic!("{left:?}")
    };
    assert!(left.starts_with("/home/bob/a/app is skipped"), "{left}");
    hand.commit().unwrap();
    hand.close();
    drop(hand);
    assert_eq!(sandbox.read("/etc/more").as_deref(), Some("y"));
    apply(&sandbox, &config("nothing").file("/etc/more", "x", 0o600)).unwrap();
    assert_eq!(
        sandbox.read("/etc/systemd/system/app").as_deref(),
        Some("found\n")
    );
    assert_eq!(
        sandbox.read("/home/bob/away/app").as_deref(),
        Some("ours\n")
    );
    assert_eq!(sandbox.read("/etc/plain"), None);
    assert_eq!(sandbox.read("/etc/more").as_deref(), Some("x"));
}

#[test]
fn a_directory_exchanged_after_staging_rolls_the_update_back() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir("/home/bob/a", BOB, 0o755)]);
    let before = outside(&sandbox);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&with_file("/home/bob/a/app", BOB)).unwrap();
    exchange_for_a_link(&sandbox);
    hand.commit().unwrap_err();
    hand.undo().unwrap();
    assert!(
        outside(&sandbox) == before,
        "{}",
        difference(&before, &outside(&sandbox))
    );
}

#[test]
fn rollback_skips_unreachable_user_paths_and_restores_the_rest() {
    if !plays_users() {
        return;
    }
    for replaced in [false, true] {
        let sandbox = machine(&[Dir("/home/bob/a", BOB, 0o755), File("/etc/plain", 0)]);
        if replaced {
            add(&sandbox, &File("/home/bob/a/app", BOB));
        }
        let before = outside(&sandbox);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&with_file("/home/bob/a/app", BOB)).unwrap();
        hand.commit().unwrap();
        exchange_for_a_link(&sandbox);
        hand.undo().unwrap();
        assert_eq!(sandbox.read("/etc/plain").as_deref(), Some("found\n"));
        assert_eq!(
            sandbox.read("/home/bob/away/app").as_deref(),
            Some("ours\n")
        );
        let stat = sandbox.root().stat(&at("/home/bob/a")).unwrap().unwrap();
        assert_eq!(stat.kind, FileKind::Link);
        let after = outside(&sandbox);
        assert!(after == before, "{}", difference(&before, &after));
    }
}
