//! The examples on the pages match the input and output of the program.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use machinist_agent::config_dir::LocalFiles;
use machinist_base::abs_path::AbsPath;
use machinist_device::{Allowances, declaration};
use machinist_ignition::{ConfigRules, MergeOrder};
use machinist_rootfs::Root;
use serde_json::Value;

use super::{blocks, home, page};

/// The program's stdout.
pub(super) fn machinist(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn documented_declarations_are_valid_and_match_their_pods() {
    let yaml = blocks(&page("docs/devices.md"), "yaml");
    let (declarations, rest): (Vec<_>, Vec<_>) = yaml
        .iter()
        .partition(|text| text.contains("kind: DeviceDeclaration"));
    let pods: Vec<_> = rest
        .iter()
        .filter(|text| text.contains("kind: Pod"))
        .collect();
    assert_eq!((declarations.len(), pods.len()), (4, 4));
    for (text, pod) in declarations.iter().zip(pods) {
        let read = declaration::parse("docs/devices.md", text, &Allowances::default()).unwrap();
        assert!(pod.contains(&format!("{}: 1", read.resource)), "{pod}");
    }
}

#[test]
fn documented_configs_are_valid_and_both_formats_are_equivalent() {
    // The files that the page's Butane config reads.
    let beside = tempfile::tempdir().unwrap();
    fs::create_dir_all(beside.path().join("web")).unwrap();
    fs::create_dir_all(beside.path().join("files")).unwrap();
    fs::write(beside.path().join("web/index.html"), "hello").unwrap();
    fs::write(beside.path().join("files/motd"), "hello").unwrap();
    let unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";
    fs::write(beside.path().join("files/web.service"), unit).unwrap();
    let mut local = LocalFiles::new(Root::open(beside.path()).unwrap());
    local.text("a.bu", AbsPath::root());
    let mut rules = ConfigRules::default();
    rules.users.insert("ann".to_owned());
    let read = |text: &String, name: &str| {
        let files = vec![(name.to_owned(), text.clone().into_bytes())];
        let (documents, _) =
            machinist_ignition::documents_from_files(files, &rules, &local).unwrap();
        machinist_ignition::merge(documents, "machine", MergeOrder::AsGiven).unwrap()
    };
    let examples = blocks(&page("docs/config.md"), "yaml");
    assert_eq!(examples.len(), 5);
    let (reads_files, warnings) = read(&examples[0], "a.bu");
    assert!(reads_files.files.len() == 2 && warnings.is_empty());
    let (linked, _) = read(&examples[1], "linked.bu");
    assert!(linked.links.values().all(|link| link.hard));
    let (people, _) = read(&examples[2], "people.bu");
    assert!(people.users["ann"].account.is_some());
    let (manifest, _) = read(&examples[3], "a.yaml");
    let (butane, _) = read(&examples[4], "a.bu");
    assert_eq!(
        machinist_ignition::digest(&manifest),
        machinist_ignition::digest(&butane)
    );
    let nothing = blocks(&page("docs/operations.md"), "yaml");
    let (nothing, warnings) = read(&nothing[0], "nothing.yaml");
    assert!(nothing.files.is_empty() && nothing.units.is_empty() && warnings.is_empty());
}

#[test]
fn the_readme_names_the_config_of_the_example_machine() {
    let directory = home().join("examples/machine");
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    let entries = fs::read_dir(&directory).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| read(entry.unwrap()))
        .filter(|(name, _)| machinist_ignition::is_config_name(name))
        .collect();
    files.sort();
    let slash = Root::open(&directory).unwrap();
    let mut local = LocalFiles::new(slash);
    files
        .iter()
        .for_each(|(name, _)| local.text(name, AbsPath::root()));
    let rules = ConfigRules::default();
    let (documents, _) = machinist_ignition::documents_from_files(files, &rules, &local).unwrap();
    let (config, _) = machinist_ignition::merge(documents, "machine", MergeOrder::AsGiven).unwrap();
    let shown = page("README.md");
    assert!(
        shown.contains(&config.name),
        "README.md does not name {}",
        config.name
    );
}

/// Every path of keys in a document; elements of lists count as one.
fn keys(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let at = format!("{at}.{key}");
                keys(field, &at, into);
                into.insert(at);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, at, into)),
        _ => {}
    }
}

fn keys_of(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    keys(&serde_json::from_str(text).unwrap(), "", &mut found);
    found
}

#[test]
fn the_documented_status_has_the_snapshot_shape() {
    let pinned = home()
        .join("crates/status/src/snapshots/machinist_status__tests__status_json_matches_the_snapshot.snap");
    let pinned = fs::read_to_string(pinned).unwrap();
    let pinned = &pinned[pinned.find('{').unwrap()..];
    let shown = &blocks(&page("docs/interface.md"), "json")[0];
    assert_eq!(keys_of(shown), keys_of(pinned));
}

/// A plan of the program for `config`, on a root made of `files`.
pub(super) fn plan(root: &Path, config: &str) -> String {
    let file = root.join("config.yaml");
    fs::write(&file, config).unwrap();
    let arguments = ["plan", "-o", "json", "--root", root.to_str().unwrap()];
    machinist(&[&arguments[..], &[file.to_str().unwrap()]].concat())
}

pub(super) fn manifest(files: &[(&str, &str)]) -> String {
    let files = files.iter().map(|(path, text)| {
        serde_json::json!({"path": path, "contents": {"source": format!("data:,{text}")}})
    });
    let files: Vec<_> = files.collect();
    serde_json::json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": "a"},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}},
    })
    .to_string()
}

#[test]
fn the_documented_plan_has_the_shape_of_a_real_plan() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/a"), "old").unwrap();
    let good = plan(root.path(), &manifest(&[("/etc/a", "new")]));
    let bad = plan(root.path(), &manifest(&[("etc/a", "new")]));
    let served: BTreeSet<_> = keys_of(&good).union(&keys_of(&bad)).cloned().collect();
    let shown = keys_of(&blocks(&page("docs/interface.md"), "json")[1]);
    let of_actions = |key: &&String| key.starts_with(".actions.");
    let left: Vec<_> = shown
        .difference(&served)
        .filter(|key| !of_actions(key))
        .collect();
    assert!(left.is_empty(), "not served: {left:?}");
    let hidden: Vec<_> = served.difference(&shown).collect();
    assert!(hidden.is_empty(), "not shown: {hidden:?}");
}

#[test]
fn command_outputs_have_the_documented_shape() {
    let directory = tempfile::tempdir().unwrap();
    let (root, config) = (
        directory.path().join("root"),
        directory.path().join("a.yaml"),
    );
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::create_dir_all(root.join("dev")).unwrap();
    let settings = root.join("etc/machinist");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("machinist.yaml"), "update:\n  reboot: ask\n").unwrap();
    let declaration = &blocks(&page("docs/devices.md"), "yaml")[0];
    let declared = directory.path().join("fuse.yaml");
    fs::write(&declared, declaration).unwrap();
    fs::write(&config, manifest(&[("/etc/a", "new")])).unwrap();
    let below = root.to_str().unwrap();
    let said =
        |arguments: &[&str]| machinist(&[arguments, &["-o", "json", "--root", below]].concat());
    let applied = said(&["apply", "--yes", config.to_str().unwrap()]);
    let again = said(&["apply", "--yes", config.to_str().unwrap()]);
    assert_eq!(again, "null\n");
    let history = said(&["history"]);
    fs::write(root.join("etc/a"), "other").unwrap();
    let checked = said(&["devices", "check", declared.to_str().unwrap()]);
    assert!(checked.starts_with('['), "{checked}");
    let shown = blocks(&page("docs/interface.md"), "json");
    let update = keys_of(&shown[2]);
    // Nothing is restarted below an offline root.
    let quiet: BTreeSet<_> = update
        .iter()
        .filter(|key| !key.starts_with(".actions."))
        .cloned()
        .collect();
    for (shown, printed) in [
        (quiet.clone(), applied),
        (quiet, history),
        (keys_of(&shown[3]), said(&["verify"])),
        (keys_of(&shown[4]), said(&["explain"])),
        (keys_of(&shown[5]), said(&["settings"])),
    ] {
        assert_eq!(shown, keys_of(&printed), "{printed}");
    }
    let kinds = "`default`, `file`, `environment` or `flag`";
    assert!(page("docs/interface.md").contains(kinds));
    assert!(said(&["settings"]).contains(r#""kind": "file""#));
}
