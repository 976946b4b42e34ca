//! Finds the running deployment among the mounts.

/// The stateroot and the name of the running deployment: the root file system, or /etc where that is a composefs image,
/// is mounted from `/ostree/deploy/STATEROOT/deploy/NAME` (proc_pid_mountinfo(5)).
pub(super) fn booted_deployment(mounts: &str) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (source, point) = (fields.next()?, fields.next()?);
        let (_, rest) = source.split_once("/ostree/deploy/")?;
        let (stateroot, rest) = rest.split_once("/deploy/")?;
        let name = rest.split('/').next()?;
        ["/", "/etc"].contains(&point).then_some((stateroot, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_deployment_is_a_mount() {
        let plain = "22 1 8:2 /ostree/deploy/debian/deploy/ab.0 / rw - ext4 /dev/sda2 rw\n\
                     23 22 8:2 /ostree/deploy/debian/var /var rw - ext4 /dev/sda2 rw\n";
        assert_eq!(booted_deployment(plain), Some(("debian", "ab.0")));
        let composefs = "22 1 0:31 / / ro - overlay composefs ro\n\
                         23 22 0:4 /root/ostree/deploy/os/deploy/cd.1/etc /etc rw - btrfs /dev/sda2 rw\n";
        assert_eq!(booted_deployment(composefs), Some(("os", "cd.1")));
        let other = "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n\
                     40 22 8:2 /ostree/deploy/debian/deploy/ab.0 /mnt rw - ext4 /dev/sda2 rw\n";
        assert_eq!(booted_deployment(other), None);
    }
}
