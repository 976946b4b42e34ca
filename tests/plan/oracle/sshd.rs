//! Compares the values of sshd's configuration with those that `sshd -T` prints for a user.

use std::{fs, process::Command};

use machinist_ignition::MachineConfig;
use machinist_update::observe::CallerFacts;

use super::super::support::{Dice, Tree, config, from_environment};

/// Stands for the directory of the tree in the path of an included file.
const TREE: &str = "@";
const MAIN: &str = "/etc/ssh/sshd_config";
const FILES: [&str; 5] = ["10-a.conf", "9-b.conf", ".hidden.conf", "c.conf", "c.text"];

/// The lines of a file. All are valid, because sshd refuses the others.
const LINES: [&str; 20] = [
    "AuthorizedKeysFile one",
    "authorizedkeysfile=two three # four",
    "  AuthorizedKeysFile = \"a b\" 'c d' e\\ f g#h",
    "\"AuthorizedKeysFile\"\t.ssh/%u \"#x\"",
    "AuthorizedKeysFile ==x a\"b c\"d",
    "#AuthorizedKeysFile comment",
    "AuthorizedKeysCommand none",
    "AuthorizedKeysCommand NONE",
    "AUTHORIZEDKEYSCOMMAND /usr/bin/one %u # two",
    "AuthorizedKeysCommand=/usr/bin/three \"%h\"",
    "Match all",
    "match User core # comment",
    "Match user=\"bob\"",
    "Match User c*,!co?e",
    "Match User !bob,*",
    "Match Address 10.0.0.0/8",
    "Match Address 127.0.0.1 User core",
    "",
    "PermitEmptyPasswords no",
    "   # only a comment",
];
const PATTERNS: [&str; 7] = [
    "*.conf",
    "[0-9]*.conf",
    "?.conf",
    ".*.conf",
    "[!c]*.conf",
    "c.*",
    "none.conf",
];

#[test]
fn sshd_settings_of_users_are_those_that_sshd_reports() {
    if Command::new("/usr/sbin/sshd").arg("-V").output().is_err() {
        eprintln!("skipped: sshd_settings_of_users_are_those_that_sshd_reports: no sshd here");
        return;
    }
    let seed = from_environment("PLAN_SEED", 1);
    for round in 0..from_environment("PLAN_ROUNDS", 40) {
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let (ours, theirs) = (Tree::new(), Tree::new());
        make_host_key(&theirs);
        let mut passed = format!("PLAN_SEED={seed}, round {round}\n");
        for (depth, name) in FILES.into_iter().chain([MAIN]).enumerate() {
            let main = name == MAIN;
            let mut text = lines(&mut dice, main || depth == 3);
            // sshd does not start without a user for its command.
            text.insert_str(
                0,
                if main {
                    "AuthorizedKeysCommandUser root\n"
                } else {
                    ""
                },
            );
            let path = match main {
                true => MAIN.to_owned(),
                false => format!("/etc/ssh/sshd_config.d/{name}"),
            };
            passed += &format!("{path}:\n{text}\n");
            ours.write(&path, &text.replace(TREE, ""));
            let mut text = text.replace(TREE, theirs.dir.path().to_str().unwrap());
            if main {
                text = format!("HostKey {}\n{text}", theirs.at("/key").display());
            }
            theirs.write(&path, &text);
        }
        compare(&ours, &theirs, &passed);
    }
}

fn lines(dice: &mut Dice, includes: bool) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(5) {
        if includes && dice.one_in(2) {
            let mut pattern = || format!("{TREE}/etc/ssh/sshd_config.d/{}", dice.pick(&PATTERNS));
            text += &format!("Include {} \"{}\" # c\n", pattern(), pattern());
        }
        let line: &&str = dice.pick(&LINES);
        text.push_str(line);
        text += "\n";
    }
    text
}

fn make_host_key(tree: &Tree) {
    // sshd wants this directory, which its service makes.
    fs::create_dir_all("/run/sshd").unwrap_or_default();
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(tree.at("/key"))
        .status();
    assert!(made.unwrap().success());
}

fn compare(ours: &Tree, theirs: &Tree, passed: &str) {
    let wanted = config(
        r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k"]}]}}"#,
    );
    let facts = ours.observed(&MachineConfig::default(), &wanted, CallerFacts::default());
    for user in ["core", "bob"] {
        let output = Command::new("/usr/sbin/sshd")
            .args([
                "-T",
                "-C",
                &format!("user={user},host=h,addr=127.0.0.1"),
                "-f",
            ])
            .arg(theirs.at(MAIN))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("Too many recursive configuration includes") {
            return;
        }
        assert!(output.status.success(), "{errors}\n{passed}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let value = |keyword: &str| {
            let mut lines = printed.lines();
            lines
                .find_map(|line| line.strip_prefix(keyword))
                .unwrap_or_default()
        };
        let files = facts
            .sshd
            .key_files(user)
            .into_iter()
            .map(|files| match files {
                Some(files) => files.join(" "),
                None => ".ssh/authorized_keys .ssh/authorized_keys2".to_owned(),
            });
        let commands = facts.sshd.key_commands(user).into_iter();
        let commands = commands.map(|text| text.unwrap_or_else(|| "none".to_owned()));
        for (keyword, mut possible) in [
            ("authorizedkeysfile ", files.collect::<Vec<String>>()),
            ("authorizedkeyscommand ", commands.collect()),
        ] {
            if !passed.contains("Match Address") {
                possible.truncate(1);
            }
            let right = possible
                .iter()
                .any(|one| one.eq_ignore_ascii_case(value(keyword)));
            assert!(
                right,
                "{user}: {possible:?} lack {keyword}{}\n{passed}",
                value(keyword)
            );
        }
    }
}
