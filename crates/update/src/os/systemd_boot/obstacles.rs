//! Checks whether systemd-boot can try a deployment on this host.

use super::{
    BOOTCTL,
    efi_variables::{has_features, timeout},
    menu_files::MenuFiles,
    state::SystemdBootState,
};
use crate::os::{grub::loads_kexec, host_detection::is_there};
use machinist_plan::ProviderObstacle;
use machinist_rootfs::Root;

/// Returns why systemd-boot cannot try a deployment here. A file that cannot be read counts as an obstacle.
pub(in crate::os) fn obstacle(root: &Root) -> Option<ProviderObstacle> {
    if !has_features(root) {
        return Some(ProviderObstacle::OldSystemdBoot);
    }
    if !is_there(root, BOOTCTL) {
        return Some(ProviderObstacle::NoBootctl);
    }
    if loads_kexec(root) {
        return Some(ProviderObstacle::Kexec);
    }
    if MenuFiles::has_unified_kernel(root) {
        return Some(ProviderObstacle::UnifiedKernelImage);
    }
    if waits_for_key(root) {
        return Some(ProviderObstacle::MenuWaits);
    }
    let state = SystemdBootState::read(root).ok().filter(|state| {
        let entry = &state.default;
        entry.kernel.is_some() && entry.sort_key.is_some() && entry.version.is_some()
    });
    match state {
        None => Some(ProviderObstacle::UnusualBootEntry),
        Some(state) if state.files.is_read_only() => Some(ProviderObstacle::EntriesReadOnly),
        Some(_) => None,
    }
}

/// Whether the menu is shown until a key is pressed. The EFI variable goes before `loader.conf`.
fn waits_for_key(root: &Root) -> bool {
    let files = MenuFiles::read(root).ok();
    let timeout = timeout(root).or_else(|| files?.setting("timeout").map(str::to_owned));
    timeout.is_some_and(|timeout| timeout == "menu-force")
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_base::abs_path::AbsPath;
    use tempfile::TempDir;

    struct Host(TempDir);

    impl Host {
        fn write(&self, path: &str, bytes: &[u8]) {
            let root = Root::open(self.0.path()).unwrap();
            let path = AbsPath::new(format!("/{path}")).unwrap();
            root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
            root.replace(&path, bytes, 0o644).unwrap();
        }

        fn expect(&self, expected: Option<ProviderObstacle>) {
            let root = Root::open(self.0.path()).unwrap();
            assert_eq!(obstacle(&root), expected);
        }
    }

    #[test]
    fn every_obstacle_to_systemd_boot_is_found() {
        let host = Host(tempfile::tempdir().unwrap());
        let features =
            "sys/firmware/efi/efivars/LoaderFeatures-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        host.expect(Some(ProviderObstacle::OldSystemdBoot));
        host.write(features, &[6, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        host.expect(Some(ProviderObstacle::OldSystemdBoot));
        host.write(features, &[6, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0]);
        host.expect(Some(ProviderObstacle::NoBootctl));
        host.write("usr/bin/bootctl", b"");
        host.expect(Some(ProviderObstacle::UnusualBootEntry));
        host.write("proc/cmdline", b"root=/dev/sda2 ro\n");
        host.write("efi/vm/6.1/linux", b"kernel");
        let entry = "title Debian\nversion 6.1\nsort-key debian\noptions root=/dev/sda2 ro\nlinux /vm/6.1/linux\n";
        host.write("efi/loader/entries/vm-6.1.conf", entry.as_bytes());
        host.expect(Some(ProviderObstacle::UnusualBootEntry));
        host.write(
            "proc/1/mountinfo",
            b"31 22 8:1 / /efi rw - vfat /dev/sda1 rw\n",
        );
        host.expect(None);
        host.write(
            "efi/loader/loader.conf",
            b"timeout 3\n#timeout menu-force\n",
        );
        host.expect(None);
        host.write(
            "efi/loader/loader.conf",
            b"default x\ntimeout\tmenu-force\n",
        );
        host.expect(Some(ProviderObstacle::MenuWaits));
        let variable =
            "sys/firmware/efi/efivars/LoaderConfigTimeout-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        host.write(variable, b"\x07\0\0\x005\0\0\0");
        host.expect(None);
        host.write("efi/loader/loader.conf", b"timeout menu-hidden\n");
        host.write(variable, b"\x07\0\0\0m\0e\0n\0u\0-\0f\0o\0r\0c\0e\0\0\0");
        host.expect(Some(ProviderObstacle::MenuWaits));
        host.write(variable, b"");
        host.write("etc/default/kexec", b"LOAD_KEXEC=true\n");
        host.expect(Some(ProviderObstacle::Kexec));
        host.write("etc/default/kexec", b"");
        host.write("efi/EFI/Linux/debian.efi", b"");
        host.expect(Some(ProviderObstacle::UnifiedKernelImage));
        host.write("efi/EFI/Linux/debian.efi.old", b"");
        let root = Root::open(host.0.path()).unwrap();
        root.remove_file(&AbsPath::new("/efi/EFI/Linux/debian.efi").unwrap())
            .unwrap();
        host.expect(None);
        for key in [
            "sort-key debian\n",
            "version 6.1\n",
            "linux /vm/6.1/linux\n",
        ] {
            let entry = entry.replace(key, "");
            host.write("efi/loader/entries/vm-6.1.conf", entry.as_bytes());
            host.expect(Some(ProviderObstacle::UnusualBootEntry));
        }
    }

    #[test]
    fn directories_that_cannot_be_read_or_written_are_obstacles() {
        let host = Host(tempfile::tempdir().unwrap());
        host.write(
            "sys/firmware/efi/efivars/LoaderFeatures-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
            &[6, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0],
        );
        host.write("usr/bin/bootctl", b"");
        host.write("proc/cmdline", b"root=/dev/sda2 ro\n");
        host.write("efi/vm/6.1/linux", b"kernel");
        let entry =
            b"version 6.1\nsort-key debian\noptions root=/dev/sda2 ro\nlinux /vm/6.1/linux\n";
        host.write("efi/loader/entries/vm-6.1.conf", entry);
        for (options, expected) in [
            ("ro,relatime", Some(ProviderObstacle::EntriesReadOnly)),
            ("rw,relatime", None),
        ] {
            let mounts = format!("31 22 8:1 / /efi {options} - vfat /dev/sda1 rw\n");
            host.write("proc/1/mountinfo", mounts.as_bytes());
            host.expect(expected);
        }
        // The link leads to itself.
        let directory = AbsPath::new("/boot/EFI/Linux").unwrap();
        let root = Root::open(host.0.path()).unwrap();
        root.make_dirs(&directory.parent().unwrap(), 0o755).unwrap();
        root.build_link(&directory, "Linux").unwrap();
        host.expect(Some(ProviderObstacle::UnifiedKernelImage));
        root.remove_file(&directory).unwrap();
        host.expect(None);
    }
}
