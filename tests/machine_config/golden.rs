//! `tests/golden/input/NN-name/`: every file but `expected.txt` is input, in the order of the
//! names, and directories contain files that Butane reads; `expected.txt` is the result.
//! `allowed.txt` names further users and groups, as `user ann`, the roles of the machine, as `role
//! worker`, and contains `from api-server` if the texts come from there. `MACHINIST_BLESS=1`
//! rewrites `expected.txt`, to be reviewed.

use std::{fmt::Write as _, fs, path::Path};

use serde_json::Value;

use machinist_agent::config_dir::LocalFiles;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{
    CanonicalError, ConfigLoader, ConfigRules, MachineConfig, MergeOrder, NoLocalFiles, Owner,
    Refusal, TextSource, documents_from_files, merge,
};
use machinist_rootfs::Root;

pub(super) fn directory(below: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

pub(super) fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            !["expected.txt", "allowed.txt"]
                .map(Into::into)
                .contains(&entry.file_name())
        })
        .filter(|entry| entry.path().is_file())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn rules(case: &Path) -> ConfigRules {
    let mut rules = ConfigRules::default();
    let allowed = fs::read_to_string(case.join("allowed.txt")).unwrap_or_default();
    for line in allowed.lines() {
        match line.split_once(' ') {
            Some(("user", name)) => rules.users.insert(name.to_owned()),
            Some(("group", name)) => rules.groups.insert(name.to_owned()),
            Some(("role", _)) => true,
            Some(("from", "api-server")) => {
                rules.source = TextSource::ApiServer;
                true
            }
            _ => panic!("{}: {line}", case.display()),
        };
    }
    rules
}

fn roles(case: &Path) -> Vec<String> {
    let allowed = fs::read_to_string(case.join("allowed.txt")).unwrap_or_default();
    let roles = allowed
        .lines()
        .filter_map(|line| line.strip_prefix("role "));
    roles.map(str::to_owned).collect()
}

pub(super) fn result(
    directory: &Path,
    files: Vec<(String, Vec<u8>)>,
) -> Result<(MachineConfig, Vec<String>), Vec<Refusal>> {
    let mut local = LocalFiles::new(Root::open(directory).unwrap());
    for (name, _) in &files {
        local.text(name, AbsPath::root());
    }
    let roles = roles(directory);
    let gathering = ConfigLoader {
        shown: "all",
        rules: &rules(directory),
        local: &local,
        pool: "worker",
        order: match roles.len() {
            0 | 1 => MergeOrder::AsGiven,
            _ => MergeOrder::WorkerFirst,
        },
        roles: &roles,
    };
    let config = gathering.config(files, Vec::new());
    config.map_err(|refused| refused.refusals)
}

fn owner(user: &Option<Owner>, group: &Option<Owner>) -> String {
    let shown = |owner: &Option<Owner>| owner.as_ref().map_or("any".into(), Owner::to_string);
    format!("{}:{}", shown(user), shown(group))
}

fn mode(mode: Option<u32>) -> String {
    mode.map_or("any".into(), |mode| format!("{mode:04o}"))
}

fn accounts(text: &mut String, config: &MachineConfig) {
    for (name, user) in &config.users {
        let _ = writeln!(text, "user {name} {:?}", user.ssh_authorized_keys);
        if let Some(account) = &user.account {
            let json = serde_json::to_string(account).unwrap();
            let _ = writeln!(text, "  account {json}");
        }
    }
    for (name, group) in &config.groups {
        let _ = writeln!(
            text,
            "group {name} {}",
            serde_json::to_string(group).unwrap()
        );
    }
}

fn summary(config: &MachineConfig, warnings: &[String]) -> String {
    let mut text = String::new();
    for (path, file) in &config.files {
        let content = file
            .content
            .as_ref()
            .map(|content| content.bytes().unwrap());
        let shown = match content.map(|content| (content.len(), std::str::from_utf8(content))) {
            None => "any".to_owned(),
            Some((length, Ok(shown))) if length <= 80 => format!("{shown:?}"),
            Some((length, _)) => format!("{length} bytes"),
        };
        let owner = owner(&file.user, &file.group);
        let _ = writeln!(text, "file {path} {} {owner} {shown}", mode(file.mode));
    }
    for (path, directory) in &config.directories {
        let owner = owner(&directory.user, &directory.group);
        let _ = writeln!(text, "directory {path} {} {owner}", mode(directory.mode));
    }
    for (path, link) in &config.links {
        let owner = owner(&Some(link.user.clone()), &Some(link.group.clone()));
        let _ = writeln!(text, "link {path} {owner} -> {}", link.target);
    }
    for (name, unit) in &config.units {
        let _ = writeln!(
            text,
            "unit {name} enabled={:?} mask={}",
            unit.enabled, unit.mask
        );
        if let Some(contents) = &unit.contents {
            let _ = writeln!(text, "  contents {contents:?}");
        }
        for (name, contents) in &unit.dropins {
            let _ = writeln!(text, "  drop-in {name} {contents:?}");
        }
    }
    accounts(&mut text, config);
    for (what, values) in [
        ("kernel argument", &config.kernel_arguments),
        ("extension", &config.extensions),
        ("kernel type", &config.kernel_type.iter().cloned().collect()),
        ("OS image", &config.os_image_url.iter().cloned().collect()),
        (
            "extensions image",
            &config.extensions_image.iter().cloned().collect(),
        ),
    ] {
        for value in values {
            let _ = writeln!(text, "{what} {value}");
        }
    }
    for (section, entries) in &config.disk_layout {
        let _ = writeln!(text, "{section} {}", Value::from(entries.clone()));
    }
    if config.fips {
        text.push_str("fips\n");
    }
    for warning in warnings.iter().chain(&config.notes.0) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

#[test]
fn every_golden_input_gives_its_recorded_output() {
    let bless = std::env::var_os("MACHINIST_BLESS").is_some();
    let mut cases = 0;
    let mut different = String::new();
    for case in fs::read_dir(directory("tests/golden/input")).unwrap() {
        let case = case.unwrap().path();
        cases += 1;
        let got = match result(&case, files(&case)) {
            Ok((config, warnings)) => summary(&config, &warnings),
            Err(refusals) => refusals.iter().fold(String::new(), |mut text, refusal| {
                let _ = writeln!(text, "{refusal}");
                text
            }),
        };
        let expected = case.join("expected.txt");
        if bless {
            fs::write(&expected, &got).unwrap();
        }
        let wanted = fs::read_to_string(&expected).unwrap_or_default();
        if got != wanted {
            let name = case.file_name().unwrap().to_string_lossy();
            let _ = writeln!(different, "--- {name}: expected\n{wanted}--- got\n{got}");
        }
    }
    assert!(different.is_empty(), "{different}");
    assert!(cases >= 30, "only {cases} cases");
}

#[test]
fn the_example_machine_config_is_accepted() {
    let examples = directory("examples/machine");
    let (config, warnings) = result(&examples, files(&examples)).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let paths: Vec<&str> = config.files.keys().map(|path| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/etc/chrony.conf",
            "/etc/machinist/devices.d/fuse.yaml",
            "/etc/sysctl.d/90-inotify.conf",
            "/etc/systemd/journald.conf.d/10-size.conf",
        ]
    );
    let units: Vec<&str> = config.units.keys().map(|name| name.as_str()).collect();
    assert_eq!(
        units,
        ["apt-daily-upgrade.timer", "example-greeting.service"]
    );
    assert_eq!(config.users["core"].ssh_authorized_keys.len(), 1);
    assert!(config.files.values().all(|file| file.mode == Some(0o644)));
}

#[test]
fn the_stored_form_of_a_config_does_not_change_between_versions() {
    // Journals contain it, and digests are computed from it.
    let input = br#"{"ignition":{"version":"3.0.0"},
        "storage":{"files":[{"path":"/a","contents":{"source":"data:,hi"},"group":{"name":"adm"}}],
                   "directories":[{"path":"/d"}],"links":[{"path":"/l","target":"x"}]},
        "systemd":{"units":[{"name":"a.socket","mask":true,"dropins":[{"name":"b.conf"}]}]},
        "passwd":{"users":[{"name":"core","sshAuthorizedKeys":["k"]}]}}"#;
    let (config, _) = result(Path::new("/"), vec![("a.ign".into(), input.to_vec())]).unwrap();
    // Fields that the config does not set are omitted, and names have Ignition's default.
    let absent = String::from_utf8(machinist_ignition::to_canonical_json(&config)).unwrap();
    assert!(
        absent.contains(r#""directories":{"/d":{}},"links""#),
        "{absent}"
    );
    assert_eq!(
        machinist_ignition::from_canonical_json(absent.as_bytes()).unwrap(),
        MachineConfig {
            name: String::new(),
            ..config.clone()
        }
    );
    let (name, config) = (config.name.clone(), config.with_defaults().into_owned());
    let stored = String::from_utf8(machinist_ignition::to_canonical_json(&config)).unwrap();
    assert_eq!(
        stored,
        concat!(
            r#"{"schema":1,"config":{"files":{"/a":{"content":{"digest":"sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4","size":2},"mode":420,"user":0,"group":"adm"}},"#,
            r#""directories":{"/d":{"mode":493,"user":0,"group":0}},"#,
            r#""links":{"/l":{"target":"x","user":0,"group":0}},"#,
            r#""units":{"a.socket":{"contents":null,"dropins":{"b.conf":""},"enabled":null,"mask":true}},"#,
            r#""users":{"core":{"sshAuthorizedKeys":["k"]}},"kernelArguments":[],"osImageUrl":null,"#,
            r#""extensions":[],"kernelType":null,"fips":false}}"#
        )
    );
    let digest = machinist_ignition::digest(&config);
    assert_eq!(
        digest,
        machinist_base::digest::Digest::of(stored.as_bytes())
    );
    assert_eq!(name, format!("rendered-worker-{}", &digest.hex()[..32]));
}

#[test]
fn a_stored_config_of_another_schema_is_rejected() {
    let stored = machinist_ignition::to_canonical_json(&MachineConfig::default());
    let stored = String::from_utf8(stored).unwrap();
    let read = |text: &str| machinist_ignition::from_canonical_json(text.as_bytes());
    assert_eq!(read(&stored).unwrap(), MachineConfig::default());
    let newer = stored.replace(r#""schema":1"#, r#""schema":2"#);
    assert!(matches!(
        read(&newer),
        Err(CanonicalError::SchemaUnknown(2))
    ));
    let odd = stored.replace(r#""fips""#, r#""fops""#);
    for text in [&*odd, r#"{"schema":1,"config":{}}"#, r#"{"config":{}}"#, ""] {
        assert!(
            matches!(read(text), Err(CanonicalError::Syntax(_))),
            "{text}"
        );
    }
}

fn file_manifest(name: &str, role: &str, text: &str) -> (String, Vec<u8>) {
    let manifest = format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  \
         name: {name}\n  labels:\n    machineconfiguration.openshift.io/role: {role}\nspec:\n  \
         config:\n    ignition: {{version: 3.5.0}}\n    storage:\n      files:\n      \
         - path: /etc/x\n        contents: {{source: \"data:,{text}\"}}\n"
    );
    (format!("{name}.yaml"), manifest.into_bytes())
}

#[test]
fn a_custom_pools_configs_override_those_of_worker() {
    let files = vec![
        file_manifest("00-own", "infra", "own"),
        file_manifest("99-base", "worker", "base"),
        file_manifest("50-base", "worker", "middle"),
    ];
    let winner = |order| {
        let (documents, _) =
            documents_from_files(files.clone(), &ConfigRules::default(), &NoLocalFiles).unwrap();
        let (config, _) = merge(documents, "infra", order).unwrap();
        assert!(config.name.starts_with("rendered-infra-"));
        config.files[&"/etc/x".parse().unwrap()]
            .content
            .as_ref()
            .unwrap()
            .bytes()
            .unwrap()
            .to_vec()
    };
    assert_eq!(winner(MergeOrder::WorkerFirst), b"own");
    assert_eq!(winner(MergeOrder::AsGiven), b"middle");
}

#[test]
fn configs_without_metadata_name_are_merged_in_the_given_order() {
    let text = |name: &str| {
        let config = format!(
            r#"{{"ignition":{{"version":"3.2.0"}},"storage":{{"files":[{{"path":"/etc/y","contents":{{"source":"data:,{name}"}}}}]}}}}"#
        );
        (name.to_owned(), config.into_bytes())
    };
    let content = |files: Vec<(String, Vec<u8>)>, path: &str| {
        let (documents, _) =
            documents_from_files(files, &ConfigRules::default(), &NoLocalFiles).unwrap();
        let (config, _) = merge(documents, "worker", MergeOrder::WorkerFirst).unwrap();
        let file = &config.files[&path.parse().unwrap()];
        let bytes = file.content.as_ref().unwrap().bytes().unwrap().to_vec();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(
        content(vec![text("a.ign"), text("b.ign")], "/etc/y"),
        "b.ign"
    );
    assert_eq!(
        content(vec![text("b.ign"), text("a.ign")], "/etc/y"),
        "a.ign"
    );
    let manifests = [
        file_manifest("99-x", "worker", "99"),
        file_manifest("10-x", "worker", "10"),
    ];
    let [late, early] = manifests;
    let files = vec![late, text("b.ign"), early, text("a.ign")];
    assert_eq!(content(files.clone(), "/etc/y"), "a.ign");
    assert_eq!(content(files, "/etc/x"), "99");
}

#[test]
fn users_other_than_core_are_rejected_unless_allowed() {
    let config = br#"{"ignition":{"version":"3.5.0"},"passwd":{"users":[{"name":"bob"}]}}"#;
    let files = vec![("a.ign".to_owned(), config.to_vec())];
    assert!(documents_from_files(files.clone(), &ConfigRules::default(), &NoLocalFiles).is_err());
    let rules = ConfigRules {
        users: ["bob".to_owned()].into(),
        groups: Default::default(),
        ..ConfigRules::default()
    };
    assert!(documents_from_files(files, &rules, &NoLocalFiles).is_ok());
}

#[test]
fn only_files_with_config_extensions_are_read() {
    for name in ["a.yaml", "machine.d/a.yml", "a.json", "a.ign", "10-a.bu"] {
        assert!(machinist_ignition::is_config_name(name), "{name}");
    }
    for name in [
        ".a.yaml",
        "machine.d/.a.yaml.swp",
        ".yaml",
        "a.yaml~",
        "README.md",
        "a",
    ] {
        assert!(!machinist_ignition::is_config_name(name), "{name}");
    }
}
