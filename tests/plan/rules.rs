//! Single rules: what a host refuses, restores and keeps.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::reason::Reason;
use machinist_ignition::{Content, EntryOrigin, File, MachineConfig, Overwrite, Owner, Unit};
use machinist_plan::{
    ActionKind, Capabilities, DriftKind, FileFacts, MachineFacts, OperationKind, Plan, Policies,
    UnitFacts,
};
use machinist_update::observe::{CallerFacts, drift};

use super::support::{LIVE, OFFLINE, Tree, config, path, show, unit};

fn files(entries: &str) -> MachineConfig {
    config(&format!(
        "{{\"ignition\": {{\"version\": \"3.4.0\"}}, \"storage\": {{{entries}}}}}"
    ))
}

fn one_file(at: &str) -> MachineConfig {
    let file = File {
        content: Some(Content::new(b"new".to_vec())),
        mode: Some(0o644),
        user: Some(Owner::ROOT),
        group: Some(Owner::ROOT),
        origin: EntryOrigin::default(),
    };
    MachineConfig {
        files: [(path(at), file)].into(),
        ..MachineConfig::default()
    }
}

/// The reasons why a change of `/etc/x/f` is refused on a machine with one fact changed.
fn reasons(change: impl FnOnce(&mut MachineFacts)) -> Vec<Reason> {
    let tree = Tree::new();
    tree.write("/etc/x/f", "old");
    let to = one_file("/etc/x/f");
    let nothing = MachineConfig::default();
    let mut observed = tree.observed(&nothing, &to, CallerFacts::default());
    change(&mut observed);
    match machinist_plan::between(&nothing, &to, &observed, &Policies::default(), LIVE) {
        Ok(_) => Vec::new(),
        Err(refusals) => refusals.into_iter().map(|refusal| refusal.reason).collect(),
    }
}

fn facts<'a>(observed: &'a mut MachineFacts, at: &str) -> &'a mut FileFacts {
    observed.objects.get_mut(&path(at)).unwrap()
}

#[test]
fn a_config_that_cannot_be_applied_is_rejected_before_any_change() {
    let large = Content::new(vec![b'x'; 10 << 20]);
    let (nothing, mut to) = (MachineConfig::default(), MachineConfig::default());
    for n in 0..52 {
        let mut files = one_file(&format!("/etc/x/{n}")).files;
        files
            .values_mut()
            .for_each(|file| file.content = Some(large.clone()));
        to.files.append(&mut files);
    }
    let observed = Tree::new().observed(&nothing, &to, CallerFacts::default());
    let plan = machinist_plan::between(&nothing, &to, &observed, &Policies::none(), OFFLINE);
    let message = show(&plan.unwrap_err());
    assert!(message.contains("545259520 bytes in total"), "{message}");
}

#[test]
fn features_unsupported_by_the_host_are_rejected_by_name() {
    assert_eq!(reasons(|_| {}), []);
    assert_eq!(
        reasons(
            |seen| seen.recovery_missing = Some("machinist-recover.service not found".to_owned())
        ),
        [Reason::RecoveryMissing]
    );
    assert_eq!(
        reasons(|seen| facts(seen, "/etc/x/f").immutable = true),
        [Reason::Immutable]
    );
    assert_eq!(
        reasons(|seen| facts(seen, "/etc/x").immutable = true),
        [Reason::Immutable]
    );
    assert_eq!(reasons(|seen| facts(seen, "/etc").immutable = true), []);
    assert_eq!(
        reasons(|seen| facts(seen, "/etc/x/f").mount_point = true),
        [Reason::TargetIsMountPoint]
    );
    let mount = |seen: &mut MachineFacts| seen.mounts.values().next().cloned().unwrap();
    assert_eq!(
        reasons(|seen| {
            let read_only = machinist_plan::MountFacts {
                read_only: true,
                ..mount(seen)
            };
            seen.mounts.insert(path("/"), read_only);
        }),
        [Reason::ReadOnly]
    );
    assert_eq!(
        reasons(|seen| {
            let closed = machinist_plan::MountFacts {
                staging: false,
                ..mount(seen)
            };
            seen.mounts.insert(path("/"), closed);
        }),
        [Reason::PermissionMissing]
    );
    for (free_bytes, free_inodes) in [(1 << 20, None), (1 << 30, Some(10))] {
        let tight = |seen: &mut MachineFacts| {
            let facts = machinist_plan::MountFacts {
                free_bytes,
                free_inodes,
                ..mount(seen)
            };
            seen.mounts.insert(path("/"), facts);
        };
        assert_eq!(
            reasons(tight),
            [Reason::NoSpace],
            "{free_bytes} {free_inodes:?}"
        );
    }
}

#[test]
fn an_empty_unit_directory_of_an_overlay_stays_when_its_drop_in_leaves() {
    let tree = Tree::new();
    let drop_in = "/etc/systemd/system/a.service.d/10-x.conf";
    tree.write(drop_in, "new");
    let (from, to) = (one_file(drop_in), MachineConfig::default());
    let mut observed = tree.observed(&from, &to, CallerFacts::default());
    let removed = |observed: &MachineFacts| {
        let plan =
            machinist_plan::between(&from, &to, observed, &Policies::default(), OFFLINE).unwrap();
        let targets = plan.operations.iter();
        targets
            .map(|one| one.target.to_string())
            .collect::<Vec<_>>()
    };
    let directory = "/etc/systemd/system/a.service.d";
    assert_eq!(removed(&observed), [directory]);
    observed
        .mounts
        .values_mut()
        .for_each(|mount| mount.overlay = true);
    assert_eq!(removed(&observed), [drop_in]);
}

#[test]
fn a_live_root_needs_permission_to_change_owners() {
    let tree = Tree::new();
    let (nothing, to) = (MachineConfig::default(), one_file("/etc/f"));
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let no_chown = Capabilities {
        chown: false,
        ..LIVE
    };
    let refused = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), no_chown)
        .unwrap_err();
    assert_eq!(refused[0].reason, Reason::PermissionMissing);
}

#[test]
fn a_directory_with_foreign_content_is_neither_replaced_nor_removed() {
    let tree = Tree::new();
    tree.write("/opt/d/theirs", "x");
    let (nothing, to) = (MachineConfig::default(), one_file("/opt/d"));
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let refused = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE)
        .unwrap_err();
    assert_eq!(refused[0].reason, Reason::ForeignContent);
    let to = MachineConfig {
        overwrite: Overwrite::Except(BTreeSet::new()),
        ..to
    };
    let refused = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE)
        .unwrap_err();
    assert_eq!(refused[0].reason, Reason::KindDiffers);

    let from = files(r#""directories": [{"path": "/opt/d", "mode": 493}]"#);
    let plan = tree.plan(&from, &nothing);
    assert!(plan.operations.is_empty(), "{:#?}", plan.operations);
    assert!(
        plan.warnings
            .iter()
            .any(|warning| warning.contains("/opt/d")),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn paths_of_the_agents_own_state_are_never_moved() {
    let tree = Tree::new();
    tree.write("/var/lib/machinist/journal", "x");
    let nothing = MachineConfig::default();
    for place in ["/var/lib/machinist/journal", "/var/lib"] {
        let to = one_file(place);
        let observed = tree.observed(&nothing, &to, CallerFacts::default());
        let refused =
            machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE)
                .unwrap_err();
        assert_eq!(refused[0].reason, Reason::ForeignContent, "{place}");
    }
}

#[test]
fn the_original_object_is_restored_when_its_entry_leaves() {
    let tree = Tree::new();
    tree.write("/etc/f", "new");
    tree.write("/var/lib/machinist/originals/1", "before");
    let (from, nothing) = (one_file("/etc/f"), MachineConfig::default());
    let known = || CallerFacts {
        originals: BTreeMap::from([(path("/etc/f"), path("/var/lib/machinist/originals/1"))]),
        ..CallerFacts::default()
    };
    let observed = tree.observed(&from, &nothing, known());
    let plan =
        machinist_plan::between(&from, &nothing, &observed, &Policies::default(), OFFLINE).unwrap();
    assert_eq!(plan.operations.len(), 1);
    assert!(matches!(plan.operations[0].kind, OperationKind::Restore(_)));
    tree.apply(&plan);
    assert_eq!(
        std::fs::read_to_string(tree.at("/etc/f")).unwrap(),
        "before"
    );
}

#[test]
fn an_object_that_already_matched_stays_when_its_entry_leaves() {
    let tree = Tree::new();
    tree.write("/etc/f", "new");
    let (nothing, to) = (MachineConfig::default(), one_file("/etc/f"));
    let first = tree.plan(&nothing, &to);
    assert_eq!(
        (first.operations.len(), &first.adopted),
        (0, &BTreeSet::from([path("/etc/f")]))
    );
    let known = CallerFacts {
        adopted: first.adopted,
        ..CallerFacts::default()
    };
    let observed = tree.observed(&to, &nothing, known);
    let left =
        machinist_plan::between(&to, &nothing, &observed, &Policies::default(), OFFLINE).unwrap();
    assert_eq!(left.operations, []);
}

#[test]
fn a_registries_change_that_keeps_images_needs_no_drain() {
    const AT: &str = "/etc/containers/registries.conf";
    let tree = Tree::new();
    tree.write(AT, "unqualified-search-registries = [\"a.io\"]\n");
    let nothing = MachineConfig::default();
    let actions = |search: &str| {
        let mut to = one_file(AT);
        let text = format!("unqualified-search-registries = [{search}]\n");
        let file = to.files.values_mut().next().unwrap();
        file.content = Some(Content::new(text.into_bytes()));
        let mut observed = tree.observed(&nothing, &to, CallerFacts::default());
        let crio = UnitFacts {
            load: Some("loaded".to_owned()),
            active: Some("active".to_owned()),
            ..UnitFacts::default()
        };
        observed.units.insert("crio.service".to_owned(), crio);
        let policies = Policies::default();
        let plan = machinist_plan::between(&nothing, &to, &observed, &policies, LIVE).unwrap();
        let kinds = plan.actions.iter().map(|action| action.kind);
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(actions(r#""a.io", "b.io""#), [ActionKind::Reload]);
    let drained = [ActionKind::Drain, ActionKind::Reload];
    assert_eq!(actions(r#""b.io", "a.io""#), drained);
}

#[test]
fn a_lost_original_is_reported_and_an_unmounted_one_waited_for() {
    let tree = Tree::new();
    tree.write("/etc/f", "f\n");
    let (from, nothing) = (one_file("/etc/f"), MachineConfig::default());
    let place = path("/var/lib/machinist/originals/1");
    let plan = || {
        let known = CallerFacts {
            originals: BTreeMap::from([(path("/etc/f"), place.clone())]),
            ..CallerFacts::default()
        };
        let observed = tree.observed(&from, &nothing, known);
        machinist_plan::between(&from, &nothing, &observed, &Policies::default(), OFFLINE)
    };
    // As if the file system that holds it were not mounted.
    let refusals = plan().unwrap_err();
    assert_eq!(refusals[0].reason, Reason::MountMissing);
    assert!(refusals[0].message.contains(place.as_str()));
    std::fs::create_dir_all(tree.at("/var/lib/machinist/originals")).unwrap();
    let plan = plan().unwrap();
    assert_eq!(
        plan.operations[0].kind,
        machinist_plan::OperationKind::Remove
    );
    assert!(
        plan.warnings[0].contains("cannot restore the original"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn a_file_below_a_link_of_the_config_is_written_to_the_links_target() {
    let tree = Tree::new();
    tree.write("/srv/data/theirs", "x");
    let to = files(
        r#""files": [{"path": "/opt/d/f", "contents": {"source": "data:,x"}}],
           "links": [{"path": "/opt/d", "target": "../srv/data"}]"#,
    );
    let nothing = MachineConfig::default();
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let plan = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE);
    let plan = plan.unwrap_or_else(|refusals| panic!("{}", show(&refusals)));
    tree.apply(&plan);
    assert_eq!(
        std::fs::read_to_string(tree.at("/srv/data/f")).unwrap(),
        "x"
    );
    assert!(tree.plan(&to, &to).operations.is_empty());
}

#[test]
fn kernel_arguments_already_in_use_need_no_os_provider() {
    let tree = Tree::new();
    tree.write(
        "/proc/cmdline",
        "root=/dev/vda quiet console=tty0 console=ttyS0\n",
    );
    let nothing = MachineConfig::default();
    let mut to = MachineConfig {
        kernel_arguments: vec!["quiet".into(), "console=ttyS0".into()],
        ..nothing.clone()
    };
    let planned = |to: &MachineConfig| {
        let observed = tree.observed(&nothing, to, CallerFacts::default());
        machinist_plan::between(&nothing, to, &observed, &Policies::default(), LIVE)
            .map(|plan| plan.is_empty())
    };
    assert_eq!(planned(&to), Ok(true));
    to.kernel_arguments.push("quiet".into());
    assert_eq!(
        planned(&to),
        Ok(true),
        "it is there, however often it is named"
    );
    to.kernel_arguments.push("nosmt".into());
    assert_eq!(
        planned(&to).unwrap_err()[0].reason,
        Reason::NoProviderForKernelArguments
    );
}

#[test]
fn an_argument_that_leaves_the_config_but_stays_is_reported() {
    let tree = Tree::new();
    tree.write("/proc/cmdline", "psi=0 foo=1\n");
    let with = |arguments: &[&str]| MachineConfig {
        kernel_arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
        ..MachineConfig::default()
    };
    let (from, to) = (with(&["psi=0", "foo=1"]), with(&["foo=1"]));
    let plan = tree.plan(&from, &to);
    let message = "kernel argument psi=0 is no longer in the config, but stays";
    let found = plan
        .warnings
        .iter()
        .any(|warning| warning.starts_with(message));
    assert!(found && plan.is_empty(), "{:?}", plan.warnings);
    assert_eq!(tree.plan(&to, &to).warnings, Vec::<String>::new());
}

#[test]
fn ssh_keys_are_removed_from_a_users_file_when_they_leave_the_config() {
    let tree = Tree::new();
    tree.write("/etc/passwd", "core:x:1000:1000::/home/core:/bin/sh\n");
    tree.write("/home/core/.ssh/authorized_keys", "ssh-ed25519 AAAA mine\n");
    let from = config(
        r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 BBBB ours"]}]}}"#,
    );
    let nothing = MachineConfig::default();
    tree.apply(&tree.plan(&nothing, &from));
    let both = std::fs::read_to_string(tree.at("/home/core/.ssh/authorized_keys")).unwrap();
    assert!(both.contains("AAAA") && both.contains("BBBB"), "{both}");
    tree.apply(&tree.plan(&from, &nothing));
    let left = std::fs::read_to_string(tree.at("/home/core/.ssh/authorized_keys")).unwrap();
    assert_eq!(left, "ssh-ed25519 AAAA mine\n");
}

#[test]
fn ssh_keys_are_written_to_sshds_key_directory_without_following_links() {
    let keys = config(
        r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC ours"]}]}}"#,
    );
    let nothing = MachineConfig::default();
    // As Fedora CoreOS and its derivatives ship it, and as administrators write it.
    for line in [
        "AuthorizedKeysCommand /usr/libexec/ssh-key-dir\nAuthorizedKeysCommandUser root",
        "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\nAuthorizedKeysCommandUser root",
        "AuthorizedKeysFile .ssh/authorized_keys.d/*",
        "AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys.d/ignition",
        "  authorizedkeysfile\t%h/.ssh/authorized_keys.d/ignition",
        "AuthorizedKeysFile=\".ssh/authorized_keys.d/ignition\"",
    ] {
        let tree = Tree::new();
        tree.write("/usr/lib/passwd", "core:x:1000:1000::/home/core:/bin/sh\n");
        tree.write("/etc/ssh/sshd_config", "Include sshd_config.d/*.conf\n");
        tree.write("/etc/ssh/sshd_config.d/40-keys.conf", &format!("{line}\n"));
        tree.write("/usr/libexec/ssh-key-dir", "");
        let program = tree.at("/usr/libexec/ssh-key-dir");
        std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        tree.write("/var/home/core/.keep", "");
        tree.link("/home", "var/home");
        tree.apply(&tree.plan(&nothing, &keys));
        let file = tree.at("/var/home/core/.ssh/authorized_keys.d/ignition");
        let found = std::fs::read_to_string(file);
        assert_eq!(
            found.unwrap_or_default(),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC ours\n",
            "{line}"
        );
    }
    for line in [
        "#AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u",
        "AuthorizedKeysFile .ssh/keys",
    ] {
        let tree = Tree::new();
        tree.write("/etc/passwd", "core:x:1000:1000::/home/core:/bin/sh\n");
        tree.write("/etc/ssh/sshd_config", &format!("{line}\n"));
        tree.write("/home/core/.keep", "");
        tree.apply(&tree.plan(&nothing, &keys));
        let file = tree.at("/home/core/.ssh/authorized_keys");
        assert!(
            std::fs::read_to_string(file).unwrap().contains("AgIC ours"),
            "{line}"
        );
    }

    let tree = Tree::new();
    tree.write("/etc/passwd", "core:x:1000:1000::/home/core:/bin/sh\n");
    tree.write("/home/core/.keep", "");
    tree.link("/home/core/.ssh", "/root");
    let plan = tree.plan(&nothing, &keys);
    assert!(
        plan.operations.is_empty() && plan.warnings[0].contains("is a symbolic link"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn a_user_policy_applies_and_inactive_units_need_no_action() {
    let tree = Tree::new();
    let (nothing, to) = (MachineConfig::default(), one_file("/etc/app/f"));
    let object = serde_json::json!({"spec": {"nodeDisruptionPolicy": {"files": [{"path": "/etc/app", "actions": [
        {"type": "Restart", "restart": {"serviceName": "app.service"}}, {"type": "Drain"}]}]}}});
    let policies = Policies::from_machine_configuration(&object).unwrap();
    for (active, expected) in [
        ("active", vec![ActionKind::Drain, ActionKind::Restart]),
        ("inactive", vec![ActionKind::Drain]),
    ] {
        let facts = UnitFacts {
            load: Some("loaded".into()),
            active: Some(active.into()),
            ..UnitFacts::default()
        };
        let live = BTreeMap::from([("app.service".to_owned(), facts)]);
        let known = CallerFacts {
            live_units: Some(&live),
            ..CallerFacts::default()
        };
        let observed = tree.observed(&nothing, &to, known);
        let mut observed = observed;
        observed.units.extend(live.clone());
        let plan: Plan =
            machinist_plan::between(&nothing, &to, &observed, &policies, LIVE).unwrap();
        let kinds: Vec<ActionKind> = plan.actions.iter().map(|action| action.kind).collect();
        assert_eq!((kinds, plan.drain), (expected, true));
        assert_eq!(plan.changes[0].policy, "user:/etc/app");
    }
}

#[test]
fn drift_is_reported_by_path_and_kind() {
    let tree = Tree::new();
    let mut config = files(
        r#""files": [{"path": "/etc/content", "mode": 420, "contents": {"source": "data:,x"}},
                     {"path": "/etc/mode", "mode": 420, "contents": {"source": "data:,x"}},
                     {"path": "/etc/missing", "mode": 420, "contents": {"source": "data:,x"}}]"#,
    );
    let contents = "[Service]\nExecStart=/bin/a\n[Install]\nWantedBy=m.target\n";
    let contents = Some(contents.to_owned());
    unit(
        &mut config,
        "a.service",
        Unit {
            contents,
            enabled: Some(true),
            ..Unit::default()
        },
    );
    tree.apply(&tree.plan(&MachineConfig::default(), &config));
    let drifts = |only: Option<&str>| -> Vec<(String, DriftKind)> {
        let only = only.map(|one| BTreeSet::from([path(one)]));
        let found = drift(
            &tree.root,
            &config,
            only.as_ref(),
            false,
            CallerFacts::default(),
        )
        .unwrap();
        found
            .into_iter()
            .map(|drift| (drift.path.to_string(), drift.kind))
            .collect()
    };
    assert_eq!(drifts(None), []);
    tree.write("/etc/content", "y");
    let secret = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(tree.at("/etc/mode"), secret).unwrap();
    std::fs::remove_file(tree.at("/etc/missing")).unwrap();
    std::fs::remove_file(tree.at("/etc/systemd/system/m.target.wants/a.service")).unwrap();
    assert_eq!(
        drifts(None),
        [
            ("/etc/content".to_owned(), DriftKind::Content),
            ("/etc/missing".to_owned(), DriftKind::Missing),
            ("/etc/mode".to_owned(), DriftKind::Mode),
            (
                "/etc/systemd/system/m.target.wants/a.service".to_owned(),
                DriftKind::Unit
            ),
        ]
    );
    assert_eq!(
        drifts(Some("/etc/mode")),
        [("/etc/mode".to_owned(), DriftKind::Mode)]
    );
}

#[test]
fn a_directory_still_needed_by_the_config_is_kept() {
    let tree = Tree::new();
    tree.write("/a/b/c", "new");
    let mut from = files(r#""directories": [{"path": "/a", "mode": 493}]"#);
    from.files = one_file("/a/b/c").files;
    let to = files(r#""directories": [{"path": "/a/b", "mode": 493}]"#);
    let plan = tree.plan(&from, &to);
    let targets: Vec<&str> = plan
        .operations
        .iter()
        .map(|operation| operation.target.as_str())
        .collect();
    assert_eq!(targets, ["/a/b/c"]);
}

#[test]
fn a_loop_of_links_is_rejected_by_the_plan() {
    let tree = Tree::new();
    tree.link("/one", "two");
    tree.link("/two", "one");
    let (nothing, to) = (MachineConfig::default(), one_file("/one/f"));
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let refused = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE);
    assert_eq!(refused.unwrap_err()[0].reason, Reason::ForeignContent);
}
