//! What a host with OSTree can change, and why it can change nothing.

use std::{fs, path::Path};

use machinist_plan::{HostKind, OsCapabilities, ProviderObstacle};
use machinist_rootfs::Root;
use machinist_update::os::{self, capabilities, provider};

use super::{ostree_files::Layout, ostree_host::OstreeHost};

/// libostree's extension for container images.
const EXTENSION: &str = "usr/libexec/libostree/ext/ostree-container";

/// Reads images for it.
const SKOPEO: &str = "usr/bin/skopeo";

/// A running host.
fn running_host(layout: Layout) -> OstreeHost {
    let host = OstreeHost::with_layout(layout);
    fs::create_dir_all(host.directory.path().join("run/systemd/system")).unwrap();
    host
}

fn capabilities_of(host: &OstreeHost) -> OsCapabilities {
    capabilities(&Root::open(host.directory.path()).unwrap())
}

fn write_file(host: &Path, path: &str, text: &str) {
    let path = host.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn replace_in(host: &Path, path: &str, from: &str, to: &str) {
    let before = fs::read_to_string(host.join(path)).unwrap();
    assert!(before.contains(from), "{path}: {before}");
    fs::write(host.join(path), before.replace(from, to)).unwrap();
}

/// A change of a host, and what it prevents.
type Case = (&'static str, Layout, fn(&Path), Option<ProviderObstacle>);

const IN_PROGRAM_AND_MOUNTS: &[Case] = &[
    (
        "ostree is missing",
        Layout::Debian,
        |host| fs::remove_file(host.join("usr/bin/ostree")).unwrap(),
        Some(ProviderObstacle::OldOstree),
    ),
    (
        "ostree cannot lock a staged deployment",
        Layout::RpmOstree,
        |host| replace_in(host, "usr/bin/ostree", "_finalization", "_finalize"),
        Some(ProviderObstacle::OldOstree),
    ),
    (
        "the root is a composefs image of bootc",
        Layout::Bootc,
        |host| replace_in(host, "proc/cmdline", " rw ", " rw composefs=0123abcd "),
        Some(ProviderObstacle::Composefs),
    ),
    (
        "another boot loader has started the kernel",
        Layout::Debian,
        |host| replace_in(host, "proc/cmdline", "BOOT_IMAGE=", "x="),
        Some(ProviderObstacle::OtherLoader),
    ),
    (
        "reboots load the kernel without the boot loader",
        Layout::Debian,
        |host| write_file(host, "etc/default/kexec", "LOAD_KEXEC=true\n"),
        Some(ProviderObstacle::Kexec),
    ),
    (
        "/boot is read-only without unshare",
        Layout::RpmOstree,
        |host| fs::remove_file(host.join("usr/bin/unshare")).unwrap(),
        Some(ProviderObstacle::GrubReadOnly),
    ),
    (
        "/boot is read-only and on a file system to which GRUB cannot write",
        Layout::RpmOstree,
        |host| {
            replace_in(
                host,
                "proc/1/mountinfo",
                "ext4 /dev/sda3",
                "btrfs /dev/sda3",
            )
        },
        Some(ProviderObstacle::GrubFileSystem),
    ),
    (
        "/boot is read-only and on a logical volume",
        Layout::RpmOstree,
        |host| write_file(host, "sys/dev/block/8:3/dm/uuid", "LVM-x\n"),
        Some(ProviderObstacle::GrubBlockDevice),
    ),
    (
        "/sysroot is on a logical volume, and /boot is not",
        Layout::RpmOstree,
        |host| write_file(host, "sys/dev/block/8:2/dm/uuid", "LVM-x\n"),
        None,
    ),
];

const IN_MENU: &[Case] = &[
    (
        "the running deployment has no boot entry",
        Layout::Debian,
        |host| replace_in(host, "proc/1/mountinfo", "/deploy/cd.0", "/deploy/cd.7"),
        Some(ProviderObstacle::OtherMenu),
    ),
    (
        "there are no boot entries",
        Layout::Bootc,
        |host| fs::remove_dir_all(host.join("boot/loader/entries")).unwrap(),
        Some(ProviderObstacle::OtherMenu),
    ),
    (
        "the root file system is no deployment",
        Layout::Debian,
        |host| {
            write_file(
                host,
                "proc/1/mountinfo",
                "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n",
            )
        },
        Some(ProviderObstacle::OtherMenu),
    ),
    (
        "the default is an entry of an administrator",
        Layout::Debian,
        |host| {
            let text = "menuentry mine {\nlinux /boot/mine quiet\n}\nset default=mine\n";
            write_file(host, "boot/grub/custom.cfg", text);
            write_file(host, "boot/mine", "kernel");
        },
        Some(ProviderObstacle::OtherMenu),
    ),
    (
        "GRUB has no environment block yet",
        Layout::Bootc,
        |host| fs::remove_file(host.join("boot/grub2/grubenv")).unwrap(),
        None,
    ),
    (
        "the default entry asks for a password",
        Layout::Debian,
        |host| {
            replace_in(host, "boot/loader/grub.cfg", "--unrestricted ", "");
            write_file(host, "boot/grub/custom.cfg", "set superusers=root\n");
        },
        Some(ProviderObstacle::GrubPassword),
    ),
    (
        "the default boot entry is for a user with a password",
        Layout::Bootc,
        |host| {
            let entry = "boot/loader/entries/ostree-2.conf";
            replace_in(host, entry, "\nlinux ", "\ngrub_users root\nlinux ");
            write_file(host, "boot/grub2/custom.cfg", "set superusers=root\n");
        },
        Some(ProviderObstacle::GrubPassword),
    ),
    (
        "only changes of boot entries ask for a password",
        Layout::Bootc,
        |host| {
            let entry = "boot/loader/entries/ostree-2.conf";
            replace_in(host, entry, "\nlinux ", "\ngrub_users $grub_users\nlinux ");
            write_file(host, "boot/grub2/custom.cfg", "set superusers=root\n");
        },
        None,
    ),
    (
        "only changes of the menu ask for a password",
        Layout::Debian,
        |host| write_file(host, "boot/grub/custom.cfg", "set superusers=root\n"),
        None,
    ),
];

#[test]
fn every_obstacle_to_deployments_is_found() {
    for (name, layout, change, expected) in IN_PROGRAM_AND_MOUNTS.iter().chain(IN_MENU) {
        let host = running_host(*layout);
        let before = capabilities_of(&host);
        assert_eq!(before.obstacle, None, "{name}: {before:?}");
        assert!(before.has_provider(), "{name}: {before:?}");
        change(host.directory.path());
        let can = capabilities_of(&host);
        assert_eq!(can.obstacle, *expected, "{name}");
        assert_eq!(can.has_provider(), expected.is_none(), "{name}");
        // A trial may come up with the obstacle, and its files are in the /etc of its deployment.
        let root = Root::open(host.directory.path()).unwrap();
        let provider = provider(&root, host.programs()).unwrap();
        assert!(provider.has_etc_per_deployment(), "{name}");
        assert_eq!(can.host, before.host, "{name}");
    }
}

/// Another program may be writing the menu, so that a menu that cannot be read is no obstacle yet.
#[test]
fn each_plan_looks_for_obstacles_again() {
    for (name, layout, change, expected) in IN_PROGRAM_AND_MOUNTS.iter().chain(IN_MENU) {
        let host = running_host(*layout);
        let root = Root::open(host.directory.path()).unwrap();
        let before = capabilities_of(&host);
        let refused = OsCapabilities::without_provider(before.host);
        assert_eq!(os::current_capabilities(&root, refused), before, "{name}");
        change(host.directory.path());
        let is_unreadable = matches!(
            expected,
            Some(ProviderObstacle::OtherMenu | ProviderObstacle::UnusualBootEntry)
        );
        let expected = match is_unreadable {
            true => before,
            false => capabilities_of(&host),
        };
        let now = os::current_capabilities(&root, before);
        assert_eq!(now, expected, "{name}");
        let now = os::current_capabilities(&root, refused);
        assert_eq!(now, capabilities_of(&host), "{name}");
    }
}

#[test]
fn images_need_the_extension_and_packages_need_rpm_ostree() {
    let (ostree, bootc, rpm_ostree) = (HostKind::Ostree, HostKind::Bootc, HostKind::RpmOstree);
    for (layout, kind, has_packages) in [
        (Layout::Debian, ostree, false),
        (Layout::Bootc, bootc, false),
        (Layout::RpmOstree, rpm_ostree, true),
        (Layout::BootcAndRpmOstree, bootc, true),
    ] {
        let host = running_host(layout);
        for (program, image) in [
            (None, false),
            (Some(EXTENSION), false),
            (Some(SKOPEO), true),
        ] {
            if let Some(program) = program {
                write_file(host.directory.path(), program, "");
            }
            let expected = OsCapabilities {
                image,
                kernel_arguments: true,
                kernel_type: has_packages,
                extensions: has_packages,
                ..OsCapabilities::without_provider(kind)
            };
            assert_eq!(capabilities_of(&host), expected, "{layout:?}");
        }
        // On a root without a running host, nothing can be changed.
        fs::remove_dir_all(host.directory.path().join("run/systemd")).unwrap();
        let can = capabilities_of(&host);
        assert_eq!(can.obstacle, Some(ProviderObstacle::OfflineRoot));
        assert!(!can.has_provider(), "{can:?}");
    }
}
