//! Resolves paths of entries by their text, and names those that a config must not write.

use machinist_base::abs_path::AbsPath;

/// Directories that must not be written: their content is created by the kernel or the running system and is lost
/// at every boot, and machinist's own state must not be a target of its own transactions.
const FORBIDDEN_DIRS: [(&str, &str); 6] = [
    ("/proc", "its contents are created by the kernel"),
    ("/sys", "its contents are created by the kernel"),
    ("/dev", "its contents are created by udev"),
    ("/run", "it is emptied at boot"),
    ("/var/run", "it is /run, which is emptied at boot"),
    ("/var/lib/machinist", "it contains machinist's own state"),
];

/// The name of the staging directory on each mount.
const STAGING_DIR_NAME: &str = ".machinist";

/// Why this path must not be written; none if it may.
pub fn place_fault(path: &AbsPath) -> Option<String> {
    allowed(path.clone()).err()
}

/// The path if it may be written, otherwise the reason.
pub(super) fn allowed(path: AbsPath) -> Result<AbsPath, String> {
    if path == AbsPath::root() {
        return Err("/ itself cannot be an entry".to_owned());
    }
    if path.components().any(|part| part == STAGING_DIR_NAME) {
        return Err(format!(
            "{path}: {STAGING_DIR_NAME} is reserved for machinist's staging directory"
        ));
    }
    let below = |above: &str| {
        let rest = path.as_str().strip_prefix(above);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match FORBIDDEN_DIRS.iter().find(|(above, _)| below(above)) {
        Some((above, why)) => Err(format!("{path} is below {above}: {why}")),
        None => Ok(path),
    }
}

/// The path from the top that a path means, resolved by its text alone as Butane does: without `.`,
/// `..` and empty parts; none if it leads above the top.
pub(super) fn without_dots(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}
