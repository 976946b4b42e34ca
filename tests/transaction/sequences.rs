//! Sequences of configs: what an entry has set does not outlive the entry.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use machinist_plan::{Capabilities, HostKind, OsCapabilities, Plan, Policies};
use machinist_testkit::sandbox::{Sandbox, Written};
use machinist_update::{
    cache::ObservationCache,
    observe_and_plan::{PlanOptions, observe_and_plan},
};

/// An Ignition config with this `storage` and `systemd`.
fn config(sections: &str) -> Written {
    let text = format!(r#"{{"ignition": {{"version": "3.6.0"}}{sections}}}"#);
    let rules = machinist_ignition::ConfigRules::default();
    let documents = machinist_ignition::parse(&text, "test.ign", &rules).unwrap();
    let merged =
        machinist_ignition::merge(documents, "worker", machinist_ignition::MergeOrder::AsGiven);
    Written(merged.unwrap().0)
}

fn storage(sections: &str) -> Written {
    config(&format!(r#", "storage": {{{sections}}}"#))
}

/// The plan for `to`, or all refusals, one a line.
fn plan(sandbox: &Sandbox, to: &Written) -> Result<Plan, String> {
    let how = PlanOptions {
        policies: &Policies::default(),
        capabilities: Capabilities {
            live: false,
            chown: true,
            os: OsCapabilities::without_provider(HostKind::Unknown),
        },
        units: None,
        only: None,
        remembered: &ObservationCache::default(),
    };
    let planned = observe_and_plan(&sandbox.root(), &sandbox.journal(), &to.0, how).unwrap();
    planned.plan.map_err(|refusals| {
        let lines: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

fn warnings(sandbox: &Sandbox, to: &Written) -> String {
    plan(sandbox, to).unwrap().warnings.join("\n")
}

fn mode(sandbox: &Sandbox, path: &str) -> u32 {
    let found = fs::metadata(sandbox.path(path)).unwrap();
    found.permissions().mode() & 0o7777
}

const FILE: &str = r#""files": [{"path": "/etc/new/f", "contents": {"source": "data:,x"}}]"#;
const STICKY: &str = r#""directories": [{"path": "/etc/new", "mode": 1023}]"#;

#[test]
fn a_directory_that_stays_as_a_parent_loses_the_mode_of_its_entry() {
    let (file, both) = (storage(FILE), storage(&format!("{STICKY}, {FILE}")));
    for sequence in [
        vec![storage(STICKY), file.clone()],
        vec![both.clone(), file.clone()],
        // machinist creates it as a parent first.
        vec![file.clone(), both, file.clone()],
    ] {
        let sandbox = Sandbox::new();
        for config in &sequence {
            sandbox.applied(config);
        }
        assert_eq!(mode(&sandbox, "/etc/new"), 0o755);
        sandbox.applied(&storage(""));
        assert!(!sandbox.path("/etc/new").exists());
    }
}

#[test]
fn a_directory_that_stays_as_a_parent_loses_the_owner_of_its_entry() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let users = storage(r#""directories": [{"path": "/etc/new", "mode": 448, "user": {"id": 7}}]"#);
    let users_file = storage(
        r#""files": [{"path": "/etc/new/f", "user": {"id": 7}, "contents": {"source": "data:,x"}}]"#,
    );
    for file in [storage(FILE), users_file] {
        let sandbox = Sandbox::new();
        sandbox.applied(&users);
        sandbox.applied(&file);
        let found = fs::metadata(sandbox.path("/etc/new")).unwrap();
        assert_eq!(
            (found.mode() & 0o7777, found.uid(), found.gid()),
            (0o755, 0, 0)
        );
    }
    // In a directory that is the user's, the new parent of the user's file is the user's.
    let home = storage(r#""directories": [{"path": "/srv/u/d", "mode": 448, "user": {"id": 7}}]"#);
    let file = storage(
        r#""files": [{"path": "/srv/u/d/f", "user": {"id": 7}, "group": {"id": 8}, "contents": {"source": "data:,x"}}]"#,
    );
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("/srv/u")).unwrap();
    std::os::unix::fs::chown(sandbox.path("/srv/u"), Some(7), Some(8)).unwrap();
    sandbox.applied(&home);
    sandbox.applied(&file);
    let found = fs::metadata(sandbox.path("/srv/u/d")).unwrap();
    assert_eq!(
        (found.mode() & 0o7777, found.uid(), found.gid()),
        (0o755, 7, 8)
    );
}

#[test]
fn a_directory_that_existed_before_gets_its_mode_back() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("/etc/new")).unwrap();
    fs::set_permissions(sandbox.path("/etc/new"), fs::Permissions::from_mode(0o750)).unwrap();
    sandbox.applied(&storage(STICKY));
    assert_eq!(mode(&sandbox, "/etc/new"), 0o1777);
    sandbox.applied(&storage(FILE));
    assert_eq!(mode(&sandbox, "/etc/new"), 0o750);
}

#[test]
fn a_directory_with_foreign_content_loses_the_mode_and_the_plan_names_what_stays() {
    let sandbox = Sandbox::new();
    sandbox.applied(&storage(STICKY));
    sandbox.write("/etc/new/other", "x");
    let warned = warnings(&sandbox, &storage(""));
    let expected = "/etc/new is removed from the config, but kept on disk, because the directory is not empty: \
                    other stays; it has mode 0755 and owner 0:0";
    assert_eq!(warned, expected);
    sandbox.applied(&storage(""));
    assert_eq!(mode(&sandbox, "/etc/new"), 0o755);
}

#[test]
fn a_link_replaces_a_directory_that_only_the_previous_config_needed() {
    let unit = |dropin: &str| {
        format!(
            r#", "systemd": {{"units": [{{"name": "a.service", "contents": "[Service]\nExecStart=/bin/true\n"{dropin}}}]}}"#
        )
    };
    let dropin = r#", "dropins": [{"name": "x.conf", "contents": "[Service]\nNice=1\n"}]"#;
    for (from, to, at) in [
        (
            storage(
                r#""files": [{"path": "/var/lib/app/deep/a", "contents": {"source": "data:,x"}}]"#,
            ),
            storage(
                r#""files": [{"path": "/srv/app/a", "contents": {"source": "data:,x"}}],
                   "links": [{"path": "/var/lib/app", "target": "/srv/app"}]"#,
            ),
            "/var/lib/app",
        ),
        (
            config(&unit(dropin)),
            config(&format!(
                r#"{}, "storage": {{"files": [{{"path": "/srv/d/x.conf", "contents": {{"source": "data:,x"}}}}],
                   "links": [{{"path": "/etc/systemd/system/a.service.d", "target": "/srv/d"}}]}}"#,
                unit("")
            )),
            "/etc/systemd/system/a.service.d",
        ),
    ] {
        let sandbox = Sandbox::new();
        sandbox.applied(&from);
        sandbox.applied(&to);
        assert!(sandbox.path(at).is_symlink(), "{at}");
        sandbox.applied(&from);
        assert!(sandbox.path(at).is_dir() && !sandbox.path(at).is_symlink());
        // Another program's file keeps it.
        sandbox.write(&format!("{at}/other"), "x");
        let refused = plan(&sandbox, &to).unwrap_err();
        assert!(refused.contains("[ForeignContent]"), "{refused}");
    }
}

#[test]
fn a_path_behind_a_users_link_is_refused_before_the_link_exists() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let with_link = |user: &str| {
        storage(&format!(
            r#""links": [{{"path": "/etc/new/deep", "target": "a.conf"{user}}}],
               "files": [{{"path": "/etc/new/deep/f", "contents": {{"source": "data:,x"}}}}]"#
        ))
    };
    let sandbox = Sandbox::new();
    for user in [r#", "user": {"id": 7}"#, r#", "user": {"name": "ann"}"#] {
        sandbox.write("/etc/passwd", "ann:x:1007:1007::/home/ann:/bin/sh\n");
        let refused = plan(&sandbox, &with_link(user)).unwrap_err();
        let owner = if user.contains("ann") { 1007 } else { 7 };
        let expected = format!(
            "/etc/new/deep/f is not safe to write: the link /etc/new/deep belongs to user {owner} [UnsafePath]"
        );
        assert!(refused.ends_with(&expected), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    sandbox.applied(&with_link(""));
    assert!(sandbox.path("/etc/new/a.conf/f").exists());
    sandbox.applied(&storage(""));
    assert!(!sandbox.path("/etc/new").exists());
}

#[test]
fn a_plan_names_the_units_that_keep_what_a_removed_preset_has_set() {
    let units = r#""systemd": {"units": [
        {"name": "cron.service", "dropins": [{"name": "x.conf", "contents": "[Service]\nNice=1\n"}]},
        {"name": "on.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"},
        {"name": "a.service", "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}"#;
    let with = |presets: &str| {
        let source = presets.replace(' ', "%20");
        config(&format!(
            r#", "storage": {{"files": [{{"path": "/etc/systemd/system-preset/00-all.preset",
                "contents": {{"source": "data:,{source}%0A"}}}}]}}, {units}"#
        ))
    };
    let without = config(&format!(", {units}"));
    let sandbox = Sandbox::new();
    sandbox.write(
        "/usr/lib/systemd/system/cron.service",
        "[Install]\nWantedBy=multi-user.target\n",
    );
    sandbox.write("/usr/lib/systemd/system-preset/90-all.preset", "enable *\n");
    sandbox.applied(&with("disable *"));
    let link = "/etc/systemd/system/multi-user.target.wants/a.service";
    assert!(!sandbox.path(link).is_symlink());
    let expected = |what: &str| {
        format!(
            "/etc/systemd/system-preset/00-all.preset {what}, but the units that it has disabled stay so, because \
             presets apply only when a unit is new in the config: a.service, cron.service; set enabled for another \
             state"
        )
    };
    assert!(warnings(&sandbox, &without).contains(&expected("is removed")));
    assert!(warnings(&sandbox, &with("enable *")).contains(&expected("changes")));
    // The same effect, so there is no warning.
    let same = warnings(&sandbox, &with("disable [ac]*"));
    assert!(!same.contains("presets apply"), "{same}");
    sandbox.applied(&without);
    assert!(!sandbox.path(link).is_symlink());
    assert!(!warnings(&sandbox, &without).contains("presets apply"));
}

#[test]
fn a_registries_conf_that_is_not_toml_is_refused_only_if_the_config_brings_it() {
    let registries = |text: &str| {
        storage(&format!(
            r#""files": [{{"path": "/etc/containers/registries.conf", "contents": {{"source": "data:,{text}"}}}}]"#
        ))
    };
    let sandbox = Sandbox::new();
    sandbox.write("/etc/containers/registries.conf", "[[registry\n");
    let refused = plan(&sandbox, &registries("a%20%3D%201%0A%5B%5Bregistry%0A")).unwrap_err();
    assert!(refused.contains("storage.files[0]"), "{refused}");
    assert!(
        refused.contains("line 2 of /etc/containers/registries.conf is not valid"),
        "{refused}"
    );
    assert!(refused.contains("expected TOML"), "{refused}");
    plan(&sandbox, &registries("a%20%3D%201%0A")).unwrap();
}

#[test]
fn a_plan_says_that_set_id_bits_of_a_file_given_to_a_user_are_lost() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("/usr/local/bin/tool", "x");
    let tool = sandbox.path("/usr/local/bin/tool");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
    let users = storage(r#""files": [{"path": "/usr/local/bin/tool", "user": {"id": 7}}]"#);
    let warned = warnings(&sandbox, &users);
    let expected = "/usr/local/bin/tool passes to user 7, who may change its content: the set-ID bits of its mode 4755 \
                    do not come back when the entry leaves the config";
    assert!(warned.contains(expected), "{warned}");
    sandbox.applied(&users);
    assert!(!warnings(&sandbox, &users).contains("set-ID"));
    sandbox.applied(&storage(""));
    assert_eq!(mode(&sandbox, "/usr/local/bin/tool"), 0o755);
}

#[test]
fn a_plan_names_the_field_that_enables_a_missing_unit() {
    let sandbox = Sandbox::new();
    let to = config(r#", "systemd": {"units": [{"name": "nfsd.service", "enabled": true}]}"#);
    let warned = warnings(&sandbox, &to);
    assert!(
        warned.contains("systemd.units[0].enabled: cannot enable nfsd.service: it does not exist"),
        "{warned}"
    );
    assert!(warned.starts_with("test.ign:"), "{warned}");
}

#[test]
fn a_quadlet_with_an_install_section_needs_no_other_one() {
    let sandbox = Sandbox::new();
    let quadlet = |text: &str| {
        config(&format!(
            r#", "storage": {{"files": [{{"path": "/etc/containers/systemd/hello.container", "contents": {{"source": "data:,{text}"}}}}]}},
               "systemd": {{"units": [{{"name": "hello.service", "enabled": true}}]}}"#
        ))
    };
    for (text, then) in [
        (
            "%5BContainer%5D%0A%5BInstall%5D%0AWantedBy%3Dmulti-user.target%0A",
            "the [Install] section there enables it already",
        ),
        ("%5BContainer%5D%0A", "add [Install] to that file"),
    ] {
        let warned = warnings(&sandbox, &quadlet(text));
        assert!(warned.contains(then), "{warned}");
        assert!(!warned.contains("does not exist"), "{warned}");
    }
}
