//! Checks of paths on the host. A result may be outdated at once, so paths are checked again whenever
//! they are passed to a container.

use super::{config_files::owner_fault, follow};
use crate::mount_allowlist;
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, Root};

/// The object found at the path of a device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathObject {
    /// A device node below `/dev`, with its path after following links.
    Device(AbsPath),
    /// The path does not exist.
    Absent,
    /// Something else; the text continues "it is".
    Other(String),
}

impl PathObject {
    /// Inspects `path`, with links followed.
    pub fn at(root: &Root, path: &AbsPath) -> Self {
        match follow(root, path) {
            Ok(None) => Self::Absent,
            Ok(Some((real, _))) if !real.as_str().starts_with("/dev/") => {
                Self::Other(format!("a link to {real}, outside /dev"))
            }
            Ok(Some((real, stat))) => match stat.kind {
                FileKind::CharDevice | FileKind::BlockDevice => Self::Device(real),
                kind => Self::Other(format!("a {}, not a device", kind.as_str())),
            },
            Err(error) => Self::Other(format!("unreadable ({})", chain(&error))),
        }
    }

    /// Whether a container may get the object at `path`; the error is the reason why not. With
    /// `present`, it must exist.
    pub fn check_object(&self, path: &AbsPath, present: bool) -> Result<(), String> {
        match self {
            Self::Other(why) => Err(format!("{path} is {why}")),
            Self::Absent if present => Err(format!("{path} does not exist")),
            Self::Absent | Self::Device(_) => Ok(()),
        }
    }
}

/// The path to hand out for a device node at `path`, which resolves to `real`. A link that only root
/// can change is handed out by its own name, which follows the device when it is plugged in again;
/// any other link as its checked target, since its owner may replace it before the runtime opens it.
pub fn path_for_container<'a>(root: &Root, path: &'a AbsPath, real: &'a AbsPath) -> &'a AbsPath {
    match path == real || root.is_lasting_name(path) {
        true => path,
        false => real,
    }
}

/// Whether `path` is a link made by udev, such as `/dev/serial/by-id/usb-FTDI`. Only root can change
/// such links, so the name reliably identifies a device. Below a root directory of an agent that is
/// not root, the agent's own user is trusted like root.
pub fn is_stable_name(root: &Root, path: &AbsPath) -> bool {
    let Some(dir) = path.parent() else {
        return false;
    };
    let is_below_dev = dir.parent().and_then(|above| above.parent());
    if !dir.file_name().starts_with("by-") || is_below_dev.is_none_or(|dev| dev.as_str() != "/dev")
    {
        return false;
    }
    let own = nix::unistd::geteuid().as_raw();
    let stat = |path: &AbsPath| root.stat(path).ok().flatten();
    let is_link =
        stat(path).is_some_and(|stat| stat.kind == FileKind::Link && [0, own].contains(&stat.uid));
    let above = std::iter::once(dir.clone()).chain(dir.parent());
    is_link
        && above.into_iter().all(|dir| {
            stat(&dir).is_some_and(|stat| {
                stat.kind == FileKind::Directory && owner_fault(&stat, own).is_none()
            })
        })
}

/// The allowed mount prefixes with links resolved: on some hosts `/opt` is a link itself.
#[derive(Debug)]
pub struct MountPrefixes(Vec<AbsPath>);

impl MountPrefixes {
    /// The prefixes for a resource of `domain`; `further` are those that the administrator added.
    pub fn of(root: &Root, domain: &str, further: &[AbsPath]) -> Self {
        let named = mount_allowlist::mount_prefixes(domain, further);
        let leads_to = |prefix: &AbsPath| Some(follow(root, prefix).ok()??.0);
        Self(named.iter().filter_map(leads_to).collect())
    }

    /// The resolved host path of a mount, whose unresolved path is already known to be allowed. The
    /// error is the reason why it must not be mounted; it names `who` if the path leads outside the
    /// prefixes.
    pub fn resolve_mount(&self, root: &Root, path: &AbsPath, who: &str) -> Result<AbsPath, String> {
        let (real, stat) = match follow(root, path) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(format!("{path} does not exist")),
            Err(error) => return Err(format!("{path} cannot be examined: {}", chain(&error))),
        };
        if !matches!(
            stat.kind,
            FileKind::Directory | FileKind::File | FileKind::Socket
        ) {
            return Err(format!("{path} is a {}", stat.kind.as_str()));
        }
        if self.0.iter().any(|prefix| real.is_under(prefix)) {
            return Ok(real);
        }
        Err(format!(
            "{path} leads to {real}, which {who} must not mount into containers"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "plays the outside world that makes files"
    )]
    fn a_device_link_is_stable_only_if_root_alone_can_change_it() {
        use std::{
            fs::Permissions,
            os::unix::fs::{PermissionsExt as _, symlink},
        };
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for (made, mode) in [
            ("serial/by-id", 0o755),
            ("disk/by-path", 0o777),
            ("acme", 0o755),
        ] {
            let made = dir.path().join("dev").join(made);
            std::fs::create_dir_all(&made).unwrap();
            symlink("../../ttyUSB0", made.join("link")).unwrap();
            std::fs::write(made.join("file"), "").unwrap();
            std::fs::set_permissions(made, Permissions::from_mode(mode)).unwrap();
        }
        for (path, expected) in [
            ("/dev/serial/by-id/link", true),
            ("/dev/serial/by-id/file", false),
            ("/dev/serial/by-id/gone", false),
            ("/dev/disk/by-path/link", false),
            ("/dev/acme/link", false),
            ("/dev", false),
        ] {
            let path = AbsPath::new(path).unwrap();
            assert_eq!(is_stable_name(&root, &path), expected, "{path}");
        }
        // Another user can change the target of their link at any time.
        if nix::unistd::geteuid().is_root() {
            let link = dir.path().join("dev/serial/by-id/link");
            std::os::unix::fs::lchown(link, Some(65534), None).unwrap();
            let path = AbsPath::new("/dev/serial/by-id/link").unwrap();
            assert!(!is_stable_name(&root, &path));
        }
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "plays the outside world that makes links"
    )]
    fn a_user_writable_link_is_allocated_as_its_checked_target() {
        use std::{
            fs::Permissions,
            os::unix::fs::{PermissionsExt as _, symlink},
        };
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for (made, mode) in [("dev/roots", 0o755), ("dev/users", 0o777)] {
            let made = dir.path().join(made);
            std::fs::create_dir_all(&made).unwrap();
            symlink("/dev/acme0", made.join("link")).unwrap();
            symlink("../users/link", made.join("chain")).unwrap();
            std::fs::set_permissions(made, Permissions::from_mode(mode)).unwrap();
        }
        // Write access to the device does not include changing the link.
        let node = dir.path().join("dev/acme0");
        std::fs::write(&node, "").unwrap();
        std::fs::set_permissions(node, Permissions::from_mode(0o666)).unwrap();
        let real = AbsPath::new("/dev/acme0").unwrap();
        for (path, kept) in [
            ("/dev/acme0", true),
            ("/dev/roots/link", true),
            ("/dev/roots/chain", false),
            ("/dev/users/link", false),
        ] {
            let path = AbsPath::new(path).unwrap();
            let expected = if kept { &path } else { &real };
            assert_eq!(path_for_container(&root, &path, &real), expected, "{path}");
        }
    }
}
