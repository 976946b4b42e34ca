//! State directories of the last version, at any point of an update: this version finishes that
//! update.
//!
//! A fixture is the whole machine as JSON. Inode numbers and birth times differ on every machine,
//! so the journal is kept as data and is adapted to the new objects. `UPDATE_STATE_FIXTURES=1`
//! adds missing fixtures with the version under test; remove a fixture and do that only with the
//! version before the format changes. `tests/last_version.rs` does the same for all other state.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_rootfs::{Root, SnapshotNode, SnapshotObject, TreeSnapshot};
use machinist_update::phase::Phase;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::crash::{
    child::{Order, Place, RunMode},
    harness::boot,
    kill_matrix::{finish, machine, must_be_old_or_new, rebooted},
};
use machinist_testkit::{
    sandbox::{Sandbox, at},
    update_case::{Case, MOUNTS},
};

const DIRECTORY: &str = "tests/crash/state_upgrade";
const JOURNAL: &str = "/var/lib/machinist/journal";

/// One object of a fixture; the content of a file is text, or hexadecimal where it is not UTF-8.
#[derive(Serialize, Deserialize)]
struct Entry {
    path: String,
    kind: String,
    mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    identity: Identity,
}

/// The identity of an object in a journal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Identity {
    ino: u64,
    birth: Option<(i64, u32)>,
}

#[derive(Serialize, Deserialize)]
struct Fixture {
    course: RunMode,
    what: String,
    journal: Value,
    objects: Vec<Entry>,
}

fn identity(root: &Root, path: &AbsPath) -> Identity {
    let stat = root.stat(path).unwrap().unwrap();
    Identity {
        ino: stat.identity.ino,
        birth: stat.identity.birth,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

impl Fixture {
    fn of(sandbox: &Sandbox, course: RunMode, what: &str) -> Self {
        let root = sandbox.root();
        let tree = TreeSnapshot::capture(&root).unwrap();
        let text = tree.content(JOURNAL).unwrap();
        let body = text.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        let objects = tree.0.iter().filter(|(path, _)| path.as_str() != JOURNAL);
        let objects = objects.map(|(path, node)| {
            let (kind, content) = match &node.object {
                SnapshotObject::File(bytes) => ("file", Some(bytes.clone())),
                SnapshotObject::Directory => ("directory", None),
                SnapshotObject::Link(target) => ("link", Some(target.clone().into_bytes())),
                SnapshotObject::Socket => ("socket", None),
            };
            let text = content.clone().and_then(|it| String::from_utf8(it).ok());
            Entry {
                path: path.to_string(),
                kind: kind.into(),
                mode: node.mode,
                hex: content.filter(|_| text.is_none()).map(|it| hex(&it)),
                text,
                identity: identity(&root, path),
            }
        });
        Self {
            course,
            what: what.to_owned(),
            journal: serde_json::from_slice(body).unwrap(),
            objects: objects.collect(),
        }
    }

    /// Recreates the machine, with a journal that refers to the new objects.
    fn machine(&self) -> Sandbox {
        let object = |entry: &Entry| {
            let content = match (&entry.text, &entry.hex) {
                (Some(text), _) => text.clone().into_bytes(),
                (None, hex) => unhex(hex.as_deref().unwrap_or_default()),
            };
            match entry.kind.as_str() {
                "file" => SnapshotObject::File(content),
                "directory" => SnapshotObject::Directory,
                "link" => SnapshotObject::Link(String::from_utf8(content).unwrap()),
                _ => SnapshotObject::Socket,
            }
        };
        let (uid, gid) = (0, 0);
        let nodes = self.objects.iter().map(|entry| {
            let node = SnapshotNode {
                object: object(entry),
                mode: entry.mode,
                uid,
                gid,
                same: None,
            };
            (at(&entry.path), node)
        });
        let sandbox = Sandbox::holding(&TreeSnapshot(nodes.collect()), MOUNTS);
        // Its packages are this version's.
        sandbox.write_recovery_units();
        let root = sandbox.root();
        let new = self.objects.iter().map(|entry| {
            let now = identity(&root, &at(&entry.path));
            (entry.identity.clone(), now)
        });
        let mut journal = self.journal.clone();
        rename(&mut journal, &new.collect());
        sandbox.write(JOURNAL, &encoded(&journal));
        sandbox
    }
}

/// Replaces each identity that the map has.
fn rename(value: &mut Value, new: &BTreeMap<Identity, Identity>) {
    if let Some(now) = Identity::deserialize(&*value)
        .ok()
        .and_then(|known| new.get(&known))
    {
        value["ino"] = json!(now.ino);
        value["birth"] = json!(now.birth);
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, new)),
        Value::Object(fields) => fields.values_mut().for_each(|item| rename(item, new)),
        _ => {}
    }
}

/// The text form of schema 1, as the last version wrote it.
fn encoded(journal: &Value) -> String {
    let body = journal.to_string();
    let checksum = Digest::of(body.as_bytes());
    let header = json!({"machinistJournal": 1, "minReader": 1, "checksum": checksum});
    format!("{header}\n{body}\n")
}

/// Operations of a rollback whose journal names its phase, counted from the start of the process.
const UNDOING: [usize; 2] = [150, 165];

/// Where the last version was killed.
struct Point {
    course: RunMode,
    /// In the boot after the one in which the update began.
    after_the_reboot: bool,
    place: Place,
}

impl Point {
    fn name(&self) -> String {
        let of = |index: usize| Phase::ALL[index].name();
        let place = match self.place {
            Place::Entering(index) => of(index).to_owned(),
            Place::Leaving(index) => format!("after-{}", of(index)),
            Place::Operation(number) => format!("operation-{number}"),
        };
        format!("{:?}-{place}", self.course).to_lowercase()
    }
}

fn points() -> Vec<Point> {
    use Phase::*;
    let index = |phase| Phase::ALL.iter().position(|known| *known == phase).unwrap();
    let entering = [
        (RunMode::Restart, Planned),
        (RunMode::Restart, Waiting),
        (RunMode::Restart, Staging),
        (RunMode::Restart, Committing),
        (RunMode::Restart, RunningActions),
        (RunMode::Restart, Verifying),
        (RunMode::Reboot, DisablingDevices),
        (RunMode::Reboot, Draining),
        (RunMode::Reboot, Drained),
        (RunMode::Reboot, RebootPending),
        (RunMode::Reboot, Verifying),
        (RunMode::Reboot, Uncordoning),
        (RunMode::Undo, RollingBack),
    ];
    let entering = entering.map(|(course, phase)| Point {
        course,
        after_the_reboot: course == RunMode::Reboot && matches!(phase, Verifying | Uncordoning),
        place: Place::Entering(index(phase)),
    });
    let before = |course, place| Point {
        course,
        after_the_reboot: false,
        place,
    };
    let undone = before(RunMode::Undo, Place::Leaving(index(RollingBack)));
    let uncordoned = Point {
        after_the_reboot: true,
        ..before(RunMode::Reboot, Place::Leaving(index(Uncordoning)))
    };
    let operation = |course| move |number| before(course, Place::Operation(number));
    let operations = [110, 118, 125, 140].map(operation(RunMode::Restart));
    let undo = UNDOING.map(operation(RunMode::Undo));
    let all = entering.into_iter().chain([undone, uncordoned]);
    all.chain(operations).chain(undo).collect()
}

/// Writes the fixtures that are missing.
fn write_fixtures() {
    let case = Case::everything();
    fs::create_dir_all(DIRECTORY).unwrap();
    for point in points() {
        let (course, name) = (point.course, point.name());
        let file = Path::new(DIRECTORY).join(name.clone() + ".json");
        if file.exists() {
            continue;
        }
        let sandbox = machine(&case);
        let run = |place| {
            let root = sandbox.path("");
            let order = Order {
                root,
                course,
                place,
            };
            let ended = order.run();
            (ended.killed, rebooted(&ended))
        };
        if point.after_the_reboot {
            assert_eq!(run(None), (false, true), "{name}");
            boot(&sandbox, "boot-2");
        }
        let (killed, reboots) = run(Some(point.place));
        assert!(killed, "{name}");
        if reboots {
            boot(&sandbox, "boot-2");
        }
        let fixture = Fixture::of(&sandbox, course, &name);
        let text = serde_json::to_string_pretty(&fixture).unwrap();
        fs::write(file, text + "\n").unwrap();
    }
}

/// The phases that the journal of a fixture names.
fn phases_of(journal: &Value, into: &mut BTreeSet<String>) {
    match journal {
        Value::Array(items) => items.iter().for_each(|item| phases_of(item, into)),
        Value::Object(fields) => {
            for phase in fields
                .get("phases")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                into.insert(phase["name"].as_str().unwrap().to_owned());
            }
            fields.values().for_each(|item| phases_of(item, into));
        }
        _ => {}
    }
}

#[test]
fn an_update_begun_by_the_previous_version_is_finished() {
    if std::env::var_os("UPDATE_STATE_FIXTURES").is_some() {
        write_fixtures();
    }
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: the fixtures belong to root");
        return;
    }
    let case = Case::everything();
    let mut names: Vec<_> = fs::read_dir(DIRECTORY)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    assert!(names.len() >= points().len(), "{names:?}");
    let mut phases = BTreeSet::new();
    for name in names {
        let fixture: Fixture = serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
        phases_of(&fixture.journal, &mut phases);
        must_be_old_or_new(&case, &fixture.machine(), &fixture.what);
        finish(&case, &fixture.machine(), fixture.course, &fixture.what);
    }
    let named = phases.iter().map(|name| Phase::named(name).unwrap());
    let named: BTreeSet<_> = named.map(Phase::name).collect();
    // These are never saved, or only in a journal that no undo could mend.
    let unnamed = [
        Phase::Idle,
        Phase::Planned,
        Phase::Waiting,
        Phase::Fetching,
        Phase::Failed,
    ];
    let saved = Phase::ALL.into_iter().filter(|it| !unnamed.contains(it));
    assert_eq!(named, saved.map(Phase::name).collect());
}
