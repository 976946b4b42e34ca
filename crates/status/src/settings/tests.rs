use std::time::Duration;

use super::*;
use crate::readiness::{GateEffect, GateName, MinFree};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::Root;

fn file(name: &str, content: &str) -> SettingsFile {
    SettingsFile {
        name: name.to_owned(),
        content: content.as_bytes().to_vec(),
        owner: 0,
        mode: 0o644,
    }
}

fn read(files: Vec<SettingsFile>) -> Result<Settings, SettingsError> {
    load(SettingsInputs {
        files,
        own_uid: 1000,
        ..SettingsInputs::default()
    })
}

fn problems(content: &str) -> Vec<String> {
    let error = read(vec![file("m.yaml", content)]).unwrap_err();
    error
        .problems
        .iter()
        .map(SettingsProblem::to_string)
        .collect()
}

fn origin(settings: &Settings, key: &str) -> String {
    let entry = settings
        .effective
        .iter()
        .find(|one| one.key == key)
        .unwrap();
    entry.from.to_string()
}

#[test]
fn omitted_settings_have_defaults() {
    for text in ["", "# nothing\n", "update:\n", "{}\n"] {
        let settings = read(vec![file("m.yaml", text)]).unwrap();
        assert_eq!(settings, read(vec![]).unwrap(), "{text:?}");
    }
    let settings = read(vec![]).unwrap();
    assert_eq!(settings.source, SourceSetting::Auto);
    assert_eq!(settings.roles, AgentRole::ALL);
    assert_eq!(settings.update.reboot, Reboot::Auto);
    assert_eq!(settings.update.verify_timeout, Duration::from_secs(1800));
    // Servers whose firmware takes a quarter of an hour must not count as failed.
    assert_eq!(settings.update.reboot_timeout, Duration::from_secs(1800));
    assert_eq!(settings.update.os_step_timeout, Duration::from_secs(3600));
    assert_eq!(settings.actions.settle, Duration::from_secs(2));
    assert_eq!(settings.users_allowed, ["core"]);
    assert_eq!(settings.admin.listen.to_string(), "127.0.0.1:10480");
    assert!(!settings.admin.chosen);
    assert!(
        settings
            .effective
            .iter()
            .all(|one| one.from == SettingOrigin::Default)
    );
}

#[test]
fn the_last_source_wins_per_setting_and_its_origin_is_kept() {
    let settings = load(SettingsInputs {
        files: vec![
            file(
                "m.yaml",
                "update:\n  reboot: ask\n  bootAttempts: 3\n  rebootTimeout: 1h30m\nowners: set\n",
            ),
            file(
                "m.yaml.d/10.yaml",
                "update: {bootAttempts: 4, rebootTimeout: 10m}\n",
            ),
        ],
        environment: [
            ("MACHINIST_UPDATE__BOOT_ATTEMPTS", "5"),
            ("MACHINIST_ROLES", "[config, readiness]"),
            ("MACHINIST_READINESS__GATES__DISK_SPACE", "off"),
            ("MACHINIST_LOG", "debug"),
            ("MACHINIST_SERVICE_HOST", "10.0.0.1"),
            ("PATH", "/bin"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        flags: Fragment::default()
            .with_flag("--owners", "owners", "record")
            .with_flag("--source", "source", "dir:examples/machine"),
        ..SettingsInputs::default()
    })
    .unwrap();
    assert_eq!(settings.update.reboot, Reboot::Ask);
    assert_eq!(settings.update.reboot_timeout, Duration::from_secs(600));
    assert_eq!(settings.update.boot_attempts, 5);
    assert_eq!(settings.roles, [AgentRole::Config, AgentRole::Readiness]);
    assert_eq!(settings.owners, Owners::Record);
    assert_eq!(
        settings.source,
        SourceSetting::CallersDirectory("examples/machine".to_owned())
    );
    let policy = &settings.readiness.policy;
    assert_eq!(policy.effect(GateName::DiskSpace), GateEffect::Off);
    assert_eq!(policy.effect(GateName::Config), GateEffect::Hold);
    for (key, from) in [
        ("update.reboot", "m.yaml:2:11"),
        ("update.rebootTimeout", "m.yaml.d/10.yaml:1:42"),
        ("update.bootAttempts", "MACHINIST_UPDATE__BOOT_ATTEMPTS"),
        ("owners", "--owners"),
        ("update.verifyTimeout", "default"),
    ] {
        assert_eq!(origin(&settings, key), from);
    }
}

/// The boot loader has returned to the previous deployment by then.
#[test]
fn an_os_change_has_one_boot_attempt_unless_the_number_is_set() {
    let attempts = |text: &str| {
        let update = read(vec![file("m.yaml", text)]).unwrap().update;
        (update.boot_attempts, update.os_boot_attempts)
    };
    assert_eq!(attempts("update: {reboot: ask}\n"), (2, 1));
    assert_eq!(attempts("update: {bootAttempts: 2}\n"), (2, 2));
    assert_eq!(attempts("update: {bootAttempts: 1}\n"), (1, 1));
}

#[test]
fn every_setting_can_be_written_in_yaml_as_it_is_shown() {
    let settings = read(vec![]).unwrap();
    for entry in &settings.effective {
        let value = serde_json::to_string(&entry.value).unwrap();
        let nested = entry
            .key
            .split('.')
            .rev()
            .fold(value, |inner, part| format!("{{\"{part}\": {inner}}}"));
        let again = read(vec![file("m.yaml", &nested)]).unwrap();
        assert!(again.changed(&settings).is_empty(), "{nested}");
        assert_eq!(
            origin(&again, entry.key).split(':').next(),
            Some("m.yaml"),
            "{nested}"
        );
    }
}

#[test]
fn durations_and_sizes_are_parsed_by_their_units() {
    let settings = read(vec![file(
        "m.yaml",
        "actions: {settle: 500ms, jobTimeout: 1 hour}\nreadiness: {diskSpace: {minFree: 2GiB}, pressure: {cpu: 100%}}\n",
    )])
    .unwrap();
    assert_eq!(settings.actions.settle, Duration::from_millis(500));
    assert_eq!(settings.actions.job_timeout, Duration::from_secs(3600));
    assert_eq!(settings.readiness.policy.min_free, MinFree::Bytes(2 << 30));
    assert_eq!(settings.readiness.policy.cpu_pressure, 100);
    for (text, bytes) in [
        ("0", 0),
        ("1048576", 1 << 20),
        ("1 MiB", 1 << 20),
        ("10MB", 10_000_000),
        ("3Gi", 3 << 30),
    ] {
        let text = format!("readiness: {{diskSpace: {{minFree: {text}}}}}");
        let settings = read(vec![file("m.yaml", &text)]).unwrap();
        assert_eq!(
            settings.readiness.policy.min_free,
            MinFree::Bytes(bytes),
            "{text}"
        );
    }
}

#[test]
fn an_invalid_setting_is_reported_with_location_and_expectation() {
    #[rustfmt::skip]
    let table = [
        ("update: {reboot: maybe}", r#"m.yaml:1:18: update.reboot: found "maybe"; expected one of auto, ask, never"#),
        ("update:\n  verifyTimeout: 30\n", r#"m.yaml:2:18: update.verifyTimeout: found "30"; expected a duration such as 30s, 5m or 1h30m"#),
        ("update: {rebootTimeout: 0s}", r#"m.yaml:1:25: update.rebootTimeout: found "0s"; expected a duration above zero"#),
        ("update: {bootAttempts: 11}", r#"m.yaml:1:24: update.bootAttempts: found "11"; expected a number from 1 to 10"#),
        ("roles: config", r#"m.yaml:1:8: roles: found "config"; expected a list"#),
        ("roles: []", "m.yaml:1:8: roles: found a list; expected at least one role, each once"),
        ("roles: [config, drive]", r#"m.yaml:1:17: roles[1]: found "drive"; expected one of config, devices, readiness"#),
        ("source: dir:relative", r#"m.yaml:1:9: source: found "dir:relative"; expected auto, cluster or dir:/absolute/path below the root"#),
        ("source: {dir: /x}", "m.yaml:1:15: source.dir: found a mapping at source; expected a value"),
        ("log: debug", r#"m.yaml:1:6: log: found "debug" in place of a section; expected log.format, log.level"#),
        ("log: {levle: debug}", "m.yaml:1:14: log.levle: unknown key; did you mean log.level?"),
        ("\"log.level\": debug", "m.yaml:1:14: \"log.level\": unknown key; expected one of"),
        ("update: {windows: [{start: 2am, duration: 1h}]}", r#"m.yaml:1:28: update.windows[0].start: found "2am"; expected a time of day such as "02:30""#),
        ("update: {timeZone: Berlin}", r#"m.yaml:1:20: update.timeZone: found "Berlin"; expected the name of a time zone such as UTC or Europe/Berlin"#),
        ("drift: {paths: [{path: etc, policy: report}]}", r#"m.yaml:1:24: drift.paths[0].path: found "etc"; expected an absolute path without . or .."#),
        ("drift: {paths: [{path: /etc}]}", "m.yaml:1:17: drift.paths[0]: found a mapping; expected a mapping with path and policy"),
        ("users: {allowed: [Root]}", r#"m.yaml:1:19: users.allowed[0]: found "Root"; expected a user name"#),
        ("admin: {listen: localhost}", r#"m.yaml:1:17: admin.listen: found "localhost"; expected an address and a port such as 127.0.0.1:10480"#),
        ("readiness: {gates: {Pressure: loud}}", r#"m.yaml:1:31: readiness.gates.Pressure: found "loud"; expected one of hold, warn, off"#),
        ("readiness: {diskSpace: {minFree: 5}}", r#"m.yaml:1:34: readiness.diskSpace.minFree: found "5"; expected a share such as 5% or a size such as 1GiB"#),
        ("readiness: {diskSpace: {minFree: 101%}}", r#"m.yaml:1:34: readiness.diskSpace.minFree: found "101%"; expected a share such as 5% or a size such as 1GiB"#),
        ("- a", "m.yaml:1:1: the settings are not a mapping; expected keys"),
        ("a: [1\nb: 2", "m.yaml:2:2: illegal placement of ':' indicator; expected YAML"),
        ("owners: set\nowners: auto", "m.yaml:2:1: the key \"owners\" is defined twice; expected each key once"),
    ];
    for (text, expected) in table {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(expected), "{}\n{expected}", found[0]);
    }
}

#[test]
fn an_unknown_section_without_keys_is_reported() {
    #[rustfmt::skip]
    let table = [
        ("drfit: {}", "m.yaml:1:8: drfit: unknown key; did you mean drift?"),
        ("drfit:", "m.yaml:1:6: drfit: unknown key; did you mean drift?"),
        ("nonsense: {}", "m.yaml:1:11: nonsense: unknown key; expected one of actions, "),
        ("readiness: {gate: {}}", "m.yaml:1:19: readiness.gate: unknown key; did you mean readiness.gates?"),
    ];
    for (text, expected) in table {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(expected), "{}", found[0]);
    }
    let text = "drift: {}\nreadiness: {gates: {}, pressure:}\nupdate:\nsource: {from:}\nroles:\n";
    assert_eq!(
        read(vec![file("m.yaml", text)]).unwrap().source,
        SourceSetting::Auto
    );
}

#[test]
fn all_mistakes_of_one_value_are_reported_at_once() {
    let window = "update: {windows: [{days: [Mo, Tue, We], start: 2am, duration: 8d, length: 1h}, {start: 3am, duration: 1h}]}";
    #[rustfmt::skip]
    let table: [(&str, &[&str]); 3] = [
        (window, &["windows[0].days[0]", "windows[0].days[2]", "windows[0].start", "windows[0].duration", "windows[0].length", "windows[1].start"]),
        ("drift: {paths: [{path: etc, policy: fix, more: 1}, {path: usr, policy: report}]}", &["paths[0].path", "paths[0].policy", "paths[0].more", "paths[1].path"]),
        ("readiness: {customGates: [{name: 1, effect: loud, unit: x}, {name: A, effect: hold, file: x, unit: y}]}", &["[0].name", "[0].effect", "[0].unit", "[1].file", "[1].unit"]),
    ];
    for (text, fields) in table {
        let found = problems(text);
        assert_eq!(found.len(), fields.len(), "{found:#?}");
        for (problem, field) in found.iter().zip(fields) {
            assert!(problem.contains(&format!("{field}: ")), "{problem}");
        }
    }
}

#[test]
fn renamed_settings_are_rejected_naming_the_new_name() {
    #[rustfmt::skip]
    let table = [
        ("owners: set\njobs: [config]", "m.yaml:2:7: jobs: unknown key; it is called roles now"),
        ("jobs: {config: true}", "m.yaml:1:16: jobs.config: unknown key; it is called roles now"),
        (
            "readiness:\n  own:\n  - {name: A, file: /a, effect: hold}",
            "m.yaml:3:5: readiness.own: unknown key; it is called readiness.customGates now",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(problems(text), [expected]);
    }
    let error = load(SettingsInputs {
        environment: [
            ("MACHINIST_JOBS", "[config]"),
            ("MACHINIST_READINESS__OWN", "[]"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..SettingsInputs::default()
    })
    .unwrap_err();
    let message: Vec<_> = error.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        message,
        [
            "MACHINIST_JOBS: JOBS: unknown key; it is called ROLES now",
            "MACHINIST_READINESS__OWN: READINESS.OWN: unknown key; it is called READINESS.CUSTOM_GATES now",
        ]
    );
}

#[test]
fn all_settings_errors_are_reported_at_once() {
    let error = load(SettingsInputs {
        files: vec![
            file("a.yaml", "update: {reboot: x}\nnonsense: 1\n"),
            file("b.yaml", "a: [\n"),
            file("c.yaml", "update: {reboot: y}\n"),
        ],
        environment: vec![("MACHINIST_UPDATE__NONSENSE".to_owned(), "1".to_owned())],
        flags: Fragment::default().with_flag("--admin", "admin.listen", "nowhere"),
        ..SettingsInputs::default()
    })
    .unwrap_err();
    let places: Vec<_> = error
        .problems
        .iter()
        .map(|one| one.at.to_string())
        .collect();
    assert_eq!(
        places,
        [
            "a.yaml:1:18",
            "a.yaml:2:11",
            "b.yaml:1:4",
            "c.yaml:1:18",
            "MACHINIST_UPDATE__NONSENSE",
            "--admin"
        ]
    );
    assert_eq!(error.problems[1].reason, Reason::FieldUnknown);
    assert_eq!(error.problems[2].reason, Reason::SyntaxInvalid);
}

#[test]
fn settings_files_writable_by_other_users_are_rejected() {
    for (owner, mode, good) in [
        (0, 0o644, true),
        (1000, 0o600, true),
        (0, 0o664, true),
        (1001, 0o644, false),
        (0, 0o646, false),
        (1000, 0o777, false),
    ] {
        let file = SettingsFile {
            owner,
            mode,
            ..file("m.yaml", "owners: set\n")
        };
        assert_eq!(read(vec![file]).is_ok(), good, "{owner} {mode:o}");
    }
    let binary = SettingsFile {
        content: vec![0xff],
        ..file("m.yaml", "")
    };
    assert!(read(vec![binary]).is_err());
}

#[test]
fn settings_files_are_found_below_the_root_in_name_order() {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::open(directory.path()).unwrap();
    let dir: AbsPath = "/etc/machinist".parse().unwrap();
    assert!(SettingsFile::find(&root, &dir, false).unwrap().is_empty());
    let drop_ins = dir.join("machinist.yaml.d").unwrap();
    root.make_dirs(&drop_ins, 0o755).unwrap();
    for name in ["20-b.yaml", "10-a.yaml", ".hidden.yaml", "note.txt"] {
        let path = drop_ins.join(name).unwrap();
        root.replace(&path, name.as_bytes(), 0o640).unwrap();
    }
    let real: AbsPath = "/real.yaml".parse().unwrap();
    root.replace(&real, b"owners: set", 0o644).unwrap();
    let link = dir.join("machinist.yaml").unwrap();
    root.build_link(&link, "/real.yaml").unwrap();
    let found = SettingsFile::find(&root, &dir, false).unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|file| file.name.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(names, ["machinist.yaml", "10-a.yaml", "20-b.yaml"]);
    assert_eq!(
        (found[0].content.as_slice(), found[0].mode),
        (&b"owners: set"[..], 0o644)
    );
    assert_eq!(found[1].mode, 0o640);
}

#[test]
fn an_invalid_change_keeps_the_last_good_settings() {
    let with = |text: &str| read(vec![file("m.yaml", text)]).map_err(LoadError::from);
    let mut live = ReloadableSettings::new(with("update: {reboot: never}").unwrap());
    assert!(matches!(
        live.offer(with("update: {reboot: perhaps}")),
        ReloadOutcome::Refused(_)
    ));
    assert_eq!(live.settings().update.reboot, Reboot::Never);
    assert!(live.warning().unwrap().contains("perhaps"));
    assert_eq!(
        live.offer(with("update: {reboot: never}")),
        ReloadOutcome::Same
    );
    assert_eq!(live.warning(), None);
    let taken = live.offer(with("update: {reboot: ask}\ndevices: {rescan: 1m}"));
    assert_eq!(
        taken,
        ReloadOutcome::Taken(vec!["devices.rescan", "update.reboot"])
    );
    assert_eq!(live.settings().update.reboot, Reboot::Ask);
}

#[test]
fn the_most_specific_drift_rule_applies() {
    let settings = read(vec![file(
        "m.yaml",
        "drift:\n  default: ignore\n  paths:\n  - {path: /etc, policy: report}\n  - {path: /etc/motd, policy: ignore}\n",
    )])
    .unwrap();
    for (path, policy) in [
        ("/etc/motd", DriftPolicy::Ignore),
        ("/etc/motd.d", DriftPolicy::Report),
        ("/var/x", DriftPolicy::Ignore),
    ] {
        assert_eq!(
            settings.drift.policy(&path.parse().unwrap()),
            policy,
            "{path}"
        );
    }
}

#[test]
fn auto_source_is_the_cluster_in_a_pod_and_an_explicit_one_is_kept() {
    assert_eq!(
        SourceSetting::Auto.resolve_auto(true),
        SourceSetting::Cluster
    );
    let settled = SourceSetting::Auto.resolve_auto(false);
    assert_eq!(settled.to_string(), "dir:/etc/machinist/machine.d");
    let chosen = SourceSetting::from_flag("dir:x").unwrap();
    assert_eq!(chosen.clone().resolve_auto(true), chosen);
    assert!(SourceSetting::from_flag("dir:").is_err());
}

#[test]
fn force_after_and_node_name_settings_are_validated() {
    let text = "drain: {forceAfter: 2h, by: controller}\ncluster: {node: a.example}\n";
    let settings = read(vec![file("m.yaml", text)]).unwrap();
    assert_eq!(settings.drain.force_after, Some(Duration::from_secs(7200)));
    assert_eq!(settings.drain.by, DrainBy::Controller);
    assert_eq!(settings.cluster.node.as_deref(), Some("a.example"));
    let silent = read(vec![file("m.yaml", "drain: {forceAfter: never}\n")]).unwrap();
    assert_eq!(silent.drain.force_after, None);
    for wrong in [
        "drain: {parallel: 0}",
        "cluster: {node: A}",
        "drain: {forceAfter: soon}",
        "drain: {forceAfter: 0s}",
    ] {
        assert!(read(vec![file("m.yaml", wrong)]).is_err(), "{wrong}");
    }
}

proptest::proptest! {
    #[test]
    fn settings_parser_never_panics(text in "[a-z:{}\\[\\]\\- \n\"'&*!%#0-9]{0,80}") {
        let _ = read(vec![file("m.yaml", &text)]);
    }
}
