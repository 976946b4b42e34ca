//! State directories of the last version, at any point of an update: this version finishes that
//! update.
//!
//! A fixture is the whole machine as JSON. Inode numbers and birth times differ on every machine,
//! so the journal is kept as data and is adapted to the new objects. `UPDATE_STATE_FIXTURES=1`
//! writes fixtures with the version under test; do that once, with the version before the format
//! changes.

use std::{collections::BTreeMap, fs, path::Path};

use machinist::{
    digest::Digest,
    path::AbsPath,
    root::{Node, Object, Root, Tree},
    update::phase::Phase,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    case::{Case, MOUNTS},
    child::{Course, Order, Place},
    driver::boot,
    matrix::{finish, machine, must_be_old_or_new, rebooted},
    sandbox::{Sandbox, at},
};

const DIRECTORY: &str = "tests/crash/last_version";
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
    course: Course,
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
    fn of(sandbox: &Sandbox, course: Course, what: &str) -> Self {
        let root = sandbox.root();
        let tree = Tree::capture(&root).unwrap();
        let text = tree.content(JOURNAL).unwrap();
        let body = text.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        let objects = tree.0.iter().filter(|(path, _)| path.as_str() != JOURNAL);
        let objects = objects.map(|(path, node)| {
            let (kind, content) = match &node.object {
                Object::File(bytes) => ("file", Some(bytes.clone())),
                Object::Directory => ("directory", None),
                Object::Link(target) => ("link", Some(target.clone().into_bytes())),
                Object::Socket => ("socket", None),
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
                "file" => Object::File(content),
                "directory" => Object::Directory,
                "link" => Object::Link(String::from_utf8(content).unwrap()),
                _ => Object::Socket,
            }
        };
        let (uid, gid) = (0, 0);
        let nodes = self.objects.iter().map(|entry| {
            let node = Node {
                object: object(entry),
                mode: entry.mode,
                uid,
                gid,
                same: None,
            };
            (at(&entry.path), node)
        });
        let sandbox = Sandbox::holding(&Tree(nodes.collect()), MOUNTS);
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

/// Courses, with the phase or the operation at which the last version was killed.
fn points() -> Vec<(Course, Option<Phase>, Option<usize>)> {
    use Phase::*;
    let entering = [
        (Course::Restart, Planned),
        (Course::Restart, Waiting),
        (Course::Restart, Staging),
        (Course::Restart, Committing),
        (Course::Restart, Acting),
        (Course::Restart, Verifying),
        (Course::Reboot, Draining),
        (Course::Reboot, Drained),
        (Course::Reboot, RebootPending),
        (Course::Undo, Undoing),
    ];
    let entering = entering.map(|(course, phase)| (course, Some(phase), None));
    let operations = [110, 118, 125, 140].map(|number| (Course::Restart, None, Some(number)));
    entering.into_iter().chain(operations).collect()
}

fn write_fixtures() {
    let case = Case::everything();
    fs::create_dir_all(DIRECTORY).unwrap();
    for (course, phase, number) in points() {
        let index = |phase| Phase::ALL.iter().position(|known| *known == phase).unwrap();
        let place = match (phase, number) {
            (Some(phase), _) => Place::Entering(index(phase)),
            (None, number) => Place::Operation(number.unwrap()),
        };
        let sandbox = machine(&case);
        let order = Order {
            root: sandbox.path(""),
            course,
            place: Some(place),
        };
        let ended = order.run();
        assert!(ended.killed, "{course:?} {place:?}");
        if rebooted(&ended) {
            boot(&sandbox, "boot-2");
        }
        let point = phase.map_or_else(
            || format!("operation-{}", number.unwrap()),
            |it| it.name().into(),
        );
        let name = format!("{course:?}-{point}").to_lowercase();
        let fixture = Fixture::of(&sandbox, course, &name);
        let text = serde_json::to_string_pretty(&fixture).unwrap();
        fs::write(Path::new(DIRECTORY).join(name + ".json"), text + "\n").unwrap();
    }
}

#[test]
fn an_update_that_the_last_version_began_is_finished() {
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
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let fixture: Fixture = serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
        must_be_old_or_new(&case, &fixture.machine(), &fixture.what);
        finish(&case, &fixture.machine(), fixture.course, &fixture.what);
    }
}
