//! Fixtures: single documents, and whole trees as JSON.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/last_version/data")
        .join(name)
}

/// Whether this fixture is to be written first.
pub(crate) fn is_wanted(name: &str) -> bool {
    std::env::var_os("UPDATE_STATE_FIXTURES").is_some() && !place(name).exists()
}

/// Writes a fixture.
pub(crate) fn write(name: &str, text: impl AsRef<[u8]>) {
    fs::create_dir_all(place("")).unwrap();
    fs::write(place(name), text).unwrap();
}

/// Reads a fixture.
pub(crate) fn read(name: &str) -> Vec<u8> {
    fs::read(place(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads a fixture that is one JSON document.
pub(crate) fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads a fixture; `write_it` makes its text if it is to be written first.
pub(crate) fn document(name: &str, write_it: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    if is_wanted(name) {
        write(name, write_it());
    }
    read(name)
}

/// Asserts that each old name reads as a value, no two as the same, in the order of `all`.
pub(crate) fn in_order<T: PartialEq + std::fmt::Debug>(read: &[T], all: &[T]) {
    let mut rest = all.iter();
    for one in read {
        assert!(
            rest.any(|known| known == one),
            "{one:?} is read twice, or out of order"
        );
    }
}

/// One object of a tree; the content of a file is text, or hexadecimal where it is not UTF-8.
#[derive(Serialize, Deserialize)]
struct Entry {
    path: String,
    mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Captures files, directories and links below `root`; sockets and device nodes belong to one machine.
fn capture(root: &Path, dir: &Path, into: &mut Vec<Entry>) {
    let mut paths: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        let about = fs::symlink_metadata(&path).unwrap();
        let mut entry = Entry {
            path: path.strip_prefix(root).unwrap().display().to_string(),
            mode: about.permissions().mode() & 0o7777,
            text: None,
            hex: None,
            link: None,
        };
        if about.is_symlink() {
            entry.link = Some(fs::read_link(&path).unwrap().display().to_string());
        } else if about.is_file() {
            match String::from_utf8(fs::read(&path).unwrap()) {
                Ok(text) => entry.text = Some(text),
                Err(bytes) => entry.hex = Some(hex(bytes.as_bytes())),
            }
        } else if !about.is_dir() {
            continue;
        }
        into.push(entry);
        if about.is_dir() {
            capture(root, &path, into);
        }
    }
}

/// Writes the tree below `root` as a fixture.
pub(crate) fn write_tree(name: &str, root: &Path) {
    let mut entries = Vec::new();
    capture(root, root, &mut entries);
    let text = serde_json::to_string_pretty(&entries).unwrap();
    write(name, text + "\n");
}

/// Recreates the tree of a fixture below `root`.
pub(crate) fn restore(name: &str, root: &Path) {
    for entry in json::<Vec<Entry>>(name) {
        let path = root.join(&entry.path);
        if let Some(link) = &entry.link {
            symlink(link, &path).unwrap();
            continue;
        }
        match (&entry.text, &entry.hex) {
            (Some(text), _) => fs::write(&path, text).unwrap(),
            (None, Some(hex)) => fs::write(&path, unhex(hex)).unwrap(),
            (None, None) => fs::create_dir_all(&path).unwrap(),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode)).unwrap();
    }
}
