//! Derives the directory that contains staging directories and originals from a path in it.

use crate::store::paths;
use machinist_base::abs_path::AbsPath;

/// Returns `/var/lib/machinist` for a slot in its `tx/<id>`, and `<top>/.machinist` otherwise.
pub(super) fn holder(slot: &AbsPath) -> AbsPath {
    if slot.is_under(&paths::state_dir()) {
        return paths::state_dir();
    }
    slot.ancestors().nth(1).unwrap_or_else(AbsPath::root)
}

/// Returns the directory that [`holder`] returns for slots in `dir`.
pub(super) fn holder_of_staging(dir: &AbsPath) -> AbsPath {
    if dir.is_under(&paths::state_dir()) {
        return paths::state_dir();
    }
    dir.parent().unwrap_or_else(AbsPath::root)
}
