//! Other processes write while an update is open: their content is kept, whatever the result of the
//! update.

use std::{fs::File, io::Write as _};

use machinist_testkit::{
    sandbox::{Sandbox, config, difference, without_staging},
    stepwise_update::StepwiseUpdate,
};
use machinist_update::journal::{Outcome, UpdateRecord};

fn drifted(sandbox: &Sandbox) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![sandbox.path("/var/lib/machinist/drifted")];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            match std::fs::read_to_string(&path) {
                Ok(text) => found.push(text),
                Err(_) => todo.push(path),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn rollback_keeps_a_foreign_object_that_replaced_ours() {
    let sandbox = Sandbox::new();
    let long = format!("/etc/{0}/{0}/long", "n".repeat(200));
    for path in ["/etc/found", "/etc/a/b", "/etc/a-b", &long] {
        sandbox.write(path, "found\n");
    }
    let before = without_staging(&sandbox.tree());
    let mut wanted = config("wanted").file("/etc/new/dir/file", "ours\n", 0o644);
    for path in ["/etc/found", "/etc/a/b", "/etc/a-b", &long, "/etc/made"] {
        wanted = wanted.file(path, "ours\n", 0o644);
    }
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&wanted).unwrap();
    hand.commit().unwrap();
    for path in ["/etc/found", "/etc/a/b", "/etc/a-b", &long, "/etc/made"] {
        std::fs::remove_file(sandbox.path(path)).unwrap();
        sandbox.write(path, &format!("theirs {}\n", &path[..6]));
    }
    sandbox.write("/etc/new/dir/beside", "theirs beside ours\n");
    hand.undo().unwrap();
    let after = without_staging(&sandbox.tree());
    assert!(after == before, "{}", difference(&before, &after));
    let kept = drifted(&sandbox);
    assert_eq!(
        kept,
        [
            "ours\n",
            "theirs /etc/a\n",
            "theirs /etc/a\n",
            "theirs /etc/f\n",
            "theirs /etc/m\n",
            "theirs /etc/n\n",
            "theirs beside ours\n",
        ]
    );
}

#[test]
fn a_target_changed_before_commit_is_kept_and_the_rest_rolled_back() {
    let sandbox = Sandbox::new();
    sandbox.write("/etc/a", "found\n");
    sandbox.write("/etc/b", "found\n");
    let wanted = config("wanted")
        .file("/etc/a", "ours\n", 0o644)
        .file("/etc/b", "ours\n", 0o644)
        .file("/etc/c", "ours\n", 0o644);
    for changed in ["/etc/a", "/etc/b", "/etc/c"] {
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&wanted).unwrap();
        std::fs::remove_file(sandbox.path(changed)).ok();
        sandbox.write(changed, "theirs\n");
        let before = without_staging(&sandbox.tree());
        hand.commit().unwrap_err();
        hand.undo().unwrap();
        let after = without_staging(&sandbox.tree());
        assert!(
            after == before,
            "{changed}: {}",
            difference(&before, &after)
        );
    }
    assert_eq!(drifted(&sandbox), [""; 0]);
}

#[test]
fn a_directory_with_new_foreign_content_is_not_removed() {
    let sandbox = Sandbox::new();
    let first = config("first")
        .dir("/srv/ours", 0o755)
        .file("/srv/ours/f", "x", 0o644);
    sandbox.applied(&first);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&config("second")).unwrap();
    sandbox.write("/srv/ours/theirs", "theirs\n");
    hand.commit().unwrap_err();
    hand.undo().unwrap();
    drop(hand);
    assert_eq!(sandbox.read("/srv/ours/theirs").unwrap(), "theirs\n");
    assert_eq!(sandbox.read("/srv/ours/f").unwrap(), "x");
    sandbox.applied(&config("second"));
    assert_eq!(sandbox.read("/srv/ours/theirs").unwrap(), "theirs\n");
    assert_eq!(sandbox.read("/srv/ours/f"), None);
}

#[test]
fn a_file_created_after_ours_was_removed_is_foreign() {
    let sandbox = Sandbox::new();
    let wanted = config("wanted").file("/etc/f", "ours\n", 0o644);
    sandbox.applied(&wanted);
    std::fs::remove_file(sandbox.path("/etc/f")).unwrap();
    sandbox.applied(&config("nothing"));
    sandbox.write("/etc/f", "a package's\n");
    sandbox.applied(&wanted);
    sandbox.applied(&config("nothing"));
    assert_eq!(sandbox.read("/etc/f").unwrap(), "a package's\n");
}

#[test]
fn ssh_keys_are_added_to_a_users_file_and_removed_again() {
    let sandbox = Sandbox::new();
    sandbox.write("/etc/passwd", "ann:x:0:0::/home/ann:/bin/sh\n");
    sandbox.write("/home/ann/.ssh/authorized_keys", "ssh-ed25519 AAAA own\n");
    let mut wanted = config("wanted");
    let user = machinist_ignition::User {
        ssh_authorized_keys: vec!["ssh-ed25519 BBBB given".to_owned()],
        ..Default::default()
    };
    wanted.0.users.insert("ann".to_owned(), user);
    sandbox.applied(&wanted);
    let text = sandbox.read("/home/ann/.ssh/authorized_keys").unwrap();
    assert!(text.contains("own") && text.contains("given"), "{text}");
    assert!(sandbox.journal().originals.is_empty());
    // The user adds a key; it stays when ours are removed.
    sandbox.write(
        "/home/ann/.ssh/authorized_keys",
        &format!("{text}ssh-ed25519 CCCC new\n"),
    );
    sandbox.applied(&config("nothing"));
    let text = sandbox.read("/home/ann/.ssh/authorized_keys").unwrap();
    assert!(text.contains("own") && text.contains("new"), "{text}");
    assert!(!text.contains("given"), "{text}");
}

#[test]
fn only_the_twenty_newest_set_aside_changes_are_kept() {
    let sandbox = Sandbox::new();
    for day in 1..=30 {
        let path = format!("/var/lib/machinist/drifted/202001{day:02}T000000Z-0/etc-a");
        sandbox.write(&path, &format!("{day:02}\n"));
    }
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&config("wanted").file("/etc/a", "ours\n", 0o644))
        .unwrap();
    hand.commit().unwrap();
    assert_eq!(drifted(&sandbox).len(), 30);
    hand.close();
    let newest: Vec<_> = (11..=30).map(|day| format!("{day:02}\n")).collect();
    assert_eq!(drifted(&sandbox), newest);
}

fn appender(sandbox: &Sandbox, path: &str) -> File {
    File::options()
        .append(true)
        .open(sandbox.path(path))
        .unwrap()
}

/// Writes in place, as `echo >>` and `ssh-copy-id` do.
fn append(file: &mut File, text: &str) {
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_file_written_in_place_while_it_is_replaced_is_kept() {
    let sandbox = Sandbox::new();
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    sandbox.write(
        "/etc/passwd",
        &format!("ann:x:{uid}:{gid}::/home/ann:/bin/sh\n"),
    );
    sandbox.write("/home/ann/.keep", "");
    let key = |key: &str| {
        let keys = config(key).key("ann", key);
        keys.file("/etc/early", key, 0o644)
            .file("/etc/late", key, 0o644)
    };
    let keys_file = "/home/ann/.ssh/authorized_keys";
    sandbox.applied(&key("ssh-ed25519 AAAA first"));
    append(&mut appender(&sandbox, keys_file), "ssh-ed25519 CCCC own\n");
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&key("ssh-ed25519 BBBB second")).unwrap();
    let [mut early, mut keys, mut late] =
        ["/etc/early", keys_file, "/etc/late"].map(|path| appender(&sandbox, path));
    append(&mut early, "\nadded before the exchange\n");
    append(&mut keys, "ssh-ed25519 DDDD added\n");
    hand.commit().unwrap();
    append(&mut late, "\nadded after the exchange\n");
    hand.close();
    let kept = drifted(&sandbox);
    let [keys, late, early] = &kept[..] else {
        panic!("{kept:#?}");
    };
    assert_eq!(early, "ssh-ed25519 AAAA first\nadded before the exchange\n");
    assert_eq!(late, "ssh-ed25519 AAAA first\nadded after the exchange\n");
    assert!(
        keys.ends_with("ssh-ed25519 CCCC own\nssh-ed25519 DDDD added\n"),
        "{keys}"
    );
    let current = sandbox.read(keys_file).unwrap();
    assert!(
        current.contains("CCCC own") && current.contains("BBBB second"),
        "{current}"
    );
}

#[test]
fn set_aside_changes_of_updates_in_the_history_outlive_those_of_repairs() {
    let sandbox = Sandbox::new();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&config("earlier").file("/etc/a", "earlier\n", 0o644))
        .unwrap();
    hand.commit().unwrap();
    let tx = hand.journal.top().unwrap();
    let record = tx.record(Outcome::Done, tx.started);
    assert!(!record.repair);
    hand.close();
    for (second, repair) in (0..=30).map(|second| (second, second > 0)) {
        let id = format!("20200101T0000{second:02}Z-0");
        let path = format!("/var/lib/machinist/drifted/{id}/etc-a");
        sandbox.write(&path, &format!("{second:02}\n"));
        hand.journal.remember(UpdateRecord {
            id,
            repair,
            ..record.clone()
        });
    }
    hand.stage(&config("wanted").file("/etc/a", "ours\n", 0o644))
        .unwrap();
    hand.commit().unwrap();
    hand.close();
    let kept = drifted(&sandbox);
    assert_eq!(kept.len(), 20);
    assert_eq!(kept[0], "00\n");
}
