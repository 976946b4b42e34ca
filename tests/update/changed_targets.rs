//! A user whose directory takes no objects from elsewhere, such as one with a quota project of its own on XFS: the
//! update fails once, and then skips the entries in that directory.

use std::sync::Arc;

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, FsOpKind, Root};

use super::harness::{Driver, machine};
use machinist_testkit::{
    sandbox::{Sandbox, Written, conduct, config},
    scripted_services::Script,
};

const BOB: u32 = 1001;
const HOME: &str = "/home/bob";
/// EXDEV.
const CROSS_DEVICE: i32 = 18;

fn with_plain(content: &str) -> Written {
    config(content)
        .file("/etc/plain", content, 0o644)
        .file("/home/bob/app.conf", "ours\n", 0o644)
        .file("/home/bob/made/deep.conf", "ours\n", 0o644)
}

/// A machine with bob's home, and its tree where nothing can be moved into that.
fn with_home() -> (Sandbox, Root) {
    let sandbox = machine();
    std::fs::create_dir_all(sandbox.path(HOME)).unwrap();
    std::os::unix::fs::chown(sandbox.path(HOME), Some(BOB), Some(BOB)).unwrap();
    let root = sandbox.root().with_fault(Arc::new(|op: &FsOp| {
        let other = match &op.act {
            FsOpKind::Rename(to) | FsOpKind::Exchange(to) => to,
            _ => return None,
        };
        let inside = [&op.path, other].map(|path| path.as_str().starts_with(HOME));
        (inside[0] != inside[1]).then(|| std::io::Error::from_raw_os_error(CROSS_DEVICE))
    }));
    (sandbox, root)
}

async fn applied(sandbox: &Sandbox, root: &Root, script: &Script, wanted: &Written) {
    let mut driver = Driver::on(root, script, wanted.desired(), conduct(false));
    driver.until_on(wanted).await;
    driver.stop().await;
    assert!(sandbox.journal().transactions.is_empty());
}

#[tokio::test]
async fn entries_that_cannot_be_moved_into_a_users_directory_block_no_other_entry() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, broken), script) = (with_home(), Script::new());
    let root = sandbox.root();
    applied(&sandbox, &root, &script, &with_plain("first")).await;
    // Bob removes both; without that there is nothing to move.
    std::fs::remove_file(sandbox.path("/home/bob/app.conf")).unwrap();
    std::fs::remove_dir_all(sandbox.path("/home/bob/made")).unwrap();
    applied(&sandbox, &broken, &script, &with_plain("second")).await;
    assert_eq!(sandbox.read("/etc/plain").unwrap(), "second");
    let journal = sandbox.journal();
    let last = journal.history.last().unwrap();
    let left = last.left_behind.join("\n");
    for path in ["/home/bob/app.conf", "/home/bob/made/deep.conf"] {
        assert!(left.contains(path), "{left}");
    }
    let failed: Vec<_> = journal.history.iter().filter_map(|it| it.reason).collect();
    assert!(failed.len() <= 2, "once for each: {failed:?}");
    assert!(
        failed.iter().all(|code| *code == Reason::TargetChanged),
        "{failed:?}"
    );

    // An entry that changes is skipped when several updates have failed.
    let changed = with_plain("third").file("/home/bob/app.conf", "changed\n", 0o644);
    applied(&sandbox, &broken, &script, &changed).await;
    assert_eq!(sandbox.read("/etc/plain").unwrap(), "third");
    let journal = sandbox.journal();
    let last = journal.history.last().unwrap();
    let left = last.left_behind.join("\n");
    assert!(
        left.contains("/home/bob/app.conf is left unchanged: a user changed files below /home/bob"),
        "{left}"
    );
    assert!(sandbox.read("/home/bob/app.conf").is_none());

    // They also leave the config, and the machine is not affected otherwise.
    let without = config("fourth").file("/etc/plain", "fourth", 0o644);
    applied(&sandbox, &broken, &script, &without).await;
    assert_eq!(sandbox.read("/etc/plain").unwrap(), "fourth");
}

#[tokio::test]
async fn a_user_cannot_block_the_return_to_an_earlier_config() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, _), script) = (with_home(), Script::new());
    let root = sandbox.root();
    let changed = |text| with_plain(text).file("/home/bob/app.conf", "changed\n", 0o644);
    applied(&sandbox, &root, &script, &with_plain("first")).await;
    applied(&sandbox, &root, &script, &changed("second")).await;
    let theirs = sandbox.path("/home/bob/app.conf");
    std::fs::remove_file(&theirs).unwrap();
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("own"), "bob's").unwrap();
    applied(&sandbox, &root, &script, &with_plain("first")).await;
    assert_eq!(sandbox.read("/etc/plain").unwrap(), "first");
    assert_eq!(sandbox.read("/home/bob/app.conf/own").unwrap(), "bob's");
    let left = sandbox
        .journal()
        .history
        .last()
        .unwrap()
        .left_behind
        .join("\n");
    let text = "/home/bob/app.conf is skipped, because the machine returns to an earlier config: ";
    assert!(left.contains(text), "{left}");
}

#[tokio::test]
async fn an_entry_that_was_written_again_leaves_like_every_other() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, broken), script) = (with_home(), Script::new());
    let root = sandbox.root();
    applied(&sandbox, &root, &script, &with_plain("first")).await;
    std::fs::remove_file(sandbox.path("/home/bob/app.conf")).unwrap();
    applied(&sandbox, &broken, &script, &with_plain("second")).await;
    let changed = with_plain("third").file("/home/bob/app.conf", "changed\n", 0o644);
    applied(&sandbox, &root, &script, &changed).await;
    assert_eq!(sandbox.read("/home/bob/app.conf").unwrap(), "changed\n");
    let without = config("fourth").file("/etc/plain", "fourth", 0o644);
    applied(&sandbox, &root, &script, &without).await;
    assert_eq!(sandbox.read("/home/bob/app.conf"), None);
}

/// A config with a directory of a user, a file in it, and one of root.
fn with_app(text: &str, owner: u32) -> Written {
    let mut wanted = config(text)
        .file("/etc/plain", text, 0o644)
        .dir("/srv/app", 0o755)
        .file("/srv/app/run.sh", "ours\n", 0o755)
        .file("/srv/app/part/f", "ours\n", 0o644);
    let directory = wanted.0.directories.values_mut().next().unwrap();
    directory.user = Some(machinist_ignition::Owner::Id(owner));
    wanted
}

/// The path is root's when the update is verified, and what bob has put there is still in the way.
#[tokio::test]
async fn a_user_cannot_keep_a_directory_that_a_config_takes_back() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, _), script) = (with_home(), Script::new());
    let root = sandbox.root();
    std::fs::create_dir_all(sandbox.path("/srv")).unwrap();
    applied(&sandbox, &root, &script, &with_app("first", BOB)).await;
    let theirs = sandbox.path("/srv/app/run.sh");
    std::fs::remove_file(&theirs).unwrap();
    std::fs::create_dir_all(theirs.join("own")).unwrap();
    std::os::unix::fs::chown(&theirs, Some(BOB), Some(BOB)).unwrap();
    // A directory that was made for an entry of root, which bob exchanges.
    let part = sandbox.path("/srv/app/part");
    std::fs::rename(&part, sandbox.path("/srv/app/moved")).unwrap();
    std::fs::create_dir(&part).unwrap();
    std::os::unix::fs::chown(&part, Some(BOB), Some(BOB)).unwrap();
    std::fs::copy(sandbox.path("/srv/app/moved/f"), part.join("f")).unwrap();
    for text in ["second", "third"] {
        applied(&sandbox, &root, &script, &with_app(text, 0)).await;
        assert_eq!(sandbox.read("/etc/plain").unwrap(), text);
        assert!(theirs.join("own").exists());
    }
    for path in ["/srv/app", "/srv/app/part"] {
        let stat = std::fs::metadata(sandbox.path(path)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&stat), 0, "{path}");
    }
    // The way is free: the entry is written, and no skipping is remembered.
    std::fs::remove_dir_all(&theirs).unwrap();
    applied(&sandbox, &root, &script, &with_app("fourth", 0)).await;
    assert_eq!(sandbox.read("/srv/app/run.sh").unwrap(), "ours\n");
    assert!(sandbox.journal().skipped.is_empty());
}

#[tokio::test]
async fn a_user_cannot_block_updates_by_the_file_of_a_hard_link() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, _), script) = (with_home(), Script::new());
    let root = sandbox.root();
    let linked = |text, file: &str| {
        let wanted = config(text).file("/etc/plain", text, 0o644);
        wanted
            .file("/home/bob/f", file, 0o644)
            .hard("/etc/y", "/home/bob/f")
    };
    applied(&sandbox, &root, &script, &linked("first", "1")).await;
    applied(&sandbox, &root, &script, &linked("second", "2")).await;
    std::fs::remove_file(sandbox.path("/home/bob/f")).unwrap();
    std::fs::create_dir_all(sandbox.path("/home/bob/f/own")).unwrap();
    // Another config with the same two entries, then the one before.
    for wanted in [linked("third", "2"), linked("first", "1")] {
        applied(&sandbox, &root, &script, &wanted).await;
        assert_eq!(sandbox.read("/etc/plain").unwrap(), wanted.0.name);
        assert_eq!(sandbox.read("/etc/y").unwrap(), "2");
    }
    let left = sandbox
        .journal()
        .history
        .last()
        .unwrap()
        .left_behind
        .join("\n");
    assert!(
        left.contains("/etc/y is skipped, because the machine returns"),
        "{left}"
    );
}

/// An update that skips an entry after a failure and is verified ends the skipping.
#[tokio::test]
async fn an_entry_is_skipped_after_a_failure_in_one_update_only() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let ((sandbox, broken), script) = (with_home(), Script::new());
    let root = sandbox.root();
    sandbox.write("/home/bob/app.conf", "original\n");
    applied(&sandbox, &root, &script, &with_plain("first")).await;
    std::fs::remove_file(sandbox.path("/home/bob/app.conf")).unwrap();
    applied(&sandbox, &broken, &script, &with_plain("second")).await;
    assert_eq!(sandbox.read("/home/bob/app.conf"), None);
    let without = config("third").file("/etc/plain", "third", 0o644);
    applied(&sandbox, &root, &script, &without).await;
    assert_eq!(sandbox.read("/home/bob/app.conf").unwrap(), "original\n");
}
