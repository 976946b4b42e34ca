//! Hard links to the files of users' SSH keys.

use machinist_base::reason::Reason;

use super::*;

const KEYS: &str = "/home/bob/.ssh/authorized_keys";

/// A machine with bob's account and his own keys.
fn with_keys() -> Sandbox {
    let sandbox = machine(&[Dir("/home/bob/.ssh", BOB, 0o700), File(KEYS, BOB)]);
    let account = format!("bob:x:{BOB}:{BOB}::/home/bob:/bin/sh\n");
    sandbox.write("/etc/passwd", &account);
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(sandbox.path(KEYS), mode).unwrap();
    sandbox
}

#[test]
fn a_hard_link_to_a_users_ssh_keys_is_rejected_and_never_blocks_the_key_file() {
    if !plays_users() {
        return;
    }
    let keys = || config("keys").key("bob", "ssh-ed25519 BBBB given");
    let sandbox = with_keys();
    let refusals = apply(&sandbox, &keys().hard("/srv/h1", KEYS)).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::HardLinkTarget], "{refusals:?}");
    let before = without_staging(&sandbox.tree());
    // The link comes alone, and leaves in the update that brings the keys.
    sandbox.applied(&config("linked").hard("/srv/h1", KEYS));
    sandbox.applied(&keys());
    assert!(sandbox.read(KEYS).unwrap().contains("given"));
    assert_eq!(sandbox.read("/srv/h1"), None);
    sandbox.applied(&config("nothing"));
    let after = without_staging(&sandbox.tree());
    let shown = machinist_testkit::sandbox::difference(&before, &after);
    assert!(before == after, "{shown}");
}
