//! The detection of the kind of host from a root.

use std::{fs, os::unix::fs::symlink};

use machinist_plan::HostKind;
use machinist_rootfs::Root;
use machinist_update::os::{capabilities, host_kind};

fn kind(paths: &[&str]) -> HostKind {
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        let at = dir.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        match path.strip_prefix("ostree") {
            // Where nothing is mounted, the link of an image is dangling.
            Some(_) => symlink("sysroot/ostree", at).unwrap(),
            None => fs::write(at, "").unwrap(),
        }
    }
    let root = Root::open(dir.path()).unwrap();
    let kind = host_kind(&root);
    let can = capabilities(&root);
    assert!(!can.has_provider(), "none is built in: {can:?}");
    assert_eq!(can.host, kind);
    kind
}

#[test]
fn host_os_kinds_are_detected_from_the_root() {
    let rpm_ostree = "usr/bin/rpm-ostree";
    let (bootc, booted, dpkg) = ("usr/bin/bootc", "run/ostree-booted", "var/lib/dpkg/status");
    let rpm = "usr/lib/sysimage/rpm/rpmdb.sqlite";
    for (paths, expected) in [
        (vec![], HostKind::Unknown),
        (vec![dpkg], HostKind::Packages),
        (vec![rpm], HostKind::Packages),
        (vec!["var/lib/rpm/Packages"], HostKind::Packages),
        (vec![booted, rpm, rpm_ostree], HostKind::RpmOstree),
        (vec![booted, rpm, rpm_ostree, bootc], HostKind::Bootc),
        (vec![booted, rpm, bootc], HostKind::Bootc),
        (vec!["ostree", rpm, bootc], HostKind::Bootc),
        (vec![booted, dpkg], HostKind::Ostree),
        // The programs alone, for building images, do not determine the kind of host.
        (vec![rpm, rpm_ostree, bootc], HostKind::Packages),
    ] {
        assert_eq!(kind(&paths), expected, "{paths:?}");
    }
}

/// Its kernel arguments name the image, so that copied ones would boot the old image after an update by bootc.
#[test]
fn a_composefs_image_is_no_host_with_packages() {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("usr/lib/sysimage/rpm/rpmdb.sqlite", ""),
        ("proc/cmdline", "root=UUID=1 composefs=0123abcd rw\n"),
    ] {
        let at = dir.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    }
    let root = Root::open(dir.path()).unwrap();
    assert_eq!(host_kind(&root), HostKind::Bootc);
}
