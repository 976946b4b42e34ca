//! Random sequences of configs with users and groups: an update leaves nothing to do,
//! and an empty config at the end restores every line of the databases.

use machinist_ignition::{Group, PasswordHash, User, UserAccount};
use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config, from_environment, long},
    settled::assert_settled,
};

use super::{
    accounts::{edit, machine},
    random::Dice,
};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

const DATABASES: [&str; 6] = ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"];

/// Two users of the machine, and two whom only configs name.
const USERS: [&str; 4] = ["bob", "eve", "ann", "dan"];

/// The lines of the databases and the members in each line, sorted: what was removed by several updates may come back
/// in another order.
fn databases(sandbox: &Sandbox) -> Vec<Vec<String>> {
    let sorted = |line: &str| {
        let (rest, members) = line.rsplit_once(':').unwrap_or((line, ""));
        let mut members: Vec<&str> = members.split(',').collect();
        members.sort_unstable();
        format!("{rest}:{}", members.join(","))
    };
    let read = |name| {
        let text = sandbox.read(&format!("/etc/{name}")).unwrap();
        let mut lines: Vec<String> = text.lines().map(sorted).collect();
        lines.sort();
        lines
    };
    DATABASES.map(read).into()
}

/// The machine with another user, and a group of both.
fn with_eve() -> Sandbox {
    let sandbox = machine();
    let changes = [
        (
            "passwd",
            "# by",
            "eve:x:1005:1005:Eve:/home/eve:/bin/sh\n# by",
        ),
        ("shadow", "bob:", "eve:*:19000:0:99999:7:::\nbob:"),
        (
            "group",
            "bob:x:1000:",
            "eve:x:1005:\nboth:x:1006:eve,bob\nbob:x:1000:",
        ),
        ("gshadow", "bob:!::", "eve:!::\nboth:!::eve,bob\nbob:!::"),
    ];
    for (database, before, after) in changes {
        edit(&sandbox, &format!("/etc/{database}"), before, after);
    }
    sandbox
}

fn hash(dice: &mut Dice) -> Option<PasswordHash> {
    let text = ["", "$6$salt$a", "$6$salt$b"][dice.below(3)];
    dice.one_in(3).then(|| PasswordHash::new(text)).flatten()
}

fn any_account(dice: &mut Dice, name: &str) -> UserAccount {
    if dice.one_in(6) {
        return UserAccount {
            should_exist: Some(false),
            ..UserAccount::default()
        };
    }
    let groups = [&["both"][..], &["sudo"], &["g"], &["both", "g"], &["h"]];
    let groups = dice.one_in(2).then(|| groups[dice.below(5)]);
    let groups = groups.unwrap_or_default().iter();
    let is_new = ["ann", "dan"].contains(&name);
    UserAccount {
        groups: groups.map(|group| (*group).to_owned()).collect(),
        gecos: dice.one_in(3).then(|| "Name".to_owned()),
        shell: dice.one_in(3).then(|| at("/bin/zsh")),
        password_hash: hash(dice),
        uid: (is_new && dice.one_in(5)).then_some(2000 + u32::from(name == "dan")),
        primary_group: (is_new && dice.one_in(5)).then(|| "g".to_owned()),
        no_create_home: Some(true),
        system: (is_new && dice.one_in(5)).then_some(true),
        ..UserAccount::default()
    }
}

fn any_config(dice: &mut Dice, number: usize) -> Written {
    let Written(mut config) = config(&format!("accounts-{number}"));
    for name in USERS {
        if dice.one_in(2) {
            continue;
        }
        // A home that stays when its user is removed does not belong to a later user of that name.
        let keys = (name == "bob" && dice.one_in(2)).then(|| KEY.to_owned());
        let user = User {
            account: (keys.is_none() || dice.one_in(2)).then(|| any_account(dice, name)),
            ssh_authorized_keys: keys.into_iter().collect(),
            ..User::default()
        };
        config.users.insert(name.to_owned(), user);
    }
    for (name, gid) in [("g", 3000), ("h", 3001)] {
        if dice.one_in(2) {
            let group = Group {
                gid: dice.one_in(3).then_some(gid),
                password_hash: hash(dice),
                should_exist: dice.one_in(6).then_some(false),
                ..Group::default()
            };
            config.groups.insert(name.to_owned(), group);
        }
    }
    Written(config)
}

#[test]
fn random_account_configs_leave_the_databases_as_they_were() {
    let first = from_environment("MACHINIST_SEED").unwrap_or(1);
    let rounds = from_environment("MACHINIST_ROUNDS").unwrap_or(if long() { 5_000 } else { 30 });
    let (mut applied, mut refused) = (0, 0);
    for seed in first..first.saturating_add(rounds) {
        let mut dice = Dice(seed ^ 0x00AC_C0FF_EE00);
        let sandbox = with_eve();
        let start = databases(&sandbox);
        let mut story = format!("MACHINIST_SEED={seed} MACHINIST_ROUNDS=1\n");
        for number in 0..5 {
            let written = any_config(&mut dice, number);
            let (users, groups) = (&written.0.users, &written.0.groups);
            story += &format!("{number}: {users:#?} {groups:#?}\n");
            match &sandbox.apply(&written).failure {
                None => {
                    assert_settled(&sandbox, &written, &|| story.clone());
                    applied += 1;
                }
                Some(failure) => {
                    let is_refused = failure.message.starts_with("the config is refused");
                    assert!(is_refused, "{}\n{story}", failure.message);
                    refused += 1;
                    story += "refused\n";
                }
            }
        }
        sandbox.applied(&config("none"));
        assert_eq!(databases(&sandbox), start, "{story}");
    }
    assert!(applied > refused, "{applied} applied, {refused} refused");
}
