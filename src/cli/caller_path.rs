//! Paths that the caller names for a new file or socket. Other users may be able to write to the
//! directory, so it is walked and fixed before something is created there.

use std::path::Path;

use anyhow::bail;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{ExpectedObject, Root};

/// A path in a directory that stays the same directory, even if it is renamed.
pub(super) struct CallerPath {
    /// The root in which `path` is to be used.
    pub(super) root: Root,
    /// The path without links in its parents.
    pub(super) path: AbsPath,
}

/// Bits of a directory's mode: users may exchange only their own objects in it.
const STICKY: u32 = 0o1000;
/// Every user may create and remove objects in it.
const WRITABLE_FOR_OTHERS: u32 = 0o002;

impl CallerPath {
    /// Resolves `path` from the working directory.
    ///
    /// # Errors
    /// A link of another user is on the path, or an object of another user exists at it.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let whole = machinist_agent::plain(&std::path::absolute(path)?)?;
        let slash = Root::open(Path::new("/"))?;
        let way = slash.walk(&whole)?;
        let root = slash.pinned(&[&way]);
        if let Some(stat) = root.stat(&way.path)? {
            let own = ExpectedObject {
                users: &[],
                names: 1,
            };
            if let Some(why) = root.foreign_target(&way.path, &stat, &way.control, &own)? {
                bail!("{why}; name another path");
            }
        }
        let path = way.path;
        Ok(Self { root, path })
    }

    /// The same for a socket, which others must not be able to exchange while it is in use.
    pub(super) fn of_socket(path: &Path) -> anyhow::Result<Self> {
        let place = Self::of(path)?;
        let dir = place.path.parent().unwrap_or_else(AbsPath::root);
        let mode = place.root.stat(&dir)?.map_or(0, |stat| stat.mode);
        if mode & (STICKY | WRITABLE_FOR_OTHERS) == WRITABLE_FOR_OTHERS {
            bail!(
                "every user may exchange a socket in {dir} (mode {mode:04o}, not sticky); name another directory"
            );
        }
        Ok(place)
    }
}
