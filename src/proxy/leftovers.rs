//! What a vendor of plugins left when its file went, while the agent ran or while none did. Vendors' directories stay,
//! since pods may have them mounted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{DIRECTORY, Vendor, take_lock};
use crate::{
    kubelet::KUBELET_SOCKET,
    path::{AbsPath, BadPath},
    root::{Kind, Root, RootError},
    telemetry::chain,
};

/// Removes what a vendor left that is none any more.
pub(super) fn remove_of(root: &Root, vendor: &Vendor) {
    tell(AbsPath::new(DIRECTORY).map(|directory| {
        let left = left_by(root, &directory, &vendor.name)?;
        left.iter().try_for_each(|path| root.remove_file(path))
    }));
}

/// Removes what vendors left whose files went while no agent ran. Does nothing while another agent serves here; `alone`
/// says that none does.
pub(super) fn remove(root: &Root, declared: &BTreeMap<String, Arc<Vendor>>, alone: bool) {
    tell(
        AbsPath::new(DIRECTORY).map(|directory| match root.is_dir(&directory)? {
            true => remove_in(root, &directory, declared, alone),
            false => Ok(()),
        }),
    );
}

fn tell(removed: Result<Result<(), RootError>, BadPath>) {
    if let Ok(Err(error)) = removed {
        tracing::warn!(
            "what plugins' vendors left that are none any more stays: {}",
            chain(&error)
        );
    }
}

fn remove_in(
    root: &Root,
    directory: &AbsPath,
    declared: &BTreeMap<String, Arc<Vendor>>,
    alone: bool,
) -> Result<(), RootError> {
    let mut stale = Vec::new();
    for name in vendors_in(root, directory)? {
        if !declared.contains_key(&name) {
            stale.extend(left_by(root, directory, &name)?);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let lock = match alone {
        true => None,
        false => match take_lock(root)? {
            Some(lock) => Some(lock),
            None => return Ok(()),
        },
    };
    for path in &stale {
        root.remove_file(path)?;
    }
    drop(lock);
    Ok(())
}

/// Whose directory or list lies there.
fn vendors_in(root: &Root, directory: &AbsPath) -> Result<BTreeSet<String>, RootError> {
    let entries = root.list(directory)?.into_iter();
    let vendors = entries.filter_map(|entry| match entry.kind {
        Kind::Directory => Some(entry.name),
        Kind::File => entry.name.strip_suffix(".json").map(str::to_owned),
        _ => None,
    });
    Ok(vendors.collect())
}

/// The socket that nobody serves, and the list that nobody reads.
fn left_by(root: &Root, directory: &AbsPath, name: &str) -> Result<Vec<AbsPath>, RootError> {
    let list = directory.join(&format!("{name}.json"));
    let socket = directory
        .join(name)
        .and_then(|own| own.join(KUBELET_SOCKET));
    let mut left = Vec::new();
    // What is no name for a file was left by nobody.
    for (path, kind) in [(list, Kind::File), (socket, Kind::Socket)] {
        let Ok(path) = path else { continue };
        if root.stat(&path)?.is_some_and(|stat| stat.kind == kind) {
            left.push(path);
        }
    }
    Ok(left)
}
