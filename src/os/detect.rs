//! Which kind of host a root is.

use crate::{path::AbsPath, plan::HostKind, root::Root};

/// What says that the tree is a deployment: libostree makes the first at boot; images carry the second, which
/// leads to the repository.
const OF_OSTREE: &[&str] = &["/run/ostree-booted", "/ostree"];

const RPM_OSTREE: &[&str] = &["/usr/bin/rpm-ostree"];
const BOOTC: &[&str] = &["/usr/bin/bootc"];

/// The databases of dpkg and rpm; Fedora moved the latter below `/usr/lib/sysimage` with release 36.
const OF_PACKAGES: &[&str] = &[
    "/var/lib/dpkg/status",
    "/usr/lib/sysimage/rpm",
    "/var/lib/rpm",
];

/// The kind of host below `root`. A host with rpm-ostree and bootc counts as rpm-ostree's, which can change more
/// of it (extensions, the kernel's type); image-based hosts have an rpm database too, so that packages come last.
///
/// What cannot be looked at is taken not to be there: that ends in a refusal, never in a change.
pub fn host_kind(root: &Root) -> HostKind {
    let any = |paths: &[&str]| paths.iter().any(|path| is_there(root, path));
    match any(OF_OSTREE) {
        true if any(RPM_OSTREE) => HostKind::RpmOstree,
        true if any(BOOTC) => HostKind::Bootc,
        true => HostKind::Ostree,
        false if any(OF_PACKAGES) => HostKind::Packages,
        false => HostKind::Unknown,
    }
}

fn is_there(root: &Root, path: &str) -> bool {
    let path = AbsPath::new(path).ok();
    path.is_some_and(|path| matches!(root.stat(&path), Ok(Some(_))))
}
