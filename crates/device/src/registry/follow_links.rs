//! Follows links below the root, also where the last component is one.

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FileKind, Root, RootError, Stat};

/// The object to which `path` leads, and its path, with links followed.
pub fn follow(root: &Root, path: &AbsPath) -> Result<Option<(AbsPath, Stat)>, RootError> {
    let mut at = root.canonical(path)?;
    for _ in 0..machinist_rootfs::MAX_SYMLINKS {
        let Some(stat) = root.stat(&at)? else {
            return Ok(None);
        };
        if stat.kind != FileKind::Link {
            return Ok(Some((at, stat)));
        }
        let target = root.read_link(&at)?;
        let Some(next) = joined(&at, &target) else {
            return Ok(None);
        };
        at = root.canonical(&next)?;
    }
    Ok(None)
}

/// The path to which a link at `link` with the target `target` leads. The link's directory contains
/// no links, so a leading `..` can be resolved by name.
pub(super) fn joined(link: &AbsPath, target: &str) -> Option<AbsPath> {
    let mut base = link.parent()?;
    if target.starts_with('/') {
        base = AbsPath::root();
    }
    let mut rest = target.trim_start_matches('/').trim_end_matches('/');
    while let Some(up) = rest.strip_prefix("../") {
        base = base.parent().unwrap_or_else(AbsPath::root);
        rest = up;
    }
    base.join(rest.trim_start_matches("./")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_link_targets_are_resolved_by_name() {
        let link: AbsPath = "/dev/serial/by-id/usb".parse().unwrap();
        for (target, expected) in [
            ("../../ttyUSB0", Some("/dev/ttyUSB0")),
            ("/dev/null", Some("/dev/null")),
            ("./x", Some("/dev/serial/by-id/x")),
            ("../../../../../etc/shadow", Some("/etc/shadow")),
            ("a/../b", None),
            ("", None),
        ] {
            let got = joined(&link, target);
            assert_eq!(got.as_ref().map(AbsPath::as_str), expected, "{target}");
        }
    }
}
