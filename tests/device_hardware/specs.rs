//! Devices of CDI specs: by name, by their content, and by claim.

use machinist_device::{Allowances, CdiDelivery};

use crate::device_hardware::Hardware;

#[test]
fn cdi_devices_are_allocated_by_name() {
    let hardware = Hardware::new();
    hardware.machine.plug("gpu0");
    let dir = hardware.machine.path("etc/cdi");
    std::fs::create_dir_all(&dir).unwrap();
    let device = |name: &str| {
        format!(
            r#"{{"name": "{name}", "containerEdits": {{"deviceNodes": [{{"path": "/dev/gpu{name}"}}]}}}}"#
        )
    };
    let devices = ["0", "1", "all"].map(device).join(",");
    let spec =
        format!(r#"{{"cdiVersion": "0.6.0", "kind": "acme.dev/gpu", "devices": [{devices}]}}"#);
    std::fs::write(dir.join("acme.json"), spec).unwrap();
    std::fs::write(dir.join("broken.json"), "{").unwrap();
    let spec = "  match: [{cdi: {kind: acme.dev/gpu}}]\n  container: {env: {GPU: \"{id}\"}}\n";
    let (resource, problems) = hardware.found(spec);
    assert!(problems[0].contains("broken.json"), "{problems:?}");
    assert_eq!(
        hardware.device_lines(spec),
        ["0: ", "1:  (/dev/gpu1 of acme.dev/gpu=1 does not exist)"]
    );
    let inventory = machinist_device::Inventory::default();
    let grant =
        machinist_device::allocation::allocate(&inventory, &resource, &["0".to_owned()]).unwrap();
    assert_eq!(
        (grant.cdi, grant.nodes.len()),
        (vec!["acme.dev/gpu=0".to_owned()], 0)
    );
    assert_eq!(grant.env["GPU"], "0");
}

#[test]
fn too_many_cdi_specs_are_reported_and_the_others_still_used() {
    let hardware = Hardware::new();
    let dirs = ["etc/cdi", "var/run/cdi"].map(|dir| hardware.machine.path(dir));
    let text = |kind: &str| {
        format!(
            "cdiVersion: 0.6.0\nkind: {kind}\ndevices:\n- {{name: g0, containerEdits: {{env: [A=1]}}}}\n"
        )
    };
    for dir in &dirs {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(dirs[0].join("acme.yaml"), text("acme.dev/gpu")).unwrap();
    for claim in 0..1024 {
        let file = format!("k8s.gpu.nvidia.com-claim_{claim}.yaml");
        std::fs::write(dirs[1].join(file), text("k8s.gpu.nvidia.com/claim")).unwrap();
    }
    let spec = "  match: [{cdi: {kind: acme.dev/gpu}}]\n";
    assert_eq!(hardware.device_lines(spec), ["g0: "]);
    let (_, problems) = hardware.found(spec);
    let message = "there are more than 1024 CDI specs: the rest are not read";
    assert!(problems[0].contains(message), "{problems:?}");
}

#[test]
fn cdi_devices_of_two_kinds_with_one_name_are_reported_and_the_first_kept() {
    let hardware = Hardware::new();
    let dir = hardware.machine.path("etc/cdi");
    std::fs::create_dir_all(&dir).unwrap();
    for kind in ["a", "b"] {
        let spec = format!(
            "cdiVersion: 0.6.0\nkind: acme.dev/{kind}\ndevices:\n- {{name: g0, containerEdits: {{env: [A=1]}}}}\n"
        );
        std::fs::write(dir.join(format!("{kind}.yaml")), spec).unwrap();
    }
    let spec = "  match: [{cdi: {kind: acme.dev/a}}, {cdi: {kind: acme.dev/b}}]\n";
    assert_eq!(hardware.device_lines(spec), ["g0: "]);
    let message = "acme.dev/b=g0 and acme.dev/a=g0 have the same id \"g0\"; the first is ignored";
    let (_, problems) = hardware.found(spec);
    assert!(problems[0].contains(message), "{problems:?}");
}

/// A machine whose spec has one device that machinist can pass on without CDI, and four that it
/// cannot.
fn with_a_spec() -> Hardware {
    let hardware = Hardware::new();
    for node in ["gpu0", "gpu1", "gpuctl"] {
        hardware.machine.plug(node);
    }
    for dir in ["etc/cdi", "usr/lib/acme"] {
        std::fs::create_dir_all(hardware.machine.path(dir)).unwrap();
    }
    let devices = [
        r#"{deviceNodes: [{path: /dev/gpu, hostPath: /dev/gpu0}], mounts: [{hostPath: /usr/lib/acme, containerPath: /acme, options: [ro, bind]}]}"#,
        "{deviceNodes: [{path: /dev/gpu1}], hooks: [{hookName: poststop, path: /opt/x}]}",
        "{deviceNodes: [{path: /dev/gpu1, major: 77}]}",
        "{mounts: [{hostPath: /opt/none, containerPath: /acme, options: [bind]}]}",
        "{deviceNodes: [{path: /dev/acme, hostPath: /usr/lib/acme}]}",
    ];
    let devices = devices.iter().enumerate();
    let devices: String = devices
        .map(|(n, edits)| format!("- {{name: g{n}, containerEdits: {edits}}}\n"))
        .collect();
    let spec = format!(
        "cdiVersion: 0.5.0\nkind: acme.dev/gpu\ndevices:\n{devices}containerEdits:\n  env: [\"ACME=a,b\"]\n  \
         deviceNodes: [{{path: /dev/gpuctl}}]\n"
    );
    std::fs::write(hardware.machine.path("etc/cdi/acme.yaml"), spec).unwrap();
    hardware
}

#[test]
fn without_cdi_support_cdi_edits_are_passed_as_device_plugin_fields() {
    let hardware = with_a_spec();
    let allowances = Allowances {
        cdi: CdiDelivery::Edits,
        ..Allowances::default()
    };
    let declared = "  match: [{cdi: {kind: acme.dev/gpu}}]\n";
    let (resource, problems) = hardware.found_where(declared, &allowances);
    assert_eq!(problems, [""; 0]);
    let why = |id: &str| resource.devices[id].reason.clone().unwrap_or_default();
    assert_eq!(why("g0"), "");
    for (id, message) in [
        (
            "g1",
            "/etc/cdi/acme.yaml: acme.dev/gpu=g1: containerEdits.hooks[0] (poststop /opt/x)",
        ),
        ("g2", "acme.dev/gpu=g2: /dev/gpu1 has major number"),
        (
            "g3",
            "/opt/none, which acme.dev/gpu=g3 mounts, does not exist",
        ),
        (
            "g4",
            "/usr/lib/acme of acme.dev/gpu=g4 is a directory, not a device node",
        ),
    ] {
        assert!(why(id).contains(message), "{}", why(id));
    }
    let inventory = machinist_device::Inventory::default();
    let granted = |ids: &[&str]| {
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        machinist_device::allocation::allocate(&inventory, &resource, &ids).unwrap()
    };
    let grant = granted(&["g0"]);
    let nodes = grant.nodes.iter();
    let nodes = nodes.map(|node| format!("{} {} {}", node.host, node.inside, node.permissions));
    assert!(nodes.eq(["/dev/gpuctl /dev/gpuctl rwm", "/dev/gpu0 /dev/gpu rwm"]));
    assert_eq!((grant.mounts.len(), grant.env["ACME"].as_str()), (1, "a,b"));
    assert!(grant.mounts[0].read_only && grant.cdi.is_empty());
    let claimed = format!("  serve: dra\n  capacity: {{memory: 16Gi, cores: 8}}\n{declared}");
    let (claimed, _) = hardware.found_where(&claimed, &allowances);
    let recipe = claimed.devices["g1"].recipe.as_ref().unwrap();
    assert_eq!(recipe.cdi.len(), 1, "with serve: dra it is always the name");
    let capacity = &claimed.devices["g1"].capacity;
    assert_eq!(capacity[&"memory".to_owned()].as_str(), "16Gi");
    assert_eq!(capacity[&"cores".to_owned()].as_str(), "8");
}
