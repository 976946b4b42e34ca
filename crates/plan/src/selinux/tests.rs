use super::*;

const POLICY: &str = "\
# a comment
/.*	system_u:object_r:default_t:s0
/etc(/.*)?	system_u:object_r:etc_t:s0
/etc/passwd\\.lock	--	system_u:object_r:passwd_file_t:s0
/etc/.*	system_u:object_r:later_t:s0
/etc/systemd/system(/.*)?	system_u:object_r:systemd_unit_file_t:s0
/etc/motd	-l	system_u:object_r:link_t:s0
/etc/ssh/ssh_host.*key	--	system_u:object_r:sshd_key_t:s0
/mnt(/[^/]*)?	-d	system_u:object_r:mnt_t:s0
/mnt/[^/]*/.*	<<none>>
/(opt|srv)/data(/.*)?	system_u:object_r:data_t:s0
/usr/lib64?/x	system_u:object_r:lib_t:s0
/broken(	system_u:object_r:broken_t:s0
/dev/sd[^/]*	-b	system_u:object_r:disk_t:s0
too many words in this one
";
const HOMES: &str = "/home/[^/]+/.*	unconfined_u:object_r:user_home_t:s0\n";
const LOCAL: &str = "/etc/mine(/.*)?	system_u:object_r:mine_t:s0\n";

fn labels() -> SelinuxLabels {
    let subs = ["/data/etc /etc\n# no\n", "/var/home /home\n/new /data\n"];
    SelinuxLabels::read([POLICY, HOMES, LOCAL], subs)
}

fn label(path: &str, kind: ObjectKind) -> Option<String> {
    let labels = labels();
    let found = labels.of(&AbsPath::new(path).unwrap(), kind)?;
    found.split(':').nth(2).map(str::to_owned)
}

#[test]
fn selinux_last_match_wins_and_exact_paths_win_over_patterns() {
    use ObjectKind::{Directory, File, Link};
    for (path, kind, expected) in [
        ("/etc", Directory, Some("etc_t")),
        ("/etc/hosts", File, Some("later_t")),
        ("/etc/passwd.lock", File, Some("passwd_file_t")),
        ("/etc/passwd.lock", Directory, Some("later_t")),
        ("/etc/passwdxlock", File, Some("later_t")),
        (
            "/etc/systemd/system/a.service",
            File,
            Some("systemd_unit_file_t"),
        ),
        ("/etc/motd", File, Some("later_t")),
        ("/etc/motd", Link, Some("link_t")),
        ("/etc/mine/x", File, Some("mine_t")),
        ("/etc/ssh/ssh_host_rsa_key", File, Some("sshd_key_t")),
        ("/etc/ssh/ssh_host_rsa_key.pub", File, Some("later_t")),
        ("/home/ann/.profile", File, Some("user_home_t")),
        ("/mnt/usb", Directory, Some("mnt_t")),
        ("/mnt/usb", File, Some("default_t")),
        ("/mnt/usb/x", File, None),
        ("/opt/data/x", File, Some("data_t")),
        ("/srv/data", Directory, Some("data_t")),
        ("/usr/lib/x", File, Some("default_t")),
        ("/usr/lib6/x", File, Some("lib_t")),
        ("/elsewhere", File, Some("default_t")),
    ] {
        assert_eq!(label(path, kind).as_deref(), expected, "{path} {kind:?}");
    }
}

#[test]
fn selinux_local_path_substitutions_apply_before_those_of_the_policy() {
    use ObjectKind::File;
    assert_eq!(
        label("/var/home/ann/x", File).as_deref(),
        Some("user_home_t")
    );
    assert_eq!(
        label("/var/homes/ann/x", File).as_deref(),
        Some("default_t")
    );
    assert_eq!(label("/data/etc/hosts", File).as_deref(), Some("later_t"));
    // A substitution is applied only once: its result is not looked up again.
    assert_eq!(label("/new/etc/hosts", File).as_deref(), Some("default_t"));
}

#[test]
fn without_a_selinux_policy_nothing_is_labelled() {
    let none = SelinuxLabels::default();
    assert!(none.is_empty());
    assert_eq!(none.of(&AbsPath::root(), ObjectKind::Directory), None);
    assert!(SelinuxLabels::read(["", "# nothing\n"], ["", ""]).is_empty());
}
