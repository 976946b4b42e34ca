//! Names files that are kept beside their successor.

use jiff::Timestamp;

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError};

/// Returns an unused name beside `path` for the object there: it adds the time, and a number if a name with this
/// second exists.
pub fn backup_path(root: &Root, path: &AbsPath, now: Timestamp) -> Result<AbsPath, RootError> {
    let now = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut kept = format!("{path}.{now}");
    let mut number = 1;
    loop {
        // A valid path stays valid with a suffix.
        let free = AbsPath::new(kept).unwrap_or_else(|_| path.clone());
        if root.stat(&free)?.is_none() {
            return Ok(free);
        }
        number += 1;
        kept = format!("{path}.{now}.{number}");
    }
}
