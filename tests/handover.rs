//! A machine that machine-config-daemon has managed is adopted and handed back: the real binary on
//! a root as that daemon leaves it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "test code may panic; it plays machine-config-daemon"
)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::ConfigRules;
use machinist_plan::Policies;
use machinist_rootfs::Root;
use machinist_status::settings::Owners;
use machinist_update::{
    handover::{self, HandoverError},
    store::{self, StateStore},
};
use serde_json::{Value, json};

const CURRENT: &str = "etc/machine-config-daemon/currentconfig";

struct Machine(tempfile::TempDir);

fn url(text: &str) -> String {
    let bytes = text.bytes().map(|byte| format!("%{byte:02X}"));
    format!("data:,{}", bytes.collect::<String>())
}

fn file(path: &str, text: &str) -> Value {
    json!({"path": path, "mode": 0o644, "overwrite": true, "contents": {"source": url(text), "compression": ""}})
}

/// An object of a known type as a client in Go writes it: without kind and version.
fn rendered(name: &str, files: &[Value]) -> Value {
    json!({
        "metadata": {"name": name, "uid": "1", "annotations": {
            "machineconfiguration.openshift.io/generated-by-controller-version": "0a"}},
        "spec": {
            "osImageURL": "quay.io/os@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "kernelArguments": ["quiet"],
            "extensions": [],
            "fips": false,
            "kernelType": "default",
            "config": {
                "ignition": {"version": "3.5.0"},
                "storage": {"files": files},
                "systemd": {"units": [{
                    "name": "hello.service", "enabled": true,
                    "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
                    "dropins": [{"name": "10-x.conf", "contents": "[Service]\nNice=1\n"}],
                }]},
            },
        },
    })
}

impl Machine {
    /// Two files – one of which existed before – and a unit, as in the config.
    fn managed() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("etc/motd", "managed\n");
        machine.write("etc/chrony.conf", "server ntp\n");
        machine.write(
            "etc/systemd/system/hello.service",
            "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
        );
        machine.write(
            "etc/systemd/system/hello.service.d/10-x.conf",
            "[Service]\nNice=1\n",
        );
        let wants = machine.path("etc/systemd/system/multi-user.target.wants");
        fs::create_dir_all(&wants).unwrap();
        std::os::unix::fs::symlink(
            "/etc/systemd/system/hello.service",
            wants.join("hello.service"),
        )
        .unwrap();
        machine.write("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
        machine.write("etc/group", "root:x:0:\n");
        machine.write("proc/cmdline", "root=/dev/vda quiet\n");
        machine.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        let daemons = "etc/machine-config-daemon";
        machine.write(
            &format!("{daemons}/orig/etc/chrony.conf.mcdorig"),
            "as shipped\n",
        );
        let mode = fs::Permissions::from_mode(0o640);
        let original = machine.path(&format!("{daemons}/orig/etc/chrony.conf.mcdorig"));
        fs::set_permissions(original, mode).unwrap();
        for stamped in [
            "etc/motd",
            "etc/systemd/system/hello.service",
            "etc/systemd/system/hello.service.d/10-x.conf",
        ] {
            machine.write(&format!("{daemons}/noorig/{stamped}.mcdnoorig"), "");
        }
        machine.current(&rendered("rendered-worker-1", &machine.files()));
        machine
    }

    fn files(&self) -> Vec<Value> {
        vec![
            file("/etc/motd", "managed\n"),
            file("/etc/chrony.conf", "server ntp\n"),
        ]
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn current(&self, config: &Value) {
        self.write(CURRENT, &config.to_string());
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_machinist"))
            .env_clear()
            .args(arguments)
            .arg("--root")
            .arg(self.0.path())
            .output()
            .unwrap()
    }

    fn does(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {printed}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refuses(&self, arguments: &[&str]) -> String {
        let before = self.tree("");
        let output = self.run(arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {printed}");
        assert_eq!(self.tree(""), before, "{arguments:?}");
        printed
    }

    /// Everything below a directory except our own state: kind, mode, inode and content.
    fn tree(&self, below: &str) -> BTreeMap<String, (u32, u64, Vec<u8>)> {
        let mut all = BTreeMap::new();
        collect(self.0.path(), &self.path(below), &mut all);
        all
    }

    fn journal(&self) -> machinist_update::journal::Journal {
        store::peek(&Root::open(self.0.path()).unwrap()).unwrap()
    }
}

fn collect(top: &Path, dir: &Path, into: &mut BTreeMap<String, (u32, u64, Vec<u8>)>) {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        if name.starts_with("var/lib") || name.ends_with(".machinist") {
            continue;
        }
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            collect(top, &path, into);
            continue;
        }
        let held = match meta.is_symlink() {
            true => fs::read_link(&path).unwrap().display().to_string().into(),
            false => fs::read(&path).unwrap(),
        };
        into.insert(name, (meta.mode(), meta.ino(), held));
    }
}

#[test]
fn adopting_a_machine_writes_no_file_and_originals_are_restored_later() {
    let machine = Machine::managed();
    let before = machine.tree("");
    let page = machine.does(&["adopt", "--yes"]);
    assert!(
        page.contains("Taken over, current config: rendered-worker-1"),
        "{page}"
    );
    assert_eq!(machine.tree(""), before, "not one file is another");
    assert_eq!(machine.journal().base.unwrap().name, "rendered-worker-1");
    machine.does(&["verify"]);
    // Both files and the unit are removed from the config.
    let mut next = rendered("rendered-worker-2", &[file("/etc/new", "new\n")]);
    next["spec"]["config"]["systemd"] = json!({});
    (next["kind"], next["apiVersion"]) = (
        json!("MachineConfig"),
        json!("machineconfiguration.openshift.io/v1"),
    );
    let given = machine.path("next.json");
    fs::write(&given, next.to_string()).unwrap();
    machine.does(&["apply", "--yes", given.to_str().unwrap()]);
    assert_eq!(machine.read("etc/chrony.conf"), "as shipped\n");
    let mode = fs::metadata(machine.path("etc/chrony.conf")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o7777, 0o640);
    for gone in [
        "etc/motd",
        "etc/systemd/system/hello.service",
        "etc/systemd/system/hello.service.d/10-x.conf",
        "etc/systemd/system/multi-user.target.wants/hello.service",
    ] {
        assert!(
            fs::symlink_metadata(machine.path(gone)).is_err(),
            "{gone} stays"
        );
    }
    assert_eq!(machine.read("etc/new"), "new\n");
}

#[test]
fn releasing_and_adopting_again_keeps_every_byte() {
    let machine = Machine::managed();
    let before = machine.tree("");
    machine.does(&["adopt", "--yes"]);
    let first = machine.journal();
    let printed = machine.does(&["release", "--yes", "-o", "json"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&printed["kind"], &printed["config"]),
        (&json!("Released"), &json!("rendered-worker-1"))
    );
    assert_eq!(machine.tree(""), before);
    let journal = machine.journal();
    assert!(journal.base.is_none() && journal.owned.is_empty() && journal.originals.is_empty());
    let kept = machine.path("var/lib/machinist/originals");
    let kept = fs::read_dir(kept).map(Iterator::count).unwrap_or_default();
    assert_eq!(kept, 0, "no original is left behind");
    machine.does(&["adopt", "--yes"]);
    assert_eq!(machine.tree(""), before);
    let again = machine.journal();
    assert_eq!((again.base, again.owned), (first.base, first.owned));
    assert_eq!(
        again.originals.keys().collect::<Vec<_>>(),
        first.originals.keys().collect::<Vec<_>>()
    );
}

#[test]
fn a_config_applied_after_adoption_is_released_with_its_originals() {
    let machine = Machine::managed();
    machine.write("etc/found", "found\n");
    machine.does(&["adopt", "--yes"]);
    let mut next = rendered(
        "rendered-worker-2",
        &[file("/etc/motd", "other\n"), file("/etc/found", "ours\n")],
    );
    (next["kind"], next["apiVersion"]) = (
        json!("MachineConfig"),
        json!("machineconfiguration.openshift.io/v1"),
    );
    let given = machine.path("next.json");
    fs::write(&given, next.to_string()).unwrap();
    machine.does(&["apply", "--yes", given.to_str().unwrap()]);
    machine.does(&["release", "--yes"]);
    let current: Value = serde_json::from_str(&machine.read(CURRENT)).unwrap();
    let name = current["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("rendered-machine-"), "{name}");
    assert_eq!(current["kind"], "MachineConfig");
    let files = current["spec"]["config"]["storage"]["files"].as_array();
    let mut paths: Vec<_> = files.unwrap().iter().map(|file| &file["path"]).collect();
    paths.sort_by_key(ToString::to_string);
    assert_eq!(paths, ["/etc/found", "/etc/motd"]);
    let kept = |path: &str| machine.path(&format!("etc/machine-config-daemon/{path}"));
    assert_eq!(
        fs::read_to_string(kept("orig/etc/found.mcdorig")).unwrap(),
        "found\n"
    );
    assert!(kept("noorig/etc/motd.mcdnoorig").exists());
    assert!(!kept("orig/etc/chrony.conf.mcdorig").exists(), "restored");
    assert_eq!(machine.read("etc/chrony.conf"), "as shipped\n");
    // The written journal can be read.
    machine.does(&["adopt", "--yes"]);
    assert_eq!(machine.journal().base.unwrap().name, name);
}

#[test]
fn adopting_a_drifted_disk_needs_force_and_then_reports_drift() {
    let machine = Machine::managed();
    machine.write("etc/motd", "edited\n");
    let page = |arguments: &[&str]| {
        let output = machine.run(arguments);
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = page(&["adopt", "--yes"]);
    assert!(shown.contains("/etc/motd"), "{shown}");
    assert!(!shown.contains("taken over"), "{shown}");
    let printed = machine.refuses(&["adopt", "--yes"]);
    assert!(printed.contains("--force"), "{printed}");
    let shown = page(&["adopt", "--yes", "--force"]);
    assert!(shown.contains("is taken over without changes"), "{shown}");
    assert_eq!(
        machine.read("etc/motd"),
        "edited\n",
        "nothing is written over"
    );
    assert_eq!(machine.run(&["verify"]).status.code(), Some(2));
    let printed = machine.refuses(&["release", "--yes"]);
    assert!(
        printed.contains("/etc/motd") && printed.contains("degraded"),
        "{printed}"
    );
    // A file that cannot be removed is named, and repeating the command finishes the release.
    machine.write("var/lib/machinist/held/kept", "");
    let printed = machine.refuses(&["release", "--yes", "--force"]);
    assert!(printed.contains("cannot remove"), "{printed}");
    assert!(!printed.contains("as a MachineConfig"), "{printed}");
    fs::remove_dir_all(machine.path("var/lib/machinist/held")).unwrap();
    machine.does(&["release", "--yes", "--force"]);
}

/// The content of a state file; two of the files only have to exist.
fn texts_of(path: &str) -> &'static [&'static str] {
    let empty = ["node-annotations.json", "machine-config-daemon-force"];
    match empty.iter().any(|name| path.ends_with(name)) {
        true => &["{}", ""],
        false => &["{}"],
    }
}

#[test]
fn adopt_is_refused_without_yes_or_while_machine_config_daemon_is_active() {
    let machine = Machine::managed();
    let text = machine.refuses(&["adopt"]);
    assert!(text.contains("--yes"), "{text}");
    let text = machine.refuses(&["release", "--yes"]);
    assert!(text.contains("nothing to return"), "{text}");
    for (path, about) in [
        (
            "etc/machine-config-daemon/node-annotations.json",
            "first boot",
        ),
        (
            "etc/ignition-machine-config-encapsulated.json",
            "first boot",
        ),
        ("run/machine-config-daemon-force", "full rewrite"),
        (
            "etc/machine-config-daemon/currentimage",
            "built in the cluster",
        ),
    ] {
        for text in texts_of(path) {
            machine.write(path, text);
            let text = machine.refuses(&["adopt", "--yes"]);
            assert!(
                text.contains(about) && text.contains(path),
                "{path}: {text}"
            );
        }
        fs::remove_file(machine.path(path)).unwrap();
    }
    machine.write("proc/41/comm", "machine-config-\n");
    machine.write("proc/41/cmdline", "/run/bin/machine-config-daemon\0start\0");
    let text = machine.refuses(&["adopt", "--yes"]);
    assert!(text.contains("PID 41"), "{text}");
    let config = machine.path("config.json");
    let mut other = rendered("other", &[]);
    (other["kind"], other["apiVersion"]) = (
        json!("MachineConfig"),
        json!("machineconfiguration.openshift.io/v1"),
    );
    other["spec"]
        .as_object_mut()
        .unwrap()
        .retain(|key, _| key == "config");
    fs::write(&config, other.to_string()).unwrap();
    let text = machine.refuses(&["apply", "--yes", config.to_str().unwrap()]);
    assert!(text.contains("PID 41"), "{text}");
    fs::remove_dir_all(machine.path("proc/41")).unwrap();
    machine.current(&json!({"spec": {}}));
    let text = machine.refuses(&["adopt", "--yes"]);
    assert!(text.contains("metadata.name"), "{text}");
    fs::remove_file(machine.path(CURRENT)).unwrap();
    let text = machine.refuses(&["adopt", "--yes"]);
    assert!(text.contains("currentconfig"), "{text}");
    let machine = Machine::managed();
    machine.does(&["adopt", "--yes"]);
    let text = machine.refuses(&["adopt", "--yes"]);
    assert!(text.contains("already managed by machinist"), "{text}");
}

#[test]
fn adopt_json_output_is_a_plan_without_changes() {
    let machine = Machine::managed();
    let plan: Value =
        serde_json::from_str(&machine.does(&["adopt", "--yes", "-o", "json"])).unwrap();
    assert_eq!(plan["kind"], "Plan");
    assert_eq!(plan["cost"], "None");
    assert_eq!(plan["changes"], json!([]));
    assert_eq!(plan["to"]["name"], "rendered-worker-1");
}

/// A root on which every operation fails from the `number`-th on, as if the process was killed.
fn failing_from(machine: &Machine, number: usize) -> Root {
    let count = AtomicUsize::new(0);
    let root = Root::open(machine.0.path()).unwrap();
    root.with_fault(Arc::new(move |_| {
        let dead = count.fetch_add(1, Ordering::Relaxed) >= number;
        dead.then(|| std::io::Error::other("dead"))
    }))
}

fn release_files(store: &StateStore) -> Result<Vec<(AbsPath, AbsPath)>, HandoverError> {
    handover::hand_over(store, &ConfigRules::default(), None)?.forget(store)
}

fn adopts(root: &Root) -> Result<(), HandoverError> {
    let found = handover::find(root, &ConfigRules::default())?;
    let capabilities = machinist_agent::read_only_capabilities(root, Owners::Auto);
    let policies = Policies::default();
    let looked = machinist_agent::adoption(root, found, capabilities, &policies);
    let adoption = tokio::runtime::Runtime::new().unwrap().block_on(looked)?;
    handover::adopt(&StateStore::open(root)?, &adoption, Vec::new()).map(drop)
}

#[test]
fn a_handover_killed_at_any_operation_is_all_or_nothing_and_repeatable() {
    let mut number = 0;
    loop {
        let machine = Machine::managed();
        let before = machine.tree("");
        let done = adopts(&failing_from(&machine, number)).is_ok();
        assert_eq!(machine.tree(""), before, "{number}");
        let journal = machine.journal();
        match journal.base.is_some() {
            true => assert_eq!((journal.owned.len(), journal.originals.len()), (5, 1)),
            false => {
                assert!(!done && journal.owned.is_empty(), "{number}");
                adopts(&Root::open(machine.0.path()).unwrap()).unwrap();
            }
        }
        if done {
            break;
        }
        number += 1;
    }
    assert!(number > 10, "{number}");
    for number in 0.. {
        let machine = Machine::managed();
        let whole = Root::open(machine.0.path()).unwrap();
        adopts(&whole).unwrap();
        let before = machine.tree("");
        let root = failing_from(&machine, number);
        let released = StateStore::open(&root).map_err(HandoverError::from);
        let done = released.and_then(|store| release_files(&store));
        assert_eq!(machine.tree(""), before, "{number}");
        if machine.journal().base.is_some() {
            let store = StateStore::open(&whole).unwrap();
            release_files(&store).unwrap();
        }
        assert!(machine.journal().base.is_none());
        adopts(&whole).unwrap();
        if done.is_ok() {
            break;
        }
    }
}
