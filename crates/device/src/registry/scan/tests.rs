use super::*;
use crate::discovery::DiscoveredDevice;

#[test]
fn nodes_removed_during_a_scan_are_not_found() {
    let path = |text: &str| AbsPath::new(text).unwrap();
    let sighted = |node: &str| DiscoveredDevice {
        nodes: vec![path(node).into()],
        ..DiscoveredDevice::default()
    };
    let mut discovered = Discovery::default();
    for id in ["a", "b"] {
        discovered
            .found
            .insert(id.to_owned(), sighted(&format!("/dev/{id}")));
    }
    let name = ResourceName::new("acme.dev/x").unwrap();
    let mut scan = Scan::default();
    scan.discoveries.insert(name.clone(), discovered);
    scan.remove_nodes(&[path("/dev/b")].into());
    let left: Vec<_> = scan.discoveries[&name].found.keys().collect();
    assert_eq!(left, ["a"]);
}

#[test]
fn a_device_has_the_numa_node_of_its_ancestor() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let put = |path: &str, text: &str| {
        let path: AbsPath = path.parse().unwrap();
        root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
        root.replace(&path, text.as_bytes(), 0o644).unwrap();
    };
    put("/sys/devices/pci0/0000:01/numa_node", "1\n");
    put("/sys/devices/pci0/0000:01/tty/ttyA/numa_node", "-1\n");
    put("/sys/devices/pci0/0000:02/numa_node", "-1\n");
    put("/sys/dev/char/keep", "");
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel makes these links, not the agent"
    )]
    for (number, to) in [("4:1", "pci0/0000:01/tty/ttyA"), ("4:2", "pci0/0000:02")] {
        let link = dir.path().join("sys/dev/char").join(number);
        std::os::unix::fs::symlink(format!("../../devices/{to}"), link).unwrap();
    }
    assert_eq!(
        sysfs_location(&root, FileKind::CharDevice, (4, 1)).numa,
        [1]
    );
    assert!(
        sysfs_location(&root, FileKind::CharDevice, (4, 2))
            .numa
            .is_empty()
    );
    assert!(
        sysfs_location(&root, FileKind::CharDevice, (4, 3))
            .numa
            .is_empty()
    );
}
