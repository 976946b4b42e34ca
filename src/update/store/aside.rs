//! Names for what is kept beside its successor.

use jiff::Timestamp;

use crate::{
    path::AbsPath,
    root::{Root, RootError},
};

/// A free name beside `path` for what stands there now: with the time, and with a number where something
/// was put aside in the same second.
pub fn aside(root: &Root, path: &AbsPath, now: Timestamp) -> Result<AbsPath, RootError> {
    let now = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut kept = format!("{path}.{now}");
    let mut number = 1;
    loop {
        // What is added to a path leaves it one.
        let free = AbsPath::new(kept).unwrap_or_else(|_| path.clone());
        if root.stat(&free)?.is_none() {
            return Ok(free);
        }
        number += 1;
        kept = format!("{path}.{now}.{number}");
    }
}
