use std::fmt::Write as _;

use super::*;
use machinist_ignition::{Group, PasswordHash, User, UserAccount};

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
    bob:x:1000:1000:Bob:/home/bob:/bin/bash\n\
    nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n";
const SHADOW: &str =
    "root:*:19000:0:99999:7:::\nbob:$6$s$bob:19000:0:99999:7:::\nnobody:*:19000::::::\n";
const GROUP: &str = "root:x:0:\nsudo:x:27:bob\nusers:x:100:\nbob:x:1000:\n";
const GSHADOW: &str = "root:*::\nsudo:*::bob\nusers:*::\nbob:!::\n";

/// A machine with these databases.
fn machine(texts: &[(Database, &str)]) -> MachineFacts {
    let mut observed = MachineFacts::default();
    for (database, text) in texts {
        let entries = DatabaseEntries::read(text.as_bytes());
        for row in entries.rows(*database) {
            let (name, number) = (row[0].to_owned(), |at: usize| row[at].parse().unwrap());
            match database {
                Database::Passwd => {
                    let (uid, gid) = (number(2), number(3));
                    let home = AbsPath::new(row[5]).ok();
                    observed.users.insert(name, UserFacts { uid, gid, home });
                }
                Database::Group => drop(observed.groups.insert(name, number(2))),
                _ => {}
            }
        }
        observed.accounts.databases.insert(*database, entries);
    }
    observed.accounts.shell = "/bin/sh".into();
    observed
}

fn usual() -> MachineFacts {
    machine(&[
        (Database::Passwd, PASSWD),
        (Database::Shadow, SHADOW),
        (Database::Group, GROUP),
        (Database::Gshadow, GSHADOW),
        (Database::Subuid, "bob:100000:65536\n"),
        (Database::Subgid, "bob:100000:65536\n"),
    ])
}

fn user(name: &str, account: UserAccount) -> MachineConfig {
    let mut config = MachineConfig::default();
    let account = Some(account);
    let user = User {
        account,
        ..User::default()
    };
    config.users.insert(name.to_owned(), user);
    config
}

fn hash(text: &str) -> Option<PasswordHash> {
    Some(PasswordHash::new(text).unwrap())
}

/// The databases after the edits, as the transaction makes them.
fn after(observed: &MachineFacts, edits: &[Edit]) -> BTreeMap<Database, String> {
    let mut now = observed.accounts.databases.clone();
    for edit in edits {
        let there = now.get_mut(&edit.database()).unwrap();
        assert_eq!(
            edit.edit_state(there),
            super::super::EditState::Before,
            "{edit:?}"
        );
        edit.apply(there);
    }
    let text = |entries: DatabaseEntries| String::from_utf8(entries.bytes()).unwrap();
    now.into_iter()
        .map(|(database, entries)| (database, text(entries)))
        .collect()
}

/// The observation of a second machine that is in the state after the edits.
fn next(observed: &MachineFacts, edits: &[Edit]) -> MachineFacts {
    let texts = after(observed, edits);
    let texts: Vec<_> = texts
        .iter()
        .map(|(database, text)| (*database, text.as_str()))
        .collect();
    let mut next = machine(&texts);
    next.accounts.kept = observed.accounts.kept.clone();
    for edit in edits {
        super::super::remember(&mut next.accounts.kept, edit);
    }
    next
}

fn refusals(to: &MachineConfig, observed: &MachineFacts) -> String {
    let refusals = accounts(to, observed).refusals;
    refusals.iter().fold(String::new(), |mut text, refusal| {
        let _ = writeln!(text, "{refusal}");
        text
    })
}

#[test]
fn a_new_user_gets_an_entry_in_every_database_and_existing_ones_stay() {
    let observed = usual();
    let to = user(
        "ann",
        UserAccount {
            gecos: Some("Ann".into()),
            groups: vec!["sudo".into(), "users".into()],
            password_hash: hash("$6$salt$ann"),
            ..UserAccount::default()
        },
    );
    let done = accounts(&to, &observed);
    assert!(done.refusals.is_empty() && done.warnings.is_empty());
    let texts = after(&observed, &done.edits);
    for (database, wanted) in [
        (
            Database::Passwd,
            format!("{PASSWD}ann:x:1001:1001:Ann:/home/ann:/bin/sh\n"),
        ),
        (
            Database::Shadow,
            format!("{SHADOW}ann:$6$salt$ann:::::::\n"),
        ),
        (
            Database::Group,
            "root:x:0:\nsudo:x:27:bob,ann\nusers:x:100:ann\nbob:x:1000:\nann:x:1001:\n".into(),
        ),
        (
            Database::Gshadow,
            "root:*::\nsudo:*::bob,ann\nusers:*::ann\nbob:!::\nann:!::\n".into(),
        ),
        (
            Database::Subuid,
            "bob:100000:65536\nann:165536:65536\n".into(),
        ),
        (
            Database::Subgid,
            "bob:100000:65536\nann:165536:65536\n".into(),
        ),
    ] {
        assert_eq!(texts[&database], wanted);
    }
    assert_eq!(done.homes.len(), 1);
    assert!(!format!("{done:?}").contains("salt"), "a hash is shown");

    // The same config again changes nothing; without the user the files are byte for byte as
    // before.
    let there = next(&observed, &done.edits);
    assert_eq!(accounts(&to, &there).edits, []);
    let left = accounts(&MachineConfig::default(), &there);
    assert_eq!(
        left.warnings,
        ["user ann is removed; its home directory /home/ann is kept if it exists"]
    );
    for (database, text) in after(&there, &left.edits) {
        let found = observed.accounts.databases[&database].bytes();
        assert_eq!(text.as_bytes(), found, "{database:?}");
    }
    assert_eq!(next(&there, &left.edits).accounts.kept, []);
}

#[test]
fn changed_user_fields_are_restored_unless_changed_by_others() {
    let observed = usual();
    let to = user(
        "bob",
        UserAccount {
            shell: Some("/bin/zsh".parse().unwrap()),
            password_hash: hash("$6$salt$new"),
            groups: vec!["users".into()],
            ..UserAccount::default()
        },
    );
    let done = accounts(&to, &observed);
    assert_eq!(done.changes[0].fields, ["shell", "password", "groups"]);
    let mut there = next(&observed, &done.edits);
    let left = accounts(&MachineConfig::default(), &there);
    for (database, text) in after(&there, &left.edits) {
        assert_eq!(
            text.as_bytes(),
            observed.accounts.databases[&database].bytes()
        );
    }

    // Bob has changed his shell in the meantime.
    let by_bob = Edit::Field {
        database: Database::Passwd,
        name: "bob".into(),
        index: field::SHELL_FIELD,
        before: "/bin/zsh".into(),
        after: "/bin/fish".into(),
    };
    by_bob.apply(there.accounts.databases.get_mut(&Database::Passwd).unwrap());
    let left = accounts(&MachineConfig::default(), &there);
    assert!(left.warnings[0].starts_with(
        "shell of user bob is removed from the config, but kept, because it was modified"
    ));
    let texts = after(&there, &left.edits);
    assert!(texts[&Database::Passwd].contains(":/bin/fish\n"));
    assert_eq!(texts[&Database::Shadow], SHADOW);
    assert_eq!(left.let_go.len(), there.accounts.kept.len());
}

#[test]
fn a_user_removed_by_a_config_is_restored_when_the_config_leaves() {
    let observed = usual();
    let to = user(
        "bob",
        UserAccount {
            should_exist: Some(false),
            ..UserAccount::default()
        },
    );
    let done = accounts(&to, &observed);
    let there = next(&observed, &done.edits);
    for entries in there.accounts.databases.values() {
        assert!(!String::from_utf8(entries.bytes()).unwrap().contains("bob"));
    }
    assert_eq!(accounts(&to, &there).edits, []);
    let back = accounts(&MachineConfig::default(), &there);
    for (database, text) in after(&there, &back.edits) {
        assert_eq!(
            text.as_bytes(),
            observed.accounts.databases[&database].bytes()
        );
    }
}

#[test]
fn a_group_created_by_the_config_has_its_members_at_once() {
    let observed = usual();
    let mut to = user(
        "ann",
        UserAccount {
            primary_group: Some("devs".into()),
            system: Some(true),
            groups: vec!["ops".into()],
            ..UserAccount::default()
        },
    );
    to.groups.insert(
        "devs".into(),
        Group {
            gid: Some(2000),
            ..Group::default()
        },
    );
    to.groups.insert(
        "ops".into(),
        Group {
            system: Some(true),
            ..Group::default()
        },
    );
    let done = accounts(&to, &observed);
    let texts = after(&observed, &done.edits);
    assert_eq!(
        texts[&Database::Group],
        format!("{GROUP}devs:x:2000:\nops:x:999:ann\n")
    );
    assert!(texts[&Database::Passwd].ends_with("ann:x:999:2000::/home/ann:/bin/sh\n"));
    assert!(done.homes.is_empty() && !texts[&Database::Subuid].contains("ann"));

    // A group that leaves the config stays while it has members.
    let there = next(&observed, &done.edits);
    to.groups.clear();
    let left = accounts(&to, &there);
    assert_eq!(left.edits, []);
    assert_eq!(left.warnings.len(), 2);
}

#[test]
fn account_changes_that_detach_a_user_from_its_data_are_rejected() {
    let observed = usual();
    let asked = |set: &dyn Fn(&mut UserAccount)| {
        let mut account = UserAccount::default();
        set(&mut account);
        account
    };
    let (text, home) = (|| Some("x".to_owned()), || "/elsewhere".parse().ok());
    for (name, account, wanted) in [
        ("bob", asked(&|a| a.uid = Some(1234)), "to 1234"),
        (
            "bob",
            asked(&|a| a.home_dir = home()),
            "cannot be changed from",
        ),
        ("root", asked(&|a| a.gecos = text()), "has uid 0"),
        (
            "root",
            asked(&|a| a.should_exist = Some(false)),
            "it is root",
        ),
        ("ann", asked(&|a| a.uid = Some(1000)), "already used by bob"),
        ("ann", asked(&|a| a.groups.extend(text())), "no group \"x\""),
        ("sudo", asked(&|a| a.gecos = text()), "set primaryGroup"),
    ] {
        let message = refusals(&user(name, account), &observed);
        assert!(
            message.contains(wanted) && message.lines().count() == 1,
            "{message}"
        );
    }
}

#[test]
fn account_changes_that_this_machine_does_not_support_are_rejected() {
    let observed = usual();
    let mut gone = MachineConfig::default();
    for name in ["bob", "root"] {
        let group = Group {
            should_exist: Some(false),
            ..Group::default()
        };
        gone.groups.insert(name.into(), group);
    }
    assert_eq!(refusals(&gone, &observed).lines().count(), 2);
    let bare = machine(&[(Database::Passwd, PASSWD)]);
    let to = user("ann", UserAccount::default());
    assert!(refusals(&to, &bare).contains("users and groups: /etc/group is missing"));
    let open = machine(&[(Database::Passwd, PASSWD), (Database::Group, GROUP)]);
    let to = user(
        "ann",
        UserAccount {
            password_hash: hash("$6$s$x"),
            ..UserAccount::default()
        },
    );
    assert!(refusals(&to, &open).contains("needs an entry in /etc/shadow"));
}

#[test]
fn the_user_core_is_never_created() {
    let to = user(
        "core",
        UserAccount {
            password_hash: hash("$6$s$x"),
            ..UserAccount::default()
        },
    );
    let done = accounts(&to, &usual());
    assert_eq!(done.edits, []);
    assert!(
        done.warnings[0].contains("no user core"),
        "{:?}",
        done.warnings
    );
}

#[test]
fn a_recreated_user_of_the_same_name_is_not_treated_as_ours() {
    let observed = usual();
    let to = user("ann", UserAccount::default());
    let done = accounts(&to, &observed);
    let mut there = next(&observed, &done.edits);
    // Ann was removed and created again by hand, with another number.
    let text = format!("{PASSWD}ann:x:1500:1001::/home/ann:/bin/sh\n");
    let entries = DatabaseEntries::read(text.as_bytes());
    there.accounts.databases.insert(Database::Passwd, entries);
    let left = accounts(&MachineConfig::default(), &there);
    assert!(
        left.warnings[0].contains("its uid is no longer"),
        "{:?}",
        left.warnings
    );
    assert!(
        !left
            .edits
            .iter()
            .any(|edit| edit.database() == Database::Passwd)
    );
}
