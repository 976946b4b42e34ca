//! Reads the user and group databases, and the defaults for new users.

use std::collections::BTreeMap;

use super::{LONGEST_DATABASE, text_if_there};
use crate::{
    machine_config::Content,
    path::AbsPath,
    plan::{AccountFacts, Database, Edit, Entries, Node, NodeKind, Observed},
    root::{Kind, Root, RootError},
};

/// The skeleton of every new home.
const SKELETON: &str = "/etc/skel";

/// The shell that useradd(8) uses by default.
const SHELL: &str = "/bin/sh";

/// Limits of the skeleton: file length, directory depth, and number of objects. A larger directory is not a
/// plausible skeleton.
const LONGEST: u64 = 1 << 20;
const DEEPEST: usize = 16;
const MOST: usize = 1000;

/// Fills in the databases, the skeleton, and the default shell.
pub(super) fn add(root: &Root, kept: Vec<Edit>, seen: &mut Observed) -> Result<(), RootError> {
    let mut databases = BTreeMap::new();
    for database in Database::ALL {
        match root.read_nofollow(&database.path(), LONGEST_DATABASE) {
            Ok(bytes) => drop(databases.insert(database, Entries::read(&bytes))),
            // A database that is not a regular file cannot be edited; the plan reports that.
            Err(RootError::WrongKind { .. }) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let mut left = MOST;
    let skeleton = match AbsPath::new(SKELETON) {
        Ok(path) => directory(root, &path, DEEPEST, &mut left)?,
        Err(_) => BTreeMap::new(),
    };
    seen.accounts = AccountFacts {
        databases,
        skeleton,
        shell: shell(root)?,
        kept,
    };
    Ok(())
}

fn shell(root: &Root) -> Result<String, RootError> {
    let text = text_if_there(root, "/etc/default/useradd", LONGEST)?;
    let said = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("SHELL="));
    let said = said.map(|said| said.trim().trim_matches('"'));
    let good = said.filter(|said| AbsPath::new(*said).is_ok() && !said.contains(':'));
    Ok(good.unwrap_or(SHELL).to_owned())
}

fn directory(
    root: &Root,
    path: &AbsPath,
    depth: usize,
    left: &mut usize,
) -> Result<BTreeMap<String, Node>, RootError> {
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
            Kind::File => NodeKind::File(Content::new(root.read_nofollow(&at, LONGEST)?)),
            Kind::Link => NodeKind::Link(root.read_link(&at)?),
            Kind::Directory => NodeKind::Directory(directory(root, &at, depth - 1, left)?),
            _ => continue,
        };
        *left -= 1;
        let node = Node {
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
