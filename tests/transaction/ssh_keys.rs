//! Where the SSH keys of users are written when sshd's configuration changes with a config, or between two configs.

use machinist_ignition::MachineConfig;
use machinist_plan::{Capabilities, OsCapabilities, Plan, Policies};
use machinist_update::{
    cache::ObservationCache,
    observe_and_plan::{PlanOptions, observe_and_plan},
};

use machinist_testkit::sandbox::{Sandbox, Written, config};

const HOME_FILE: &str = "/home/ann/.ssh/authorized_keys";
const DIRECTORY_FILE: &str = "/home/ann/.ssh/authorized_keys.d/ignition";
const SSHD_FILE: &str = "/etc/ssh/sshd_config.d/40-keys.conf";
const MAIN_FILE: &str = "/etc/ssh/sshd_config";
const INCLUDE: &str = "Include /etc/ssh/sshd_config.d/*.conf\n";
const HELPER: &str = "/usr/libexec/ssh-key-dir";
const HELPER_LINES: &str =
    "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\nAuthorizedKeysCommandUser root\n";
const DIRECTORY: &str = "AuthorizedKeysFile .ssh/authorized_keys.d/ignition\n";
const HOME: &str = "AuthorizedKeysFile .ssh/authorized_keys\n";

fn machine() -> Sandbox {
    let sandbox = Sandbox::new();
    let uid = nix::unistd::geteuid();
    let gid = nix::unistd::getegid();
    sandbox.write(
        "/etc/passwd",
        &format!("ann:x:{uid}:{gid}::/home/ann:/bin/sh\n"),
    );
    sandbox.write("/home/ann/.keep", "");
    sandbox.write(MAIN_FILE, INCLUDE);
    sandbox
}

fn keys() -> Written {
    config("keys").key("ann", "ssh-ed25519 BBBB given")
}

fn keys_and_sshd(text: &str) -> Written {
    keys().file(SSHD_FILE, text, 0o600)
}

/// The files that contain the key of the config.
fn given(sandbox: &Sandbox) -> Vec<&'static str> {
    let has = |path: &&str| {
        sandbox
            .read(path)
            .is_some_and(|text| text.contains("given"))
    };
    [HOME_FILE, DIRECTORY_FILE]
        .into_iter()
        .filter(has)
        .collect()
}

/// The targets of the operations that another update to `to` would carry out.
fn planned(sandbox: &Sandbox, to: &MachineConfig) -> Vec<String> {
    let operations = plan_for(sandbox, to).operations;
    operations
        .iter()
        .map(|operation| operation.target.to_string())
        .collect()
}

fn plan_for(sandbox: &Sandbox, to: &MachineConfig) -> Plan {
    let how = PlanOptions {
        policies: &Policies::default(),
        capabilities: Capabilities {
            live: false,
            chown: false,
            os: OsCapabilities::default(),
        },
        units: None,
        only: None,
        remembered: &ObservationCache::default(),
    };
    let looked = observe_and_plan(&sandbox.root(), &sandbox.journal(), to, how).unwrap();
    looked.plan.unwrap()
}

#[test]
fn ssh_keys_follow_the_sshd_config_of_the_same_config() {
    for (path, file) in [
        (SSHD_FILE, DIRECTORY_FILE),
        (MAIN_FILE, DIRECTORY_FILE),
        ("/etc/ssh/sshd_config.d/a.txt", HOME_FILE),
    ] {
        let sandbox = machine();
        let wanted = keys().file(path, DIRECTORY, 0o600);
        sandbox.applied(&wanted);
        assert_eq!(given(&sandbox), [file], "{path}");
        assert_eq!(planned(&sandbox, &wanted.0), [""; 0], "{path}");
        sandbox.applied(&config("nothing"));
        assert_eq!(given(&sandbox), [""; 0], "{path}");
    }
}

#[test]
fn ssh_keys_go_to_the_directory_if_the_helper_is_there_or_arrives() {
    let given_with = |sandbox: &Sandbox, wanted: &Written| {
        sandbox.applied(wanted);
        given(sandbox)
    };
    assert_eq!(
        given_with(&machine(), &keys_and_sshd(HELPER_LINES)),
        [HOME_FILE]
    );
    let there = machine();
    there.write(HELPER, "");
    assert_eq!(
        given_with(&there, &keys_and_sshd(HELPER_LINES)),
        [HOME_FILE]
    );
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(there.path(HELPER), mode).unwrap();
    assert_eq!(
        given_with(&there, &keys_and_sshd(HELPER_LINES)),
        [DIRECTORY_FILE]
    );
    // The helper arrives and leaves with a config.
    let sandbox = machine();
    let arrives = keys_and_sshd(HELPER_LINES).file(HELPER, "#!/bin/sh\n", 0o755);
    assert_eq!(given_with(&sandbox, &arrives), [DIRECTORY_FILE]);
    assert_eq!(
        given_with(&sandbox, &keys_and_sshd(HELPER_LINES)),
        [HOME_FILE]
    );
}

#[test]
fn ssh_keys_are_in_every_file_that_sshd_may_read_if_the_config_does_not_decide() {
    let sandbox = machine();
    sandbox.applied(&keys_and_sshd(DIRECTORY));
    assert_eq!(given(&sandbox), [DIRECTORY_FILE]);
    let undecided = format!("{DIRECTORY}Match Address 10.0.0.0/8\n{HOME}");
    let wanted = keys_and_sshd(&undecided);
    let warnings = plan_for(&sandbox, &wanted.0).warnings;
    for file in [HOME_FILE, DIRECTORY_FILE] {
        let expected = format!(
            "sshd may not read {file}: {SSHD_FILE}:3 sets AuthorizedKeysFile to .ssh/authorized_keys where \"Match Address 10.0.0.0/8\" applies"
        );
        assert!(warnings.contains(&expected), "{warnings:#?}");
    }
    sandbox.applied(&wanted);
    assert_eq!(given(&sandbox), [HOME_FILE, DIRECTORY_FILE]);
    assert_eq!(planned(&sandbox, &wanted.0), [""; 0]);
    // A key that leaves the config leaves both files.
    let other = config("keys").key("ann", "ssh-ed25519 CCCC other");
    let other = other.file(SSHD_FILE, &undecided, 0o600);
    sandbox.applied(&other);
    assert_eq!(given(&sandbox), [""; 0]);
    sandbox.applied(&wanted);
    sandbox.applied(&keys_and_sshd(HOME));
    assert_eq!(given(&sandbox), [HOME_FILE]);
    sandbox.applied(&wanted);
    sandbox.applied(&config("nothing"));
    assert_eq!(given(&sandbox), [""; 0]);
}

#[test]
fn ssh_keys_of_each_user_follow_the_match_blocks_for_that_user() {
    for (text, file) in [
        (format!("{DIRECTORY}Match User ann\n{HOME}"), HOME_FILE),
        (format!("{DIRECTORY}Match User bob\n{HOME}"), DIRECTORY_FILE),
        (format!("{HOME}Match all\n{DIRECTORY}"), DIRECTORY_FILE),
    ] {
        let sandbox = machine();
        let wanted = keys_and_sshd(&text);
        let warnings = plan_for(&sandbox, &wanted.0).warnings;
        let of_sshd = warnings.iter().filter(|one| one.contains(" not read "));
        assert_eq!(of_sshd.count(), 0, "{warnings:?}");
        sandbox.applied(&wanted);
        assert_eq!(given(&sandbox), [file], "{text}");
    }
}

#[test]
fn sshd_config_is_found_through_links_of_the_same_config() {
    let sandbox = machine();
    let wanted = keys()
        .file("/etc/shared/keys.text", DIRECTORY, 0o600)
        .link(SSHD_FILE, "../../shared/keys.text");
    sandbox.applied(&wanted);
    assert_eq!(given(&sandbox), [DIRECTORY_FILE]);
    assert_eq!(planned(&sandbox, &wanted.0), [""; 0]);

    let sandbox = machine();
    let wanted = keys()
        .file("/etc/shared/keys.conf", DIRECTORY, 0o600)
        .link("/etc/ssh/sshd_config.d", "../shared");
    sandbox.applied(&wanted);
    assert_eq!(given(&sandbox), [DIRECTORY_FILE]);
    assert_eq!(planned(&sandbox, &wanted.0), [""; 0]);
}

#[test]
fn ssh_keys_move_when_a_config_changes_or_removes_its_sshd_config() {
    for own in ["", "ssh-ed25519 AAAA own\n"] {
        let sandbox = machine();
        if !own.is_empty() {
            sandbox.write(HOME_FILE, own);
        }
        let mut expected = [HOME_FILE, DIRECTORY_FILE].into_iter().cycle();
        for wanted in [
            keys(),
            keys_and_sshd(DIRECTORY),
            keys_and_sshd(HOME),
            keys_and_sshd(DIRECTORY),
            keys(),
        ] {
            sandbox.applied(&wanted);
            assert_eq!(given(&sandbox), [expected.next().unwrap()]);
            assert_eq!(planned(&sandbox, &wanted.0), [""; 0]);
        }
        sandbox.applied(&config("nothing"));
        assert_eq!(given(&sandbox), [""; 0]);
        assert_eq!(sandbox.read(HOME_FILE).unwrap_or_default(), own);
    }
}

#[test]
fn a_restored_or_unchanged_sshd_config_determines_the_key_location() {
    let sandbox = machine();
    sandbox.write(SSHD_FILE, DIRECTORY);
    sandbox.applied(&keys_and_sshd(HOME));
    assert_eq!(given(&sandbox), [HOME_FILE]);
    sandbox.applied(&keys());
    assert_eq!(sandbox.read(SSHD_FILE).as_deref(), Some(DIRECTORY));
    assert_eq!(given(&sandbox), [DIRECTORY_FILE]);
    assert_eq!(planned(&sandbox, &keys().0), [""; 0]);
    // The file matched when the config first named it, so it stays.
    let adopted = machine();
    adopted.write(SSHD_FILE, DIRECTORY);
    std::fs::set_permissions(
        adopted.path(SSHD_FILE),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    adopted.applied(&keys_and_sshd(DIRECTORY));
    adopted.applied(&keys());
    assert_eq!(adopted.read(SSHD_FILE).as_deref(), Some(DIRECTORY));
    assert_eq!(given(&adopted), [DIRECTORY_FILE]);
}

#[test]
fn ssh_keys_at_an_earlier_location_are_removed_after_a_manual_sshd_change() {
    for (first, second) in [(HOME, DIRECTORY), (DIRECTORY, HOME)] {
        // The config leaves directly, or the keys move first.
        for moved in [false, true] {
            let sandbox = machine();
            sandbox.write(SSHD_FILE, first);
            sandbox.applied(&keys());
            sandbox.write(SSHD_FILE, second);
            if moved {
                let wanted = keys().file("/etc/other", "other\n", 0o600);
                sandbox.applied(&wanted);
                assert_eq!(given(&sandbox).len(), 1, "{first}");
                assert_eq!(planned(&sandbox, &wanted.0), [""; 0]);
            }
            sandbox.applied(&config("nothing"));
            assert_eq!(given(&sandbox), [""; 0], "{first} {moved}");
        }
    }
}

#[test]
fn a_plan_reports_that_ssh_keys_move() {
    let sandbox = machine();
    sandbox.applied(&keys());
    let changes = plan_for(&sandbox, &keys_and_sshd(DIRECTORY).0).changes;
    let changes = changes.iter().filter(|change| change.name == "ann");
    let whys: Vec<&str> = changes.map(|change| change.why.as_str()).collect();
    assert_eq!(whys.len(), 2);
    let moved = format!(
        "removed from {HOME_FILE}, because sshd reads the keys elsewhere; its policy requires no action"
    );
    assert_eq!(
        whys.iter().filter(|why| **why == moved).count(),
        1,
        "{whys:?}"
    );
}

#[test]
fn foreign_ssh_keys_at_the_other_location_are_kept() {
    let sandbox = machine();
    sandbox.write(DIRECTORY_FILE, "ssh-ed25519 AAAA theirs\n");
    sandbox.write(HOME_FILE, "ssh-ed25519 CCCC own\n");
    sandbox.applied(&keys());
    sandbox.applied(&config("nothing"));
    let read = |path| sandbox.read(path).unwrap();
    assert_eq!(read(DIRECTORY_FILE), "ssh-ed25519 AAAA theirs\n");
    assert_eq!(read(HOME_FILE), "ssh-ed25519 CCCC own\n");
}

#[test]
fn the_directory_created_for_ssh_keys_is_removed_with_them() {
    for between in [0, 1, 2] {
        let sandbox = machine();
        sandbox.applied(&keys());
        sandbox.applied(&keys().key("ann", "ssh-ed25519 CCCC more"));
        for number in 0..between {
            let path = format!("/etc/other-{number}");
            let next = keys().key("ann", "ssh-ed25519 CCCC more");
            sandbox.applied(&next.file(&path, "other\n", 0o600));
        }
        sandbox.applied(&config("nothing"));
        let ssh = sandbox.path("/home/ann/.ssh");
        assert!(!ssh.exists(), "{between}");
        assert!(sandbox.path("/home/ann").exists());
    }
    // A directory that was there already stays, as do the user's own files.
    for own in ["/home/ann/.ssh/config", HOME_FILE] {
        let sandbox = machine();
        sandbox.write(own, "own\n");
        sandbox.applied(&keys());
        sandbox.applied(&keys().key("ann", "ssh-ed25519 CCCC more"));
        sandbox.applied(&config("nothing"));
        assert_eq!(sandbox.read(own).as_deref(), Some("own\n"));
    }
    let sandbox = machine();
    std::fs::create_dir(sandbox.path("/home/ann/.ssh")).unwrap();
    sandbox.applied(&keys());
    sandbox.applied(&keys().key("ann", "ssh-ed25519 CCCC more"));
    sandbox.applied(&config("nothing"));
    assert!(sandbox.path("/home/ann/.ssh").exists());
}
