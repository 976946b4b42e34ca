//! Users of a config: their passwords, keys and creation, with Ignition's meaning.

use machinist_ignition::MachineConfig;

use machinist_plan::{Edit, OperationKind, Plan, Policies};
use machinist_update::observe::CallerFacts;

use super::support::{OFFLINE, Tree, config};

fn users(entries: &str) -> MachineConfig {
    config(&format!(
        "{{\"ignition\": {{\"version\": \"3.4.0\"}}, \"passwd\": {{\"users\": [{entries}]}}}}"
    ))
}

#[test]
fn an_empty_hash_locks_the_password() {
    for name in ["core", "ann"] {
        let tree = Tree::new();
        tree.write(
            "/etc/passwd",
            &format!("{name}:x:1000:1000::/home/{name}:/bin/sh\n"),
        );
        tree.write("/etc/group", &format!("{name}:x:1000:\n"));
        tree.write("/etc/shadow", &format!("{name}:$6$salt$old:::::::\n"));
        let locked = users(&format!(r#"{{"name": "{name}", "passwordHash": ""}}"#));
        tree.apply(&tree.plan(&MachineConfig::default(), &locked));
        let shadow = std::fs::read_to_string(tree.at("/etc/shadow")).unwrap();
        assert_eq!(shadow, format!("{name}:*:::::::\n"));
    }
}

#[test]
fn no_keys_leave_a_users_own_key_file_alone() {
    let tree = Tree::new();
    tree.write("/etc/passwd", "core:x:1000:1000::/home/core:/bin/sh\n");
    tree.write("/home/core/.ssh/authorized_keys", "ssh-ed25519 AAAA mine\n");
    let before = tree.dump();
    let none = users(r#"{"name": "core", "sshAuthorizedKeys": []}"#);
    tree.apply(&tree.plan(&MachineConfig::default(), &none));
    assert_eq!(tree.dump(), before);
    let some = users(r#"{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 BBBB ours"]}"#);
    tree.apply(&tree.plan(&none, &some));
    tree.apply(&tree.plan(&some, &none));
    let left = std::fs::read_to_string(tree.at("/home/core/.ssh/authorized_keys")).unwrap();
    assert_eq!(left, "ssh-ed25519 AAAA mine\n");
}

#[test]
fn keys_alone_create_a_user_before_her_files_are_judged() {
    let tree = Tree::new();
    tree.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    tree.write("/etc/group", "root:x:0:\n");
    tree.write("/home/.keep", "");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
    let keys = config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}},
            "passwd": {{"users": [{{"name": "ann", "sshAuthorizedKeys": ["{key}"]}}]}},
            "storage": {{"files": [{{"path": "/home/ann/f", "user": {{"name": "ann"}}, "contents": {{"source": "data:,x"}}}}]}}}}"#
    ));
    let plan = tree.plan(&MachineConfig::default(), &keys);
    let missing = |warning: &String| warning.contains("UserMissing");
    assert!(!plan.warnings.iter().any(missing), "{:?}", plan.warnings);
    tree.apply(&plan);
    let passwd = std::fs::read_to_string(tree.at("/etc/passwd")).unwrap();
    assert!(passwd.contains("ann:*:1000:1000::/home/ann:"), "{passwd}");
    let written = std::fs::read_to_string(tree.at("/home/ann/.ssh/authorized_keys")).unwrap();
    assert!(written.contains(key), "{written}");
    assert!(tree.plan(&keys, &keys).operations.is_empty());
}

#[test]
fn a_user_created_by_name_stays_when_only_keys_are_left() {
    let tree = Tree::new();
    tree.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    tree.write("/etc/group", "root:x:0:\n");
    tree.write("/etc/shadow", "root:*:::::::\n");
    let named = users(r#"{"name": "ann", "shell": "/bin/sh"}"#);
    let keys = users(r#"{"name": "ann", "sshAuthorizedKeys": ["ssh-ed25519 AAAA"]}"#);
    let first = tree.plan(&MachineConfig::default(), &named);
    tree.apply(&first);
    let edits: Vec<_> = first
        .operations
        .iter()
        .filter_map(|operation| match &operation.kind {
            OperationKind::Entries(edits) => Some(edits.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    let known = |edits: &[Edit]| CallerFacts {
        entries: edits.to_vec(),
        ..CallerFacts::default()
    };
    let next = |to: &MachineConfig| {
        let observed = tree.observed(&named, to, known(&edits));
        machinist_plan::between(&named, to, &observed, &Policies::default(), OFFLINE).unwrap()
    };
    let entries = |plan: &Plan| {
        let mut operations = plan.operations.iter();
        operations.any(|operation| matches!(operation.kind, OperationKind::Entries(_)))
    };
    assert!(!entries(&next(&keys)));
    assert!(entries(&next(&MachineConfig::default())));
}
