//! A machine that the last version adopted from machine-config-daemon, and one that it released.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use machinist_rootfs::Root;
use machinist_update::store;
use serde_json::{Value, json};

use crate::last_version::fixture;

const ADOPTED: &str = "adopted.json";
const RELEASED: &str = "released.json";
const DAEMON: &str = "etc/machine-config-daemon";

fn run(root: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command.env_clear().args(arguments).arg("--root").arg(root);
    command.output().unwrap()
}

fn does(root: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = run(root, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output.stdout
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn file(path: &str, text: &str) -> Value {
    json!({"path": path, "mode": 0o644, "overwrite": true, "contents": {"source": format!("data:,{text}")}})
}

fn config(name: &str, files: &[Value]) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}},
    })
}

/// A machine that machine-config-daemon manages: it replaced one file, and brought another.
fn managed(root: &Path) {
    put(root, "etc/motd", "managed");
    put(root, "etc/chrony.conf", "server");
    put(root, "etc/found", "found");
    put(root, "etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    put(root, "etc/group", "root:x:0:\n");
    put(root, "proc/cmdline", "root=/dev/vda quiet\n");
    put(root, "etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    let original = format!("{DAEMON}/orig/etc/chrony.conf.mcdorig");
    put(root, &original, "as shipped");
    put(root, &format!("{DAEMON}/noorig/etc/motd.mcdnoorig"), "");
    let files = [
        file("/etc/motd", "managed"),
        file("/etc/chrony.conf", "server"),
    ];
    let config = config("rendered-worker-1", &files).to_string();
    put(root, &format!("{DAEMON}/currentconfig"), &config);
}

fn write_fixtures() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    managed(root);
    does(root, &["adopt", "--yes"]);
    if fixture::is_wanted(ADOPTED) {
        fixture::write_tree(ADOPTED, root);
    }
    // Another config, and a release of that one.
    let next = tempfile::tempdir().unwrap();
    let given = next.path().join("next.json");
    let files = [file("/etc/motd", "other"), file("/etc/found", "ours")];
    fs::write(&given, config("next", &files).to_string()).unwrap();
    does(root, &["apply", "--yes", given.to_str().unwrap()]);
    does(root, &["release", "--yes"]);
    if fixture::is_wanted(RELEASED) {
        fixture::write_tree(RELEASED, root);
    }
}

fn restored(name: &str) -> tempfile::TempDir {
    static WRITTEN: std::sync::Once = std::sync::Once::new();
    WRITTEN.call_once(|| {
        if fixture::is_wanted(ADOPTED) || fixture::is_wanted(RELEASED) {
            write_fixtures();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    fixture::restore(name, dir.path());
    dir
}

/// The content of every file but machinist's own state.
fn tree(dir: &Path, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("var/lib") {
            continue;
        }
        match path.is_dir() {
            true => tree(&path, into),
            false => drop(into.insert(
                path.display().to_string(),
                fs::read_to_string(&path).unwrap(),
            )),
        }
    }
}

fn whole(dir: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    tree(dir, &mut all);
    all
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn a_machine_adopted_by_the_last_version_is_released_with_its_originals() {
    let dir = restored(ADOPTED);
    let before = whole(dir.path());
    let printed = does(dir.path(), &["release", "--yes", "-o", "json"]);
    let printed: Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!(printed["config"], "rendered-worker-1");
    assert_eq!(whole(dir.path()), before);

    let dir = restored(ADOPTED);
    let owned = |root: &Root| {
        let owned = store::peek(root).unwrap().owned.into_keys();
        owned.map(|path| path.to_string()).collect::<Vec<_>>()
    };
    let root = Root::open(dir.path()).unwrap();
    assert_eq!(owned(&root), ["/etc/chrony.conf", "/etc/motd"]);
    let given = dir.path().join("next.json");
    fs::write(
        &given,
        config("next", &[file("/etc/new", "new")]).to_string(),
    )
    .unwrap();
    does(dir.path(), &["apply", "--yes", given.to_str().unwrap()]);
    assert_eq!(read(dir.path(), "etc/chrony.conf"), "as shipped");
    assert!(!dir.path().join("etc/motd").exists());
}

#[test]
fn a_machine_released_by_the_last_version_is_adopted_on_that_config() {
    let dir = restored(RELEASED);
    let before = whole(dir.path());
    let root = Root::open(dir.path()).unwrap();
    let released = store::peek(&root).unwrap();
    assert!(released.base.is_none() && released.owned.is_empty());
    assert_eq!(released.history.len(), 1, "the history stays");
    does(dir.path(), &["adopt", "--yes"]);
    assert_eq!(whole(dir.path()), before);
    let journal = store::peek(&root).unwrap();
    let base = journal.base.unwrap();
    assert_eq!(base.name, released.history[0].to);
    assert_eq!(base.digest, released.history[0].digest);
    let original = &journal.originals[&"/etc/found".parse().unwrap()];
    assert_eq!(read(dir.path(), &original.as_str()[1..]), "found");
}
