//! What an earlier agent left in the directory of plugins for vendors whose files went while no agent ran.

use std::{collections::BTreeMap, sync::Arc};

use super::{DIRECTORY, Vendor, take_lock};
use crate::{
    kubelet::KUBELET_SOCKET,
    path::{AbsPath, BadPath},
    root::{Kind, Root, RootError},
    telemetry::chain,
};

/// Removes sockets that nobody serves and lists that nobody reads. Vendors' directories stay, since pods may have
/// them mounted. Does nothing while another agent serves here; `alone` says that none does.
pub(super) fn remove(root: &Root, declared: &BTreeMap<String, Arc<Vendor>>, alone: bool) {
    let Ok(directory) = AbsPath::new(DIRECTORY) else {
        return;
    };
    let removed = match root.is_dir(&directory) {
        Ok(true) => remove_in(root, &directory, declared, alone),
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
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
    for entry in root.list(directory)? {
        let list = entry.name.strip_suffix(".json");
        let left = match entry.kind {
            Kind::Directory if !declared.contains_key(&entry.name) => {
                socket(root, directory, &entry.name)?
            }
            Kind::File if list.is_some_and(|name| !declared.contains_key(name)) => {
                directory.join(&entry.name).ok()
            }
            _ => None,
        };
        stale.extend(left);
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

fn socket(root: &Root, directory: &AbsPath, name: &str) -> Result<Option<AbsPath>, RootError> {
    let path =
        |name: &str| -> Result<AbsPath, BadPath> { directory.join(name)?.join(KUBELET_SOCKET) };
    let Ok(path) = path(name) else {
        return Ok(None);
    };
    let stat = root.stat(&path)?;
    Ok(stat
        .is_some_and(|stat| stat.kind == Kind::Socket)
        .then_some(path))
}
