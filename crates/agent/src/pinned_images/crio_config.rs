//! The configuration file by which CRI-O protects images.

use std::{collections::BTreeSet, fmt::Write as _};

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError};

/// The file. CRI-O reads the files of this directory in the order of their names and keeps the last `pinned_images`:
/// this name comes after `50-pinned-images`, which machine-config-daemon may have left.
const DROP_IN: &str = "etc/crio/crio.conf.d/51-machinist-pinned-images";

/// The first line, by which the file is known as machinist's.
const HEADER: &str =
    "# Written by machinist from the PinnedImageSets of the node's pool; changes are lost.\n";

const MODE: u32 = 0o644;
/// Bytes of the largest file.
const MAX_BYTES: u64 = 32 << 20;

/// Why the file cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum CrioConfigError {
    /// A file system call failed.
    #[error(transparent)]
    File(#[from] RootError),
    /// Another client has created a file of this name.
    #[error("{0} was not written by machinist, and is left unchanged")]
    Foreign(AbsPath),
}

/// The path of the file.
pub(super) fn path() -> AbsPath {
    let path = AbsPath::root().join(DROP_IN);
    path.unwrap_or_else(|_| AbsPath::root())
}

/// Whether machinist's file exists.
pub(super) fn is_present(root: &Root) -> Result<bool, RootError> {
    Ok(read(root)?.is_some_and(|text| text.starts_with(HEADER.as_bytes())))
}

/// Writes the file, or removes it if there are no images. Returns whether it has changed.
pub(super) fn apply(root: &Root, images: &BTreeSet<String>) -> Result<bool, CrioConfigError> {
    let path = path();
    let before = read(root)?;
    let is_foreign = |text: &Vec<u8>| !text.starts_with(HEADER.as_bytes());
    if before.as_ref().is_some_and(is_foreign) {
        return match images.is_empty() {
            true => Ok(false),
            false => Err(CrioConfigError::Foreign(path)),
        };
    }
    if images.is_empty() {
        root.remove_file(&path)?;
        return Ok(before.is_some());
    }
    let text = content(images);
    if before.as_deref() == Some(text.as_bytes()) {
        return Ok(false);
    }
    if let Some(dir) = path.parent() {
        root.make_dirs(&dir, 0o755)?;
    }
    root.replace(&path, text.as_bytes(), MODE)?;
    Ok(true)
}

fn read(root: &Root) -> Result<Option<Vec<u8>>, RootError> {
    match root.read(&path(), MAX_BYTES) {
        Err(error) if error.is_absent() => Ok(None),
        text => text.map(Some),
    }
}

/// The images are named by digest, and so have no character that needs an escape.
fn content(images: &BTreeSet<String>) -> String {
    let mut text = format!("{HEADER}[crio.image]\npinned_images = [\n");
    for image in images {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  \"{image}\",");
    }
    text.push_str("]\n");
    text
}
