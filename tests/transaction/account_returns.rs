//! Accounts that a config names again after it removed them, and what it gave to groups that it created.

use machinist_ignition::{Group, UserAccount};
use machinist_testkit::sandbox::{Sandbox, Written, at, config};

use super::accounts::{edit, machine};

const DATABASES: [&str; 6] = ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"];

fn databases(sandbox: &Sandbox) -> Vec<Vec<u8>> {
    let read = |name| std::fs::read(sandbox.path(&format!("/etc/{name}"))).unwrap();
    DATABASES.map(read).into()
}

fn lines_of(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let texts = databases(sandbox);
    let texts = texts.iter().map(|text| String::from_utf8_lossy(text));
    let lines = |text: &str| -> Vec<String> {
        let own = text
            .lines()
            .filter(|line| line.starts_with(&format!("{name}:")));
        own.map(str::to_owned).collect()
    };
    texts.flat_map(|text| lines(&text)).collect()
}

fn absent() -> UserAccount {
    UserAccount {
        should_exist: Some(false),
        ..UserAccount::default()
    }
}

fn in_groups(groups: &[&str]) -> UserAccount {
    UserAccount {
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserAccount::default()
    }
}

fn with_group(mut wanted: Written, name: &str) -> Written {
    wanted.0.groups.insert(name.to_owned(), Group::default());
    wanted
}

#[test]
fn a_user_that_a_config_removed_comes_back_with_number_and_password() {
    let named = || config("named").key("bob", "ssh-ed25519 AAAA bob");
    let shell = UserAccount {
        shell: Some(at("/bin/zsh")),
        ..UserAccount::default()
    };
    for account in [None, Some(UserAccount::default()), Some(shell)] {
        let sandbox = machine();
        let start = databases(&sandbox);
        let before = lines_of(&sandbox, "bob");
        let wanted = || match account.clone() {
            None => named(),
            Some(account) => named().user("bob", account),
        };
        sandbox.applied(&wanted());
        sandbox.applied(&config("without").user("bob", absent()));
        assert_eq!(lines_of(&sandbox, "bob"), Vec::<String>::new());
        sandbox.applied(&wanted());
        let mut expected = before.clone();
        if account.is_some_and(|account| account.shell.is_some()) {
            expected[0] = expected[0].replace("/bin/bash", "/bin/zsh");
        }
        assert_eq!(lines_of(&sandbox, "bob"), expected);
        assert!(
            sandbox
                .read("/etc/group")
                .unwrap()
                .contains("sudo:x:27:bob")
        );
        sandbox.applied(&config("none"));
        assert_eq!(databases(&sandbox), start);
    }
}

#[test]
fn the_number_of_a_removed_user_is_not_given_to_another_one() {
    let sandbox = machine();
    let before = lines_of(&sandbox, "bob");
    let without = config("without").user("bob", absent());
    sandbox.applied(&without.user("ann", UserAccount::default()));
    assert!(lines_of(&sandbox, "ann")[0].starts_with("ann:x:1001:1001:"));
    sandbox.applied(&config("none"));
    assert_eq!(lines_of(&sandbox, "bob"), before);
    assert_eq!(lines_of(&sandbox, "ann"), Vec::<String>::new());
}

#[test]
fn a_user_that_is_named_again_with_another_number_is_a_new_one() {
    let sandbox = machine();
    sandbox.applied(&config("without").user("bob", absent()));
    let account = UserAccount {
        uid: Some(2000),
        ..UserAccount::default()
    };
    sandbox.applied(&config("other").user("bob", account));
    assert!(lines_of(&sandbox, "bob")[0].starts_with("bob:x:2000:"));
}

#[test]
fn members_of_a_group_that_the_config_created_leave_with_their_entries() {
    let both = || with_group(config("both"), "g");
    for user in ["ann", "bob"] {
        for created_first in [false, true] {
            let sandbox = machine();
            let start = databases(&sandbox);
            if created_first {
                sandbox.applied(&both());
            }
            sandbox.applied(&both().user(user, in_groups(&["g"])));
            assert!(
                lines_of(&sandbox, "g")
                    .iter()
                    .all(|line| line.ends_with(user))
            );
            sandbox.applied(&both().user(user, in_groups(&[])));
            assert!(
                lines_of(&sandbox, "g")
                    .iter()
                    .all(|line| line.ends_with(':'))
            );
            // Members that others added stay, and keep the group.
            sandbox.applied(&config("none"));
            assert_eq!(databases(&sandbox), start, "{user} {created_first}");
        }
    }
}

/// chfn accepts a full name that is not UTF-8.
#[test]
fn an_entry_that_is_not_utf_8_is_read_and_keeps_its_bytes() {
    let sandbox = machine();
    let path = sandbox.path("/etc/passwd");
    let text = std::fs::read(&path).unwrap();
    let at_name = text.windows(5).position(|part| part == b":Bob:").unwrap();
    let text = [&text[..at_name], b":J\xfcrg:", &text[at_name + 5..]].concat();
    std::fs::write(&path, &text).unwrap();
    let start = databases(&sandbox);
    let account = UserAccount {
        shell: Some(at("/bin/zsh")),
        ..in_groups(&["sudo"])
    };
    let wanted = config("one").user("ann", UserAccount::default());
    sandbox.applied(&wanted.user("bob", account));
    assert!(lines_of(&sandbox, "ann")[0].starts_with("ann:x:1001:"));
    assert!(lines_of(&sandbox, "bob")[0].ends_with("/bin/zsh"));
    let changed = std::fs::read(&path).unwrap();
    assert!(changed.windows(7).any(|part| part == b":J\xfcrg:/"));
    sandbox.applied(&config("without").user("bob", absent()));
    assert_eq!(lines_of(&sandbox, "bob"), Vec::<String>::new());
    sandbox.applied(&config("none"));
    assert_eq!(databases(&sandbox), start);
}

/// gpasswd lets the administrators of a group change its members.
#[test]
fn members_of_a_group_that_a_user_administers_are_user_drift() {
    let sandbox = machine();
    edit(&sandbox, "/etc/gshadow", "sudo:*::bob", "sudo:*:bob:bob");
    let wanted = config("one").user("ann", in_groups(&["sudo"]));
    sandbox.applied(&wanted);
    edit(&sandbox, "/etc/group", "sudo:x:27:bob,ann", "sudo:x:27:bob");
    let drift = super::accounts::drifted(&sandbox, None);
    let by_user: Vec<(&str, bool)> = drift
        .iter()
        .map(|drift| (drift.path.as_str(), drift.by_user))
        .collect();
    assert_eq!(by_user, [("/etc/group", true)]);
}
