//! Decides which changes a soft reboot makes effective: it restarts userspace and keeps the kernel,
//! its settings, and everything that runs before the root file system is mounted.

use super::enablement::unit_name;
use machinist_base::abs_path::AbsPath;

/// Paths that are read by the kernel, the boot loader, the initial RAM disk or early boot, or that
/// configure kernel state which survives a soft reboot: modules, block devices, mounts, devices,
/// sysctls, security policies, interfaces and packet filters. Paths below them are included.
const KERNEL_PATHS: &[&str] = &[
    "/boot",
    "/efi",
    "/etc/NetworkManager",
    "/etc/apparmor",
    "/etc/apparmor.d",
    "/etc/audit",
    "/etc/cryptsetup-initramfs",
    "/etc/cryptsetup-keys.d",
    "/etc/crypttab",
    "/etc/default/grub",
    "/etc/default/grub.d",
    "/etc/default/zramswap",
    "/etc/depmod.d",
    "/etc/dracut.conf",
    "/etc/dracut.conf.d",
    "/etc/firewalld",
    "/etc/fstab",
    "/etc/grub.d",
    "/etc/ima",
    "/etc/initramfs-tools",
    "/etc/integritytab",
    "/etc/iptables",
    "/etc/iscsi",
    "/etc/kernel",
    "/etc/kernel-img.conf",
    "/etc/keys",
    "/etc/lvm",
    "/etc/machine-id",
    "/etc/mdadm",
    "/etc/mdadm.conf",
    "/etc/mkinitcpio.conf",
    "/etc/mkinitcpio.conf.d",
    "/etc/mkinitcpio.d",
    "/etc/modprobe.conf",
    "/etc/modprobe.d",
    "/etc/modules",
    "/etc/modules-load.d",
    "/etc/multipath",
    "/etc/multipath.conf",
    "/etc/netplan",
    "/etc/network",
    "/etc/nftables",
    "/etc/nftables.conf",
    "/etc/nvme",
    "/etc/selinux",
    "/etc/sysconfig/grub",
    "/etc/sysconfig/ip6tables",
    "/etc/sysconfig/iptables",
    "/etc/sysconfig/kernel",
    "/etc/sysconfig/modules",
    "/etc/sysconfig/network",
    "/etc/sysconfig/network-scripts",
    "/etc/sysconfig/nftables.conf",
    "/etc/sysconfig/selinux",
    "/etc/sysctl.conf",
    "/etc/sysctl.d",
    "/etc/sysfs.conf",
    "/etc/sysfs.d",
    "/etc/systemd/network",
    "/etc/systemd/zram-generator.conf",
    "/etc/systemd/zram-generator.conf.d",
    "/etc/tuned",
    "/etc/udev",
    "/etc/veritytab",
    "/etc/zipl.conf",
    "/usr/lib/dracut",
    "/usr/lib/firmware",
    "/usr/lib/modules",
    "/usr/local/lib/firmware",
];

/// Prefixes of units of early boot: their work is done in the kernel or before this userspace
/// starts.
const EARLY_UNITS: &[&str] = &[
    "blk-availability.",
    "cryptsetup",
    "dracut-",
    "initrd-",
    "iscsi",
    "kmod-",
    "lvm2-",
    "mdmonitor",
    "multipathd.",
    "nvme",
    "ostree-",
    "plymouth-",
    "systemd-cryptsetup@",
    "systemd-fsck",
    "systemd-modules-load.",
    "systemd-remount-fs.",
    "systemd-sysctl.",
    "systemd-udev",
    "systemd-veritysetup@",
];

/// Whether a soft reboot makes the new content of this path effective.
pub(super) fn takes_path(path: &AbsPath) -> bool {
    let is_below = |top: &str| {
        let rest = path.as_str().strip_prefix(top);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    !KERNEL_PATHS.iter().any(|top| is_below(top))
}

/// Whether restarting this unit with the same kernel is sufficient.
pub(super) fn takes_unit(unit: &str) -> bool {
    let device = matches!(
        unit_name::kind(unit),
        "mount" | "swap" | "automount" | "device"
    );
    !device && !EARLY_UNITS.iter().any(|early| unit.starts_with(early))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_by_kernel_or_early_boot_need_a_full_reboot() {
        for (path, soft) in [
            ("/etc/app.conf", true),
            ("/etc/default/app", true),
            ("/etc/fstab.d/x", true),
            ("/usr/local/bin/app", true),
            ("/var/lib/app/x", true),
            ("/etc/fstab", false),
            ("/etc/modules-load.d/x.conf", false),
            ("/etc/modprobe.d/x.conf", false),
            ("/etc/dracut.conf.d/x.conf", false),
            ("/etc/selinux/config", false),
            ("/etc/default/grub", false),
            ("/boot/loader/entries/x.conf", false),
            ("/usr/lib/modules/6.1/x.ko", false),
        ] {
            assert_eq!(takes_path(&AbsPath::new(path).unwrap()), soft, "{path}");
        }
        for (unit, soft) in [
            ("dbus.service", true),
            ("app.socket", true),
            ("-.slice", true),
            ("-.mount", false),
            ("data.mount", false),
            ("systemd-modules-load.service", false),
            ("systemd-udevd.service", false),
        ] {
            assert_eq!(takes_unit(unit), soft, "{unit}");
        }
    }
}
