//! Names and paths of sockets.

use super::plugin_watcher_info::PLUGINS_REGISTRY_DIR;
use machinist_base::abs_path::{AbsPath, BadPath};
use machinist_device::{ResourceName, resource_name::hex16};

/// The device plugin directory. The path is built into the kubelet.
pub const DEVICE_PLUGIN_DIR: &str = "/var/lib/kubelet/device-plugins";
/// The kubelet's own socket in it.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Whether a file name is one of ours: `m-<16 hex>-<number>.sock`.
pub(super) fn is_ours(name: &str) -> bool {
    let parts = name
        .strip_prefix("m-")
        .and_then(|rest| rest.strip_suffix(".sock"));
    parts
        .and_then(|parts| parts.split_once('-'))
        .is_some_and(|(resource, number)| {
            let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            resource.len() == 16
                && resource.bytes().all(hex)
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// A hash of the resource name, which fits whatever its length: socket addresses hold 107 bytes.
pub(super) fn socket_path(resource: &ResourceName, number: u64) -> Result<AbsPath, BadPath> {
    let name = format!(
        "{DEVICE_PLUGIN_DIR}/m-{}-{number}.sock",
        hex16(resource.as_str())
    );
    AbsPath::new(name)
}

/// Whether a file name in the plugin watcher's directory is one of ours: `m-<16 hex>.sock`.
pub(super) fn is_found(name: &str) -> bool {
    let whole = name.strip_suffix(".sock");
    whole.is_some_and(|whole| is_ours(&format!("{whole}-0.sock")))
}

/// The path where the plugin watcher finds a resource. It is always the same: the watcher handles
/// the removal of a name before it handles the same name again, but different names in any order.
pub(super) fn found_path(resource: &ResourceName) -> Result<AbsPath, BadPath> {
    let name = format!("{PLUGINS_REGISTRY_DIR}/m-{}.sock", hex16(resource.as_str()));
    AbsPath::new(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_fit_and_are_recognised() {
        let name = ResourceName::new(format!("{}/{}", "a".repeat(240), "b".repeat(63))).unwrap();
        let path = socket_path(&name, u64::MAX).unwrap();
        assert!(path.as_str().len() <= 107, "{}", path.as_str().len());
        assert!(is_ours(path.file_name()) && !is_found(path.file_name()));
        let path = found_path(&name).unwrap();
        assert!(path.as_str().len() <= 107, "{}", path.as_str().len());
        assert!(is_found(path.file_name()) && !is_ours(path.file_name()));
        // Each resource has its own name.
        let other = ResourceName::new(format!("{}/{}", "a".repeat(240), "c".repeat(63))).unwrap();
        assert_ne!(found_path(&other), found_path(&name));
        assert_ne!(socket_path(&other, 1), socket_path(&name, 1));
        for other in [
            "kubelet.sock",
            "m-.sock",
            "m-0123456789abcdef-.sock",
            "m-0123456789ABCDEF-1.sock",
            "nvidia.sock",
        ] {
            assert!(!is_ours(other) && !is_found(other), "{other}");
        }
    }
}
