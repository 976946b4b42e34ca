//! Reads the user and group databases, and the defaults for new users.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_DATABASE_BYTES, text_if_there};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::Content;
use machinist_plan::{
    AccountFacts, Database, DatabaseEntries, Edit, MachineFacts, NewObject, NodeKind,
};
use machinist_rootfs::{FileKind, Root, RootError};

/// The skeleton of every new home.
const SKELETON_DIR: &str = "/etc/skel";

/// The shell that useradd(8) uses by default.
const DEFAULT_SHELL: &str = "/bin/sh";

/// Limits of the skeleton: file length, directory depth, and number of objects. A larger directory is not a
/// plausible skeleton.
const MAX_SKELETON_FILE_BYTES: u64 = 1 << 20;
const MAX_SKELETON_DEPTH: usize = 16;
const MAX_SKELETON_OBJECTS: usize = 1000;

/// Fills in the databases, the skeleton, and the default shell.
pub(super) fn add(root: &Root, kept: Vec<Edit>, seen: &mut MachineFacts) -> Result<(), RootError> {
    let mut databases = BTreeMap::new();
    for database in Database::ALL {
        match root.read_nofollow(&database.path(), MAX_DATABASE_BYTES) {
            Ok(bytes) => drop(databases.insert(database, DatabaseEntries::read(&bytes))),
            // A database that is not a regular file cannot be edited; the plan reports that.
            Err(RootError::WrongKind { .. }) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let mut left = MAX_SKELETON_OBJECTS;
    let skeleton = match AbsPath::new(SKELETON_DIR) {
        Ok(path) => directory(root, &path, MAX_SKELETON_DEPTH, &mut left)?,
        Err(_) => BTreeMap::new(),
    };
    seen.accounts = AccountFacts {
        databases,
        skeleton,
        shell: shell(root)?,
        missing_shells: BTreeSet::new(),
        kept,
    };
    Ok(())
}

fn shell(root: &Root) -> Result<String, RootError> {
    let text = text_if_there(root, "/etc/default/useradd", MAX_SKELETON_FILE_BYTES)?;
    let said = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("SHELL="));
    let said = said.map(|said| said.trim().trim_matches('"'));
    let good = said.filter(|said| AbsPath::new(*said).is_ok() && !said.contains(':'));
    Ok(good.unwrap_or(DEFAULT_SHELL).to_owned())
}

fn directory(
    root: &Root,
    path: &AbsPath,
    depth: usize,
    left: &mut usize,
) -> Result<BTreeMap<String, NewObject>, RootError> {
    let mut found = BTreeMap::new();
    for entry in super::list_if_there(root, path)? {
        let Ok(at) = path.join(&entry.name) else {
            continue;
        };
        let Some(stat) = root.stat(&at)? else {
            continue;
        };
        let kind = match stat.kind {
            _ if *left == 0 || depth == 0 => {
                tracing::warn!(path = %at, "skeleton directory too large: not copied to new home directories");
                continue;
            }
            FileKind::File => NodeKind::File(Content::new(
                root.read_nofollow(&at, MAX_SKELETON_FILE_BYTES)?,
            )),
            FileKind::Link => NodeKind::Link(root.read_link(&at)?),
            FileKind::Directory => NodeKind::Directory(directory(root, &at, depth - 1, left)?),
            _ => continue,
        };
        *left -= 1;
        let node = NewObject {
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            kind,
            label: None,
        };
        found.insert(entry.name, node);
    }
    Ok(found)
}
