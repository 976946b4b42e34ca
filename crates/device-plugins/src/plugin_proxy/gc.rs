//! Removes the socket and the stored list of plugin vendors whose file was removed, with or without
//! a running agent. Vendors' directories stay, since pods may have them mounted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{VENDOR_DIRS_ROOT, Vendor, take_lock, vendor_directory::DirectoryError};
use crate::kubelet::KUBELET_SOCKET;
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, Root, RootError};

/// Removes them for a vendor whose file was removed while it was served.
pub(super) fn remove_of(root: &Root, vendor: &Vendor) {
    log_failure(remove_leftovers(root, &vendor.name));
}

/// Removes them for all vendors whose files were removed while no agent ran. Does nothing while
/// another agent serves here, unless `alone` is set, by which the caller guarantees that none does.
pub(super) fn remove(root: &Root, declared: &BTreeMap<String, Arc<Vendor>>, is_locked: bool) {
    log_failure(remove_undeclared(root, declared, is_locked));
}

fn log_failure(removed: Result<(), DirectoryError>) {
    if let Err(error) = removed {
        tracing::warn!(
            "failed to remove leftovers of vendors that no longer exist: {}",
            chain(&error)
        );
    }
}

fn remove_leftovers(root: &Root, name: &str) -> Result<(), DirectoryError> {
    for path in leftovers(root, &AbsPath::new(VENDOR_DIRS_ROOT)?, name)? {
        root.remove_file(&path)?;
    }
    Ok(())
}

fn remove_undeclared(
    root: &Root,
    declared: &BTreeMap<String, Arc<Vendor>>,
    is_locked: bool,
) -> Result<(), DirectoryError> {
    let directory = AbsPath::new(VENDOR_DIRS_ROOT)?;
    if !root.is_dir(&directory)? {
        return Ok(());
    }
    let mut stale = Vec::new();
    for name in vendors_in(root, &directory)? {
        if !declared.contains_key(&name) {
            stale.extend(leftovers(root, &directory, &name)?);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let lock = match is_locked {
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

/// The vendors that have a directory or a stored list here.
fn vendors_in(root: &Root, directory: &AbsPath) -> Result<BTreeSet<String>, RootError> {
    let entries = root.list(directory)?.into_iter();
    let vendors = entries.filter_map(|entry| match entry.kind {
        FileKind::Directory => Some(entry.name),
        FileKind::File => entry.name.strip_suffix(".json").map(str::to_owned),
        _ => None,
    });
    Ok(vendors.collect())
}

/// The vendor's leftover socket and list.
fn leftovers(root: &Root, directory: &AbsPath, name: &str) -> Result<Vec<AbsPath>, RootError> {
    let list = directory.join(&format!("{name}.json"));
    let socket = directory
        .join(name)
        .and_then(|own| own.join(KUBELET_SOCKET));
    let mut found = Vec::new();
    // A name that is no valid file name has no leftovers.
    for (path, kind) in [(list, FileKind::File), (socket, FileKind::Socket)] {
        let Ok(path) = path else { continue };
        if root.stat(&path)?.is_some_and(|stat| stat.kind == kind) {
            found.push(path);
        }
    }
    Ok(found)
}
