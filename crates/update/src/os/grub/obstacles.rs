//! Checks whether GRUB can try a deployment on this host.

use machinist_base::abs_path::AbsPath;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ProviderObstacle;
use machinist_rootfs::Root;

use super::{host_files::grub_directory, menu_source::MenuSource};
use crate::os::{MAX_COMMAND_LINE_BYTES, host_detection::is_there};

/// The file that grub-mkconfig writes on Debian. Other distributions do not read `/etc/default/grub.d`.
const DEBIAN_CONFIG: &str = "/boot/grub/grub.cfg";

/// The places of grub-mkconfig: Debian, then distributions with merged directories.
const MKCONFIG_PATHS: [&str; 2] = ["/usr/sbin/grub-mkconfig", "/usr/bin/grub-mkconfig"];

/// The file systems on which `save_env` can write: the rest is read-only in GRUB, or has no fixed blocks.
const WRITABLE_FILESYSTEMS: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "vfat", "msdos"];

/// The mounts of the host, also where this process has others.
const MOUNTS_PATH: &str = "/proc/1/mountinfo";

/// Maximum length of files of the kernel.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Returns the path of grub-mkconfig.
pub(in crate::os) fn grub_mkconfig(root: &Root) -> Option<String> {
    let exists = |path: &&str| is_there(root, path);
    let found = MKCONFIG_PATHS.iter().find(|path| exists(path));
    found.map(|path| (*path).to_owned())
}

/// Returns why GRUB cannot try a deployment here. A file that cannot be read counts as an obstacle.
pub(in crate::os) fn obstacle(root: &Root) -> Option<ProviderObstacle> {
    match MenuSource::of(root) {
        MenuSource::BlsConfig => loader_obstacle(root),
        MenuSource::GrubConfig if !is_there(root, DEBIAN_CONFIG) => Some(ProviderObstacle::NoGrub),
        MenuSource::GrubConfig => match grub_mkconfig(root) {
            None => Some(ProviderObstacle::NoGrubMkconfig),
            Some(_) => loader_obstacle(root),
        },
    }
}

/// Returns why GRUB cannot try a deployment, whatever writes its configuration.
pub(in crate::os) fn loader_obstacle(root: &Root) -> Option<ProviderObstacle> {
    let running = text(root, "/proc/cmdline", MAX_COMMAND_LINE_BYTES);
    let running = KernelCommandLine::parse(&running);
    if !running.iter().any(|one| one.name() == "BOOT_IMAGE") {
        return Some(ProviderObstacle::OtherLoader);
    }
    if loads_kexec(root) {
        return Some(ProviderObstacle::Kexec);
    }
    let mounts = mounts(root);
    match mount_of(&mounts, grub_directory(root)) {
        Some(mount) if !WRITABLE_FILESYSTEMS.contains(&mount.fs_type) => {
            Some(ProviderObstacle::GrubFileSystem)
        }
        Some(mount) if !is_plain_device(root, mount.device) => {
            Some(ProviderObstacle::GrubBlockDevice)
        }
        // The last one: it is no obstacle to every provider.
        Some(mount) if mount.is_read_only => Some(ProviderObstacle::GrubReadOnly),
        Some(_) => None,
        None => Some(ProviderObstacle::GrubFileSystem),
    }
}

/// Returns whether the settings of kexec-tools make reboots load the kernel without the boot loader.
pub(in crate::os) fn loads_kexec(root: &Root) -> bool {
    let settings = text(root, "/etc/default/kexec", MAX_FILE_BYTES);
    settings.lines().any(|line| {
        let value = line.trim().strip_prefix("LOAD_KEXEC=");
        value.is_some_and(|value| value.trim_matches(['"', '\'']) == "true")
    })
}

/// Returns the mounts of the host (proc_pid_mountinfo(5)).
pub(in crate::os) fn mounts(root: &Root) -> String {
    text(root, MOUNTS_PATH, MAX_FILE_BYTES)
}

pub(in crate::os) struct Mount<'t> {
    /// Major and minor number.
    device: &'t str,
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

/// Returns whether GRUB reaches the device, or the disk of a partition, without a layer that it can only read: LVM, RAID,
/// encryption.
fn is_plain_device(root: &Root, device: &str) -> bool {
    let link = AbsPath::new(format!("/sys/dev/block/{device}")).ok();
    let Some(directory) = link.and_then(|link| real_path(root, &link)) else {
        return false;
    };
    let disk = directory.parent();
    let mut devices = [Some(&directory), disk.as_ref()].into_iter().flatten();
    is_there(root, directory.as_str()) && devices.all(|device| is_plain(root, device))
}

fn is_plain(root: &Root, directory: &AbsPath) -> bool {
    let is_mapped = is_there(root, &format!("{directory}/dm"));
    let uuid = text(root, &format!("{directory}/dm/uuid"), MAX_FILE_BYTES);
    // Multipath is one disk to the firmware; its partitions are `part1-mpath-…`.
    let kind = uuid.split('-').find(|word| !word.starts_with("part"));
    (!is_mapped || kind == Some("mpath")) && !is_there(root, &format!("{directory}/md"))
}

/// Returns the path to which the links lead, also the last one.
pub(in crate::os) fn real_path(root: &Root, path: &AbsPath) -> Option<AbsPath> {
    // The last component of a canonical path may be a link.
    let below = path.join("x").ok()?;
    root.canonical(&below).ok()?.parent()
}

fn text(root: &Root, path: &str, most: u64) -> String {
    let path = AbsPath::new(path).ok();
    path.and_then(|path| root.read_text(&path, most).ok())
        .unwrap_or_default()
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

    #[test]
    fn every_obstacle_to_grub_is_found() {
        let host = tempfile::tempdir().unwrap();
        let root = Root::open(host.path()).unwrap();
        let write = |path: &str, text: &str| {
            let path = AbsPath::new(format!("/{path}")).unwrap();
            root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
            root.replace(&path, text.as_bytes(), 0o644).unwrap();
        };
        let expect = |expected: Option<ProviderObstacle>| assert_eq!(obstacle(&root), expected);
        expect(Some(ProviderObstacle::NoGrub));
        write("boot/grub/grub.cfg", "");
        expect(Some(ProviderObstacle::NoGrubMkconfig));
        write("usr/sbin/grub-mkconfig", "");
        write("proc/cmdline", "root=/dev/sda1 ro\n");
        expect(Some(ProviderObstacle::OtherLoader));
        write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro\n");
        write("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        expect(Some(ProviderObstacle::GrubBlockDevice));
        write("sys/dev/block/8:1/dev", "8:1\n");
        expect(None);
        write(
            "proc/1/mountinfo",
            "22 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n",
        );
        expect(Some(ProviderObstacle::GrubReadOnly));
        write("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        write("etc/default/kexec", "LOAD_KEXEC=false\n");
        expect(None);
        write("etc/default/kexec", "# on\nLOAD_KEXEC=\"true\"\n");
        expect(Some(ProviderObstacle::Kexec));
        write("etc/default/kexec", "");
        write("sys/dev/block/8:1/dm/uuid", "LVM-x\n");
        expect(Some(ProviderObstacle::GrubBlockDevice));
        write("sys/dev/block/8:1/dm/uuid", "part1-mpath-x\n");
        expect(None);
        write("sys/dev/block/8:1/dm/uuid", "part1-LVM-x\n");
        expect(Some(ProviderObstacle::GrubBlockDevice));
        // A partition of a RAID device.
        write("sys/devices/virtual/block/md126/md126p1/dev", "259:1\n");
        write("sys/devices/virtual/block/md126/md/level", "raid1\n");
        let link = AbsPath::new("/sys/dev/block/259:1").unwrap();
        let target = "../../devices/virtual/block/md126/md126p1";
        root.build_link(&link, target).unwrap();
        write(
            "proc/1/mountinfo",
            "22 1 259:1 / / rw - ext4 /dev/md126p1 rw\n",
        );
        expect(Some(ProviderObstacle::GrubBlockDevice));
        // A mount that is read-only does not hide it.
        write(
            "proc/1/mountinfo",
            "22 1 259:1 / / ro - ext4 /dev/md126p1 ro\n",
        );
        expect(Some(ProviderObstacle::GrubBlockDevice));
        write(
            "proc/1/mountinfo",
            "22 1 0:30 / / rw - btrfs /dev/sda1 rw\n",
        );
        expect(Some(ProviderObstacle::GrubFileSystem));
    }
}
