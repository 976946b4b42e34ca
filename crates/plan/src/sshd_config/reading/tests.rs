use super::*;
use crate::sshd_config::{Directive, lines};

const FILES: [&str; 2] = [".ssh/authorized_keys.d/ignition", ".ssh/authorized_keys"];
const HELPER_LINES: &str =
    "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\nAuthorizedKeysCommandUser root\n";

/// The configuration of one file without `Include`, on a machine with the helper.
fn sshd(text: &str) -> SshdConfig {
    let mut found = SshdConfig::default();
    let mut block = None;
    for (line, directive) in lines(text) {
        match directive {
            Directive::Match(condition) => block = Some(condition),
            Directive::Set(value) => found.settings.push(SshdSetting {
                place: format!("/etc/ssh/sshd_config:{line}"),
                conditions: block.iter().cloned().collect(),
                value,
            }),
            Directive::Include(_) => {}
        }
    }
    found.programs = vec!["/usr/libexec/ssh-key-dir".to_owned()];
    found
}

fn path(text: &str) -> AbsPath {
    AbsPath::new(text).unwrap()
}

fn reading(sshd: &SshdConfig) -> KeyReading {
    let home = path("/home/core");
    let (name, uid) = ("core", 1000);
    let owner = KeyOwner {
        name,
        uid,
        home: &home,
    };
    sshd.reading(&owner, FILES)
}

fn certainties(text: &str) -> (Certainty, Certainty) {
    let found = reading(&sshd(text));
    (found.directory, found.home)
}

#[test]
fn sshd_reads_the_key_files_that_its_configuration_names() {
    use Certainty::{Maybe, No, Yes};
    for (value, directory, home) in [
        (".ssh/authorized_keys", No, Yes),
        ("./.ssh/authorized_keys", No, Yes),
        (".ssh//authorized_keys", No, Yes),
        ("%h/.ssh/authorized_keys", No, Yes),
        ("/home/%u/.ssh/authorized_keys", No, Yes),
        ("/home/core/.ssh/authorized_keys", No, Yes),
        ("/home/%u/.ssh/authorized_keys.d/ignition", Yes, No),
        (
            ".ssh/authorized_keys.d/ignition .ssh/authorized_keys",
            Yes,
            Yes,
        ),
        (".ssh/authorized_keys .ssh/authorized_keys2", No, Yes),
        ("\".ssh/authorized_keys.d/ignition\" # comment", Yes, No),
        (".ssh/authorized_keys.d/*", Maybe, No),
        (".ssh/authorized_keys.d/a*", No, No),
        (".ssh/authorized_keys .ssh/authorized_keys.d/*", Maybe, Yes),
        ("/etc/ssh/keys/%u", No, No),
        ("/home/%U/.ssh/authorized_keys", No, No),
        ("%%h/.ssh/authorized_keys", No, No),
        ("~/.ssh/authorized_keys", No, No),
        ("/home/bob/.ssh/authorized_keys", No, No),
        ("%h/x/../.ssh/authorized_keys", No, No),
        ("none", No, No),
    ] {
        let found = certainties(&format!("AuthorizedKeysFile {value}\n"));
        assert_eq!(found, (directory, home), "{value}");
    }
    assert_eq!(certainties(""), (No, Yes));
}

#[test]
fn the_helper_counts_if_sshd_runs_it_for_the_user() {
    use Certainty::{Maybe, No, Yes};
    let user = "AuthorizedKeysCommandUser root\n";
    for (text, directory) in [
        (HELPER_LINES.to_owned(), Yes),
        (
            format!("AuthorizedKeysCommand /usr/libexec/ssh-key-dir\n{user}"),
            Yes,
        ),
        (
            format!("AuthorizedKeysCommand /usr/libexec/ssh-key-dir core\n{user}"),
            Yes,
        ),
        (
            format!("AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u # c\n{user}"),
            Maybe,
        ),
        (
            format!("AuthorizedKeysCommand /opt/ssh-key-dir %u\n{user}"),
            No,
        ),
        (
            format!("AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys\n{user}"),
            No,
        ),
        (
            "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\n".to_owned(),
            No,
        ),
        (format!("AuthorizedKeysCommand none\n{HELPER_LINES}"), No),
        (
            format!("{HELPER_LINES}Match User core\nAuthorizedKeysCommand none\n"),
            No,
        ),
        (
            format!("{HELPER_LINES}Match all\nAuthorizedKeysCommand none\n"),
            No,
        ),
        (
            format!("{HELPER_LINES}Match User bob\nAuthorizedKeysCommand none\n"),
            Yes,
        ),
        (
            format!("{HELPER_LINES}Match Group wheel\nAuthorizedKeysCommand none\n"),
            Maybe,
        ),
        (format!("Match User core\n{HELPER_LINES}"), Yes),
        (format!("Match User bob\n{HELPER_LINES}"), No),
    ] {
        assert_eq!(certainties(&text), (directory, Yes), "{text}");
    }
}

#[test]
fn a_match_block_of_sshd_overrides_the_global_section() {
    use Certainty::{Maybe, No, Yes};
    let directory = "AuthorizedKeysFile .ssh/authorized_keys.d/ignition\n";
    let home = "AuthorizedKeysFile .ssh/authorized_keys\n";
    for (text, expected) in [
        (format!("{directory}{home}"), (Yes, No)),
        (format!("{home}{directory}"), (No, Yes)),
        (format!("{directory}Match User core\n{home}"), (No, Yes)),
        (format!("{directory}Match all\n{home}"), (No, Yes)),
        (
            format!("Match User c*\n{home}Match User core\n{directory}"),
            (No, Yes),
        ),
        (
            format!("Match User bob\n{home}Match User core\n{directory}"),
            (Yes, No),
        ),
        (
            format!("{directory}Match Address 10.0.0.0/8\n{home}"),
            (Maybe, Maybe),
        ),
        (format!("{home}Match Group wheel\n{home}"), (No, Yes)),
    ] {
        assert_eq!(certainties(&text), expected, "{text}");
    }
}

#[test]
fn what_decides_is_told_by_file_and_line() {
    let because = |text: &str| reading(&sshd(text)).because;
    assert_eq!(
        because("# c\nAuthorizedKeysFile /etc/ssh/keys/%u\n"),
        "/etc/ssh/sshd_config:2 sets AuthorizedKeysFile to /etc/ssh/keys/%u"
    );
    assert_eq!(
        because("Match Group wheel\nAuthorizedKeysFile .ssh/keys\n"),
        "/etc/ssh/sshd_config:2 sets AuthorizedKeysFile to .ssh/keys where \"Match Group wheel\" applies"
    );
    assert_eq!(
        because(&format!(
            "{HELPER_LINES}Match Group wheel\nAuthorizedKeysCommand none\n"
        )),
        "/etc/ssh/sshd_config:4 sets AuthorizedKeysCommand to none where \"Match Group wheel\" applies"
    );
}

#[test]
fn homes_behind_links_are_those_that_sshd_reads() {
    let directory = "AuthorizedKeysFile /var/home/%u/.ssh/authorized_keys.d/ignition\n";
    let mut sshd = sshd(directory);
    assert_eq!(reading(&sshd).directory, Certainty::No);
    sshd.links.insert(path("/home"), path("/var/home"));
    assert_eq!(reading(&sshd).directory, Certainty::Yes);
}
