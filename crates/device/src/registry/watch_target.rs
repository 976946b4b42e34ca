//! Which directory is watched for changes of a path, and for which events.

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The events that are watched in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchDepth {
    /// Names that are created, deleted or renamed.
    Names,
    /// Names, and writes to the files as well.
    Content,
}

/// The nearest directory at or above `path` that exists.
pub(super) fn nearest_dir(root: &Root, path: &AbsPath) -> AbsPath {
    let mut all = std::iter::once(path.clone()).chain(path.ancestors());
    all.find(|dir| root.is_dir(dir).unwrap_or(false))
        .unwrap_or_else(AbsPath::root)
}

/// The watch for a directory of declarations: its names and content; while it does not exist, the
/// names in its nearest existing ancestor.
pub fn watch_for(root: &Root, dir: &AbsPath) -> (AbsPath, WatchDepth) {
    let nearest = nearest_dir(root, dir);
    let depth = if nearest == *dir {
        WatchDepth::Content
    } else {
        WatchDepth::Names
    };
    (nearest, depth)
}
