use super::*;
use machinist_rootfs::Root;
use std::{fs, os::unix::fs::PermissionsExt as _};

const MAIN: &str = MAIN_FILES[0];
const ONE: &str = "AuthorizedKeysFile one\n";
const TWO: &str = "AuthorizedKeysFile two\n";

fn config_of(files: &[(&str, &str)]) -> SshdConfig {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mode = if *text == "program" { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let root = Root::open(dir.path()).unwrap();
    read(PlannedTexts::today(&root)).unwrap()
}

/// The possible values of `AuthorizedKeysFile` for core; empty for sshd's default.
fn values(files: &[(&str, &str)]) -> Vec<String> {
    let found = config_of(files).key_files("core");
    let found = found.into_iter();
    found
        .map(|value| value.unwrap_or_default().join(" "))
        .collect()
}

#[test]
fn sshd_reads_only_the_files_that_its_configuration_includes() {
    for (include, file, read) in [
        ("", "/etc/ssh/sshd_config.d/a.conf", false),
        (
            "Include /etc/ssh/sshd_config.d/*.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        (
            "Include sshd_config.d/*.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        (
            "include = \"sshd_config.d/*.conf\" # c\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        (
            "Include /none/*.conf sshd_config.d/*\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        // Patterns whose matches are below files match nothing there.
        (
            "Include */a.conf\nInclude sshd_config/x.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        (
            "#Include sshd_config.d/*.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            false,
        ),
        (
            "Include sshd_config.d/*.conf\n",
            "/etc/ssh/sshd_config.d/.a.conf",
            false,
        ),
        (
            "Include sshd_config.d/.*.conf\n",
            "/etc/ssh/sshd_config.d/.a.conf",
            true,
        ),
        (
            "Include sshd_config.d/[0-9]*.conf\n",
            "/etc/ssh/sshd_config.d/1.conf",
            true,
        ),
        (
            "Include sshd_config.d/[0-9]*.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            false,
        ),
        (
            "Include sshd_config.d/?.conf\n",
            "/etc/ssh/sshd_config.d/a.conf",
            true,
        ),
        (
            "Include sshd_config.d/?.conf\n",
            "/etc/ssh/sshd_config.d/ab.conf",
            false,
        ),
        (
            "Include /etc/*/more.d/a.conf\n",
            "/etc/ssh/more.d/a.conf",
            true,
        ),
        (
            "Include /etc/ssh/./sub/../a.conf\n",
            "/etc/ssh/a.conf",
            true,
        ),
        ("Include ~/a.conf\n", "/root/a.conf", false),
    ] {
        let found = values(&[(MAIN, include), (file, ONE)]);
        let expected = if read { "one" } else { "" };
        assert_eq!(found, [expected], "{include} {file}");
    }
}

#[test]
fn the_first_of_several_sshd_files_counts() {
    let first = "/etc/ssh/sshd_config.d/10.conf";
    let second = "/etc/ssh/sshd_config.d/9.conf";
    let include = "Include sshd_config.d/*.conf\n";
    for (main, expected) in [
        (include.to_owned(), "one"),
        (format!("{include}AuthorizedKeysFile main\n"), "one"),
        (format!("AuthorizedKeysFile main\n{include}"), "main"),
        (
            "Include sshd_config.d/9.conf sshd_config.d/10.conf\n".to_owned(),
            "two",
        ),
    ] {
        let found = values(&[(MAIN, &main), (second, TWO), (first, ONE)]);
        assert_eq!(found, [expected], "{main}");
    }
    let nested = [
        (MAIN, include),
        (first, "Include more.conf\n"),
        ("/etc/ssh/more.conf", TWO),
    ];
    assert_eq!(values(&nested), ["two"]);
}

#[test]
fn an_sshd_file_included_in_a_match_block_is_conditional() {
    let included = "/etc/ssh/more.conf";
    for (main, text, expected) in [
        ("Match User core\nInclude more.conf\n", ONE, &["one"][..]),
        ("Match User bob\nInclude more.conf\n", ONE, &[""]),
        ("Match Group a\nInclude more.conf\n", ONE, &["one", ""]),
        (
            "Match User bob\nInclude more.conf\n",
            "Match User core\nAuthorizedKeysFile one\n",
            &[""],
        ),
        // The block of an included file ends with the file.
        (
            "Include more.conf\nAuthorizedKeysFile two\n",
            "Match User bob\n",
            &["two"],
        ),
        (
            "Match User core\nInclude more.conf\nAuthorizedKeysFile two\n",
            "Match User bob\n",
            &["two"],
        ),
    ] {
        let found = values(&[(MAIN, main), (included, text)]);
        assert_eq!(found, expected, "{main} {text}");
    }
}

#[test]
fn sshd_files_that_include_each_other_are_read_to_sshds_limit() {
    let again = format!("{ONE}Include sshd_config sshd_config\n");
    let found = config_of(&[(MAIN, &again)]);
    assert_eq!(found.settings.len(), MAX_INCLUDE_DEPTH + 1);
}

#[test]
fn the_program_of_a_command_counts_if_it_may_be_executed() {
    let main = "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\n";
    let program = "/usr/libexec/ssh-key-dir";
    assert!(config_of(&[(MAIN, main)]).programs.is_empty());
    assert!(
        config_of(&[(MAIN, main), (program, "text")])
            .programs
            .is_empty()
    );
    assert_eq!(
        config_of(&[(MAIN, main), (program, "program")]).programs,
        [program]
    );
}

#[test]
fn an_sshd_file_with_other_bytes_than_utf8_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/ssh")).unwrap();
    fs::write(
        dir.path().join("etc/ssh/sshd_config"),
        b"# \xe4\nAuthorizedKeysFile one\n",
    )
    .unwrap();
    let root = Root::open(dir.path()).unwrap();
    let found = read(PlannedTexts::today(&root)).unwrap();
    assert_eq!(found.key_files("core"), [Some(vec!["one".to_owned()])]);
    assert_eq!(found.settings[0].place, format!("{MAIN}:2"));
}

#[test]
fn the_vendors_main_file_counts_if_there_is_no_other() {
    let vendor = MAIN_FILES[1];
    assert_eq!(values(&[(vendor, ONE)]), ["one"]);
    assert_eq!(values(&[(vendor, ONE), (MAIN, TWO)]), ["two"]);
}
