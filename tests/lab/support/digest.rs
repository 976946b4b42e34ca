//! A tree of files as seen from outside the machine: the oracle for "old or new, never a mix".

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Path as the machine names it → kind, mode, owner, and content or link target.
pub type Tree = BTreeMap<String, String>;

/// Everything at and below `paths` under `root`, without `excludes` and everything below them.
pub fn tree(root: &Path, paths: &[&str], excludes: &[&str]) -> Tree {
    let mut found = Tree::new();
    for path in paths {
        walk(root, path, excludes, &mut found)
            .unwrap_or_else(|e| panic!("cannot read {path} below {}: {e}", root.display()));
    }
    found
}

/// One digest for the whole tree, in hex.
pub fn digest(tree: &Tree) -> String {
    let lines = tree.iter().map(|(path, what)| format!("{path:?} {what}\n"));
    hex(&lines.collect::<String>().into_bytes())
}

/// The differences, one line per path, for the message of a failed comparison.
pub fn differences(before: &Tree, after: &Tree) -> Vec<String> {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let show = |tree: &Tree, path| tree.get(path).map_or("nothing", String::as_str).to_owned();
    paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| format!("{path}: {} -> {}", show(before, path), show(after, path)))
        .collect()
}

fn walk(root: &Path, path: &str, excludes: &[&str], found: &mut Tree) -> io::Result<()> {
    if excludes.contains(&path) {
        return Ok(());
    }
    match entry(root, path, excludes, found) {
        // A file may be removed while a running machine is read.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn entry(root: &Path, path: &str, excludes: &[&str], found: &mut Tree) -> io::Result<()> {
    let host = root.join(path.trim_start_matches('/'));
    let meta = fs::symlink_metadata(&host)?;
    let kind = meta.file_type();
    let what = if kind.is_file() {
        format!("file {}", hex(&fs::read(&host)?))
    } else if kind.is_symlink() {
        format!("link {:?}", fs::read_link(&host)?)
    } else if kind.is_dir() {
        "directory".to_owned()
    } else if kind.is_fifo() || kind.is_socket() {
        "fifo or socket".to_owned()
    } else {
        format!("device {}", meta.rdev())
    };
    let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    found.insert(path.to_owned(), format!("{mode:04o} {uid}:{gid} {what}"));
    if kind.is_dir() {
        for entry in fs::read_dir(&host)? {
            let name = entry?.file_name();
            let below = format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy());
            walk(root, &below, excludes, found)?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
