//! The state of an OpenShift node after its installation: its first config, and the next one of its
//! pool.

use serde_json::{Value, json};

/// The file in which machine-config-daemon keeps the config that is on disk.
pub const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";
/// The file with the parts of a MachineConfig that are not Ignition's, read at the first boot.
pub const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";

/// A rendered config with all fields that no update can change, its disk, and a file.
pub fn rendered(name: &str, disk: &str) -> Value {
    let image = format!("quay.io/openshift/os@sha256:{}", "a".repeat(64));
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name, "annotations": {
            "machineconfiguration.openshift.io/generated-by-controller-version": "v1",
        }},
        "spec": {
            "config": {"ignition": {"version": "3.4.0"}, "storage": {
                "files": [{"path": "/etc/a", "mode": 420, "contents": {"source": "data:,one"}}],
                "disks": [{"device": disk, "partitions": [{"label": "var", "sizeMiB": 5000}]}],
                "filesystems": [{"device": "/dev/disk/by-partlabel/var", "format": "xfs", "path": "/var"}],
                "luks": [{"name": "data", "device": "/dev/md/data"}],
                "raid": [{"name": "data", "level": "raid1", "devices": ["/dev/sdb", "/dev/sdc"]}],
            }},
            "osImageURL": image, "baseOSExtensionsContainerImage": image, "extensions": ["usbguard"],
            "fips": true, "kernelType": "realtime", "kernelArguments": [],
        },
    })
}
