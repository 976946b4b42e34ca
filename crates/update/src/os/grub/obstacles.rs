//! Checks whether GRUB can try a deployment on this host.

use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::SimulatedGrub;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ProviderObstacle;
use machinist_rootfs::Root;

use super::{
    changed_files::ChangedFiles,
    host_files::{HostFiles, grub_directory},
    host_mounts::{mount_of, mounts, real_path},
    menu_source::MenuSource,
    state::RECORD_FAIL,
};
use crate::os::{MAX_COMMAND_LINE_BYTES, host_detection::is_there};

/// The file that grub-mkconfig writes on Debian. Other distributions do not read `/etc/default/grub.d`.
const DEBIAN_CONFIG: &str = "/boot/grub/grub.cfg";

/// The places of grub-mkconfig: Debian, then distributions with merged directories.
const MKCONFIG_PATHS: [&str; 2] = ["/usr/sbin/grub-mkconfig", "/usr/bin/grub-mkconfig"];

/// The file systems on which `save_env` can write: the rest is read-only in GRUB, or has no fixed blocks.
const WRITABLE_FILESYSTEMS: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "vfat", "msdos"];

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
    let directory = grub_directory(root);
    if is_there(root, &format!("{directory}/grub.cfg.sig")) {
        return Some(ProviderObstacle::GrubSignatures);
    }
    if menu_waits_for_key(root) {
        return Some(ProviderObstacle::MenuWaits);
    }
    let mounts = mounts(root);
    match mount_of(&mounts, directory) {
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

/// Returns whether GRUB waits for a key, always or after a boot that did not reach userspace, which Ubuntu records in
/// `recordfail`. A configuration that cannot be read is another obstacle.
fn menu_waits_for_key(root: &Root) -> bool {
    let Ok(ChangedFiles { environment, .. }) = ChangedFiles::read(root) else {
        return false;
    };
    let mut after_failure = environment.clone();
    after_failure.set(RECORD_FAIL, "1");
    let mut after_success = environment;
    after_success.unset(RECORD_FAIL);
    [after_failure, after_success].iter().any(|environment| {
        let files = HostFiles::new(root).with_environment(environment);
        files.is_ok_and(|files| {
            let mut grub = SimulatedGrub::new(&files, files.directory());
            grub.menu().is_ok() && !has_time_limit(grub.variable("timeout"))
        })
    })
}

/// Returns whether GRUB's menu has a time limit. Without a number, or if that is none of its integers, it waits for ever.
fn has_time_limit(timeout: &str) -> bool {
    let begin = timeout.trim_start();
    let end = begin.find(|c: char| !c.is_ascii_digit());
    let digits = begin.get(..end.unwrap_or(begin.len()));
    digits.is_some_and(|digits| digits.parse::<i32>().is_ok())
}

/// Returns whether the settings of kexec-tools make reboots load the kernel without the boot loader.
pub(in crate::os) fn loads_kexec(root: &Root) -> bool {
    let settings = text(root, "/etc/default/kexec", MAX_FILE_BYTES);
    settings.lines().any(|line| {
        let value = line.trim().strip_prefix("LOAD_KEXEC=");
        value.is_some_and(|value| value.trim_matches(['"', '\'']) == "true")
    })
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

fn text(root: &Root, path: &str, most: u64) -> String {
    let path = AbsPath::new(path).ok();
    path.and_then(|path| root.read_text(&path, most).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Root, path: &str, text: &str) {
        let path = AbsPath::new(format!("/{path}")).unwrap();
        root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
        root.replace(&path, text.as_bytes(), 0o644).unwrap();
    }

    #[test]
    fn every_obstacle_to_grub_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let write = |path: &str, text: &str| write(&root, path, text);
        let expect = |expected: Option<ProviderObstacle>| assert_eq!(obstacle(&root), expected);
        expect(Some(ProviderObstacle::NoGrub));
        write("boot/grub/grub.cfg", "set timeout=5\n");
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

    #[test]
    fn signed_files_and_a_menu_that_waits_are_obstacles() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let write = |path: &str, text: &str| write(&root, path, text);
        let expect = |expected: Option<ProviderObstacle>| assert_eq!(obstacle(&root), expected);
        write("boot/grub/grub.cfg", "");
        write("usr/sbin/grub-mkconfig", "");
        write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro\n");
        write("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        write("sys/dev/block/8:1/dev", "8:1\n");
        write("boot/grub/grub.cfg.sig", "");
        expect(Some(ProviderObstacle::GrubSignatures));
        root.remove_file(&AbsPath::new("/boot/grub/grub.cfg.sig").unwrap())
            .unwrap();
        // As Ubuntu's grub-mkconfig writes it with GRUB_RECORDFAIL_TIMEOUT=-1.
        let ubuntu = |after_failure: &str, after_success: &str| {
            format!(
                "load_env\nif [ \"${{recordfail}}\" = 1 ] ; then\n set timeout={after_failure}\nelse\n set \
                 timeout={after_success}\nfi\n"
            )
        };
        for (config, expected) in [
            (ubuntu("-1", "5"), Some(ProviderObstacle::MenuWaits)),
            (ubuntu("30", "-1"), Some(ProviderObstacle::MenuWaits)),
            (ubuntu("30", "0"), None),
            // GRUB_TIMEOUT is empty.
            (ubuntu("30", ""), Some(ProviderObstacle::MenuWaits)),
            (ubuntu("30", "5s"), None),
            (ubuntu("30", "five"), Some(ProviderObstacle::MenuWaits)),
            (ubuntu("30", "4294967295"), Some(ProviderObstacle::MenuWaits)),
            (String::new(), Some(ProviderObstacle::MenuWaits)),
            (
                "if [ x$feature_timeout_style = xy ] ; then\n set timeout_style=hidden\n set timeout=0\nfi\n".to_owned(),
                None,
            ),
        ] {
            write("boot/grub/grub.cfg", &config);
            expect(expected);
        }
    }
}
