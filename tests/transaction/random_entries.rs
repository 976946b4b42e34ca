//! Random machines and configs with owners, users, groups, keys, hard links and entries without contents, mode or
//! owner: an update leaves nothing to do, and removing the config leaves no trace.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use machinist_ignition::{
    Content, Directory, EntryOrigin, File, Group, Link, MachineConfig, Owner, User, UserAccount,
};
use machinist_rootfs::TreeSnapshot;
use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config, difference, from_environment, long, without_staging},
    settled::assert_settled,
};

use super::random::Dice;

const PATHS: [&str; 14] = [
    "/etc/a",
    "/etc/a/b",
    "/etc/a/b/c",
    "/etc/d",
    "/etc/d/e",
    "/srv/f",
    "/srv/f/g",
    "/srv/h",
    "/srv/i/j",
    "/home/bob/k",
    "/home/bob/l/m",
    "/home/ann/n",
    "/opt/o/p",
    "/opt/q",
];

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn pick<T: Clone>(dice: &mut Dice, all: &[T]) -> T {
    all[dice.below(all.len())].clone()
}

/// Adds objects of every kind, with several owners and some with two names.
fn add_objects(dice: &mut Dice, sandbox: &Sandbox) {
    for path in PATHS {
        let (at, text) = (sandbox.path(path), format!("{path}\n"));
        let above_is_directory = at.parent().is_some_and(|above| {
            fs::symlink_metadata(above).map_or(true, |found| found.is_dir())
                && fs::create_dir_all(above).is_ok()
        });
        if !above_is_directory {
            continue;
        }
        match dice.below(12) {
            0 | 1 => fs::write(&at, text).unwrap(),
            2 | 3 => fs::create_dir(&at).unwrap(),
            4 => {
                fs::create_dir(&at).unwrap();
                fs::write(at.join("theirs"), text).unwrap();
            }
            5 => {
                let target = pick(dice, &["/etc/passwd", "gone", "/srv/f", "."]);
                std::os::unix::fs::symlink(target, &at).unwrap();
            }
            6 => nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRUSR).unwrap(),
            7 => {
                fs::write(&at, text).unwrap();
                fs::hard_link(&at, at.with_extension("twin")).unwrap();
            }
            _ => continue,
        }
        own(dice, &at);
    }
}

fn own(dice: &mut Dice, at: &Path) {
    if !fs::symlink_metadata(at).unwrap().is_symlink() {
        let mode = pick(dice, &[0o600, 0o644, 0o755, 0o700]);
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
    }
    if is_root() {
        let id = pick(dice, &[0, 0, 1000, 1234]);
        std::os::unix::fs::lchown(at, Some(id), Some(id)).unwrap();
    }
}

fn owner(dice: &mut Dice, ann: bool) -> Owner {
    if !is_root() {
        return Owner::Id(nix::unistd::geteuid().as_raw());
    }
    let name = match dice.below(3) {
        0 if ann => "ann",
        1 => "bob",
        _ => "root",
    };
    match dice.below(4) {
        0 => Owner::Id(1000),
        1 => Owner::Id(1234),
        _ => Owner::Name(name.to_owned()),
    }
}

fn add_entry(dice: &mut Dice, config: &mut MachineConfig, path: &str, ann: bool) {
    let origin = EntryOrigin::default();
    let (user, group) = (owner(dice, ann), owner(dice, ann));
    let partly = dice.one_in(3);
    let given = |dice: &mut Dice| !partly || dice.one_in(2);
    let mode = given(dice).then(|| pick(dice, &[0o600, 0o644, 0o755, 0o2750]));
    let (some_user, some_group) = (
        given(dice).then(|| user.clone()),
        given(dice).then(|| group.clone()),
    );
    match dice.below(8) {
        0..=2 => {
            let text = pick(dice, &["", "one\n", "two\n"]);
            let content = Content::new(text.as_bytes().to_vec());
            let file = File {
                content: (!partly).then_some(content),
                mode,
                user: some_user,
                group: some_group,
                origin,
            };
            config.files.insert(at(path), file);
        }
        3 | 4 => {
            let directory = Directory {
                mode,
                user: some_user,
                group: some_group,
                origin,
            };
            config.directories.insert(at(path), directory);
        }
        5 => {
            let target = pick(dice, &["/etc/passwd", "gone", "../h"]).to_owned();
            let link = Link {
                target,
                hard: false,
                user,
                group,
                origin,
            };
            config.links.insert(at(path), link);
        }
        _ => {
            let Some(target) = config.files.keys().next() else {
                return;
            };
            let link = Link {
                target: target.to_string(),
                hard: true,
                user: Owner::ROOT,
                group: Owner::ROOT,
                origin,
            };
            config.links.insert(at(path), link);
        }
    }
}

fn add_accounts(dice: &mut Dice, config: &mut MachineConfig) -> bool {
    let keys = |dice: &mut Dice| match dice.one_in(2) {
        true => vec![format!("{KEY} {}", dice.below(2))],
        false => Vec::new(),
    };
    let devs = dice.one_in(2);
    if devs {
        let group = Group {
            gid: dice.one_in(2).then_some(2000),
            ..Group::default()
        };
        config.groups.insert("devs".to_owned(), group);
    }
    let ann = dice.one_in(2);
    if ann {
        let account = UserAccount {
            uid: dice.one_in(2).then_some(1500),
            gecos: dice.one_in(2).then(|| "Ann".to_owned()),
            groups: match devs && dice.one_in(2) {
                true => vec!["devs".to_owned()],
                false => Vec::new(),
            },
            no_create_home: dice.one_in(4).then_some(true),
            shell: dice.one_in(2).then(|| at("/bin/sh")),
            ..UserAccount::default()
        };
        let user = User {
            ssh_authorized_keys: keys(dice),
            account: Some(account),
            ..User::default()
        };
        config.users.insert("ann".to_owned(), user);
    }
    if dice.one_in(2) {
        let account = dice.one_in(2).then(|| UserAccount {
            shell: Some(at("/bin/zsh")),
            ..UserAccount::default()
        });
        let user = User {
            ssh_authorized_keys: keys(dice),
            account,
            ..User::default()
        };
        config.users.insert("bob".to_owned(), user);
    }
    ann
}

fn any_config(dice: &mut Dice, number: usize) -> Written {
    let Written(mut config) = config(&format!("entries-{number}"));
    let ann = dice.one_in(2) && add_accounts(dice, &mut config);
    for path in PATHS {
        if dice.one_in(3) {
            add_entry(dice, &mut config, path, ann);
        }
    }
    Written(config)
}

/// Everything but the databases of accounts and the homes, which keep users that were made.
fn without_accounts(sandbox: &Sandbox) -> TreeSnapshot {
    without_staging(&sandbox.tree()).without(|path| {
        let databases = ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"];
        let is_database = databases
            .iter()
            .any(|name| path.file_name().trim_end_matches('-') == *name);
        (path.directory() == "/etc" && is_database) || path.as_str().starts_with("/home/ann")
    })
}

#[test]
fn random_entries_with_owners_and_accounts_leave_nothing_to_do() {
    let first = from_environment("MACHINIST_SEED").unwrap_or(1);
    let rounds = from_environment("MACHINIST_ROUNDS").unwrap_or(if long() { 2_000 } else { 40 });
    let (mut applied, mut refused) = (0, 0);
    for seed in first..first.saturating_add(rounds) {
        let mut dice = Dice(seed ^ 0x0E47_71E5);
        let sandbox = Sandbox::new().with_accounts();
        add_objects(&mut dice, &sandbox);
        let before = without_accounts(&sandbox);
        let mut story = format!("MACHINIST_SEED={seed} MACHINIST_ROUNDS=1\n");
        for number in 0..3 {
            let written = any_config(&mut dice, number);
            let then = sandbox.tree();
            story += &format!("{number}: {:#?}\n", written.0);
            match &sandbox.apply(&written).failure {
                None => {
                    assert_settled(&sandbox, &written, &|| story.clone());
                    applied += 1;
                }
                Some(failure) => {
                    let is_refused = failure.message.starts_with("the config is refused");
                    assert!(is_refused, "{}\n{story}", failure.message);
                    let now = sandbox.tree();
                    assert!(now == then, "{}\n{story}", difference(&then, &now));
                    refused += 1;
                    story += "refused\n";
                }
            }
        }
        sandbox.applied(&config("nothing"));
        let after = without_accounts(&sandbox);
        assert!(
            after == before,
            "at the end\n{}\n{story}",
            difference(&before, &after)
        );
    }
    assert!(
        rounds < 20 || applied * 3 > refused,
        "{applied} applied, {refused} refused"
    );
    println!("{applied} applied, {refused} refused");
}
