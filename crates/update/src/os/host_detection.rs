//! Detects which kind of host a root directory belongs to.

use super::running_arguments;
use machinist_base::abs_path::AbsPath;
use machinist_plan::HostKind;
use machinist_rootfs::Root;

/// Paths that mark an ostree deployment: libostree creates the first at boot, and images contain the second, a link
/// to the repository.
const OSTREE_MARKERS: &[&str] = &["/run/ostree-booted", "/ostree"];

const RPM_OSTREE_PATHS: &[&str] = &["/usr/bin/rpm-ostree"];
const BOOTC_PATHS: &[&str] = &["/usr/bin/bootc"];

/// Databases of dpkg and rpm. Fedora moved the rpm database below `/usr/lib/sysimage` in release 36.
const PACKAGE_DB_PATHS: &[&str] = &[
    "/var/lib/dpkg/status",
    "/usr/lib/sysimage/rpm",
    "/var/lib/rpm",
];

/// Returns the kind of the host below `root`. Images of Fedora and CentOS for bootc have rpm-ostree as well, and count as
/// bootc hosts. Image-based hosts contain an rpm database too, so the check for packages comes last.
///
/// A path that cannot be read counts as missing: that leads to a refused plan, never to a change.
pub fn host_kind(root: &Root) -> HostKind {
    let any = |paths: &[&str]| paths.iter().any(|path| is_there(root, path));
    match any(OSTREE_MARKERS) {
        true if any(BOOTC_PATHS) => HostKind::Bootc,
        true if any(RPM_OSTREE_PATHS) => HostKind::RpmOstree,
        true => HostKind::Ostree,
        false if is_composefs(root) => HostKind::Bootc,
        false if any(PACKAGE_DB_PATHS) => HostKind::Packages,
        false => HostKind::Unknown,
    }
}

/// Whether the kernel was started with the digest of a composefs image as root (`composefs=`), as bootc does on hosts
/// without OSTree. OSTree itself mounts such images without this argument.
pub(super) fn is_composefs(root: &Root) -> bool {
    let running = running_arguments(root).unwrap_or_default();
    running.iter().any(|one| one.name() == "composefs")
}

pub(super) fn is_there(root: &Root, path: &str) -> bool {
    let path = AbsPath::new(path).ok();
    path.is_some_and(|path| matches!(root.stat(&path), Ok(Some(_))))
}
