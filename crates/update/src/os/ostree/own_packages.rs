//! The list of packages that machinist has added to deployments, or has removed from images.

use super::layered_packages::PackageNames;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError};

/// The packages, one in each line. Others are never removed.
const OWN_PACKAGES: &str = "/var/lib/machinist/os-packages";

/// Maximum length of the list.
const MAX_LIST_BYTES: u64 = 1 << 20;

pub(super) fn own_packages(root: &Root) -> Result<PackageNames, RootError> {
    let Ok(path) = AbsPath::new(OWN_PACKAGES) else {
        return Ok(PackageNames::new());
    };
    match root.read_text(&path, MAX_LIST_BYTES) {
        Err(error) if error.is_not_found() => Ok(PackageNames::new()),
        text => Ok(text?.lines().map(str::to_owned).collect()),
    }
}

/// Records the packages, or removes the list of none.
pub(super) fn record_packages(root: &Root, packages: &PackageNames) -> Result<(), RootError> {
    let Ok(path) = AbsPath::new(OWN_PACKAGES) else {
        return Ok(());
    };
    if packages.is_empty() {
        return root.remove_file(&path);
    }
    let lines: String = packages.iter().map(|name| format!("{name}\n")).collect();
    root.replace(&path, lines.as_bytes(), 0o600)
}
