//! The mounts of the host, and the paths to which links lead.

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The mounts of the host, also where this process has others.
const MOUNTS_PATH: &str = "/proc/1/mountinfo";

/// Maximum length of that file.
const MAX_MOUNTS_BYTES: u64 = 4 << 20;

/// Returns the mounts of the host (proc_pid_mountinfo(5)).
pub(in crate::os) fn mounts(root: &Root) -> String {
    let path = AbsPath::new(MOUNTS_PATH).ok();
    path.and_then(|path| root.read_text(&path, MAX_MOUNTS_BYTES).ok())
        .unwrap_or_default()
}

pub(in crate::os) struct Mount<'t> {
    /// Major and minor number.
    pub(super) device: &'t str,
    /// The mount point.
    pub(in crate::os) point: &'t str,
    pub(in crate::os) fs_type: &'t str,
    pub(in crate::os) is_read_only: bool,
}

/// Returns the mount of a path (proc_pid_mountinfo(5)): the last one on the longest mount point.
pub(in crate::os) fn mount_of<'t>(mounts: &'t str, path: &str) -> Option<Mount<'t>> {
    let path = AbsPath::new(path).ok()?;
    let lines = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let device = fields.next()?;
        // A mount point with an escaped blank cannot be above this path.
        let point = fields.nth(1)?;
        let top = AbsPath::new(point).ok()?;
        let is_read_only = fields.next()?.split(',').any(|option| option == "ro");
        let fs_type = source.split(' ').next()?;
        let depth = top.components().count();
        let mount = Mount {
            device,
            point,
            fs_type,
            is_read_only,
        };
        path.is_under(&top).then_some((depth, mount))
    });
    // Of several equal ones, this is the last.
    lines
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, mount)| mount)
}

/// Returns the path to which the links lead, also the last one.
pub(in crate::os) fn real_path(root: &Root, path: &AbsPath) -> Option<AbsPath> {
    // The last component of a canonical path may be a link.
    let below = path.join("x").ok()?;
    root.canonical(&below).ok()?.parent()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
31 22 253:0 / /boot rw - ext4 /dev/mapper/boot rw
32 22 8:2 / /data\\040x rw - btrfs /dev/sda2 rw
";

    #[test]
    fn the_mount_of_a_path_is_the_one_on_the_longest_mount_point() {
        let device = |path: &str| mount_of(MOUNTS, path).map(|mount| mount.device);
        assert_eq!(device("/boot/grub"), Some("253:0"));
        assert_eq!(device("/bootx/grub"), Some("8:1"));
        assert_eq!(device("/etc"), Some("8:1"));
        assert!(mount_of("", "/etc").is_none());
        let over = format!("{MOUNTS}40 31 8:9 / /boot rw - vfat /dev/sda9 rw\n");
        let mount = mount_of(&over, "/boot/grub").unwrap();
        assert_eq!((mount.device, mount.fs_type), ("8:9", "vfat"));
    }
}
