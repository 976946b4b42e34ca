//! What users do with the files of their SSH keys does not hold back the rest of a config.

use machinist_plan::{Capabilities, Plan, Policies};
use machinist_update::{
    cache::ObservationCache,
    observe_and_plan::{self, PlanOptions},
};

use machinist_testkit::sandbox::conduct;

use super::*;

const KEYS: &str = "/home/bob/.ssh/authorized_keys";

/// A machine on which the first key of bob is in place.
fn with_keys() -> Sandbox {
    let sandbox = machine(&[]);
    sandbox.write("/etc/passwd", "bob:x:1001:1001::/home/bob:/bin/sh\n");
    apply(&sandbox, &keys("first")).unwrap();
    assert!(sandbox.read(KEYS).unwrap().contains("first"));
    sandbox
}

fn keys(comment: &str) -> Written {
    let key = format!("ssh-ed25519 BBBB {comment}");
    config(comment)
        .key("bob", &key)
        .file("/etc/plain", comment, 0o644)
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (journal, policies) = (sandbox.journal(), Policies::default());
    let remembered = ObservationCache::default();
    let how = PlanOptions {
        remembered: &remembered,
        policies: &policies,
        capabilities: Capabilities {
            chown: true,
            ..conduct(false).capabilities
        },
        units: None,
        only: None,
    };
    let looked = observe_and_plan::observe_and_plan(&sandbox.root(), &journal, &to.0, how).unwrap();
    looked.plan.unwrap()
}

/// What a user does to the directory of the keys.
type Obstacle<'a> = &'a dyn Fn(&Sandbox);

#[test]
fn ssh_keys_in_a_location_made_unsafe_by_the_user_are_skipped() {
    if !plays_users() {
        return;
    }
    let linked = |sandbox: &Sandbox| add(sandbox, &Hard("/home/bob/x", KEYS));
    let no_directory = |sandbox: &Sandbox| {
        let ssh = sandbox.path("/home/bob/.ssh");
        std::fs::rename(&ssh, sandbox.path("/home/bob/away")).unwrap();
        add(sandbox, &File("/home/bob/.ssh", BOB));
    };
    // Bob moves a file of root's there, which he cannot read.
    let secret = |sandbox: &Sandbox| {
        add(sandbox, &File(KEYS, 0));
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(sandbox.path(KEYS), mode).unwrap();
    };
    let cases: [(Obstacle<'_>, &str); 3] = [
        (&secret, "/home/bob/.ssh/authorized_keys belongs to root"),
        (&linked, "/home/bob/.ssh/authorized_keys has 2 hard links"),
        (
            &no_directory,
            "/home/bob/.ssh exists, but is not a directory",
        ),
    ];
    for (change, why) in cases {
        for comment in ["first", "second"] {
            let sandbox = with_keys();
            change(&sandbox);
            let next = keys(comment).file("/etc/next", "next\n", 0o644);
            let warnings = plan(&sandbox, &next).warnings;
            let message = |warning: &&String| {
                warning.starts_with("KeysSkipped: ")
                    && warning.contains(why)
                    && warning.ends_with("the SSH keys for bob are skipped")
            };
            assert_eq!(warnings.iter().filter(message).count(), 1, "{warnings:?}");
            let before = sandbox.read(KEYS);
            apply(&sandbox, &next).unwrap();
            assert_eq!(sandbox.read("/etc/next").as_deref(), Some("next\n"));
            assert_eq!(sandbox.read("/etc/plain").as_deref(), Some(comment));
            assert_eq!(sandbox.read(KEYS), before);
            apply(&sandbox, &config("nothing")).unwrap();
            assert_eq!(sandbox.read("/etc/next"), None);
        }
    }
}

/// sshd reads bytes: a comment in Latin-1 is no reason to leave out the keys of the config.
#[test]
fn lines_of_a_user_with_any_bytes_keep_them_beside_the_keys_of_a_config() {
    let sandbox = machine(&[]);
    sandbox.write("/etc/passwd", "bob:x:1001:1001::/home/bob:/bin/sh\n");
    let own = b"ssh-ed25519 AAAA m\xfcller@host \xef\x9e\x80\n";
    std::fs::create_dir_all(sandbox.path("/home/bob/.ssh")).unwrap();
    std::fs::write(sandbox.path(KEYS), own).unwrap();
    let file = || std::fs::read(sandbox.path(KEYS)).unwrap();
    for comment in ["first \u{f780}", "second"] {
        apply(&sandbox, &keys(comment)).unwrap();
        let there = file();
        assert!(there.starts_with(own), "{there:?}");
        let key = format!("\nssh-ed25519 BBBB {comment}\n");
        let is_there = |bytes: &[u8]| bytes.windows(key.len()).any(|part| part == key.as_bytes());
        assert!(is_there(&there), "{comment}");
        assert_eq!(plan(&sandbox, &keys(comment)).changes, []);
    }
    apply(&sandbox, &config("nothing")).unwrap();
    assert_eq!(file(), own);
    let blank = b"\n\n";
    std::fs::write(sandbox.path(KEYS), blank).unwrap();
    apply(&sandbox, &keys("third")).unwrap();
    apply(&sandbox, &config("nothing")).unwrap();
    assert_eq!(file(), blank);
}

#[test]
fn keys_in_a_file_that_became_too_large_are_reported_when_they_leave() {
    let sandbox = machine(&[]);
    sandbox.write("/etc/passwd", "bob:x:1001:1001::/home/bob:/bin/sh\n");
    apply(&sandbox, &keys("first")).unwrap();
    let block = sandbox.read(KEYS).unwrap();
    let large = block + &"# own\n".repeat(50_000);
    std::fs::write(sandbox.path(KEYS), &large).unwrap();
    let left = plan(&sandbox, &config("nothing")).left_behind;
    let text =
        "the SSH keys for bob stay in /home/bob/.ssh/authorized_keys, because it is too large";
    assert!(left.iter().any(|it| it.starts_with(text)), "{left:?}");
    apply(&sandbox, &config("nothing")).unwrap();
    assert_eq!(sandbox.read(KEYS).unwrap(), large);
}
