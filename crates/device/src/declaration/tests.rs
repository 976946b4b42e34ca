mod annotations;

use super::{super::inventory::SharePolicy, *};

const WHOLE: &str = "\
apiVersion: machinist.dev/v1
kind: DeviceDeclaration
metadata: {name: lab-serial}
spec:
  resource: acme.dev/serial
  match:
  - path: /dev/serial/by-id/usb-FTDI_*
  - path: /dev/ttyACM0
  share: {replicas: 4, policy: packed, strict: true}
  container:
    nodes: [{path: \"{node}\", as: /dev/serial0, permissions: rwm}, {path: /dev/acmectl}]
    mounts: [{from: /opt/acme/lib, to: /usr/lib/acme}]
    env: {ACME_DEVICE: \"{id}\"}
    annotations: {acme.dev/node: \"{node}\"}
  numa: [1, 0, 1]
  health: [exists]
";

fn problems(text: &str) -> Vec<String> {
    let refusals = parse("x.yaml", text, &Allowances::default()).unwrap_err();
    refusals.iter().map(ToString::to_string).collect()
}

/// `WHOLE` with one piece of text replaced.
fn changed(from: &str, to: &str) -> String {
    assert!(WHOLE.contains(from), "{from}");
    WHOLE.replacen(from, to, 1)
}

#[test]
fn every_declaration_field_is_parsed() {
    let read = parse("x.yaml", WHOLE, &Allowances::default()).unwrap();
    assert_eq!(read.resource.as_str(), "acme.dev/serial");
    assert_eq!(read.paths().count(), 2);
    let share = Share {
        replicas: 4,
        policy: SharePolicy::Packed,
        strict: true,
    };
    assert_eq!(read.share, share);
    assert_eq!(read.numa, NumaAffinity::Fixed(vec![0, 1]));
    assert_eq!(read.recipe.nodes[1].permissions, "rw");
    assert!(read.recipe.mounts[0].read_only);
    assert_eq!(
        read.recipe.env[&"ACME_DEVICE".to_owned()].fill("a", "/dev/a"),
        "a"
    );
}

#[test]
fn share_replicas_default_to_one() {
    let text = changed("replicas: 4, policy: packed, strict: true", "strict: true");
    let read = parse("x.yaml", &text, &Allowances::default()).unwrap();
    assert_eq!((read.share.replicas, read.share.strict), (1, true));
}

#[test]
fn a_yaml_alias_bomb_in_a_declaration_is_rejected() {
    let mut text = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (one, next) in ('a'..'i').zip('b'..='i') {
        let many = vec![format!("*{one}"); 9].join(",");
        text += &format!("{next}: &{next} [{many}]\n");
    }
    let found = problems(&(text + WHOLE));
    assert!(
        found[0].starts_with("x.yaml:5:8: aliases expand to more than"),
        "{found:?}"
    );
}

#[test]
fn capacities_must_be_quantities_and_need_serve_dra() {
    let claimed = |capacity: &str| {
        format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\nspec:\n  \
             resource: acme.dev/gpu\n  serve: dra\n  match: [{{path: /dev/gpu0}}]\n  capacity:\n{capacity}"
        )
    };
    let text = claimed("    memory: 1024Mi\n    cores: 8\n    acme.dev/share: 0.5\n");
    let read = parse("x.yaml", &text, &Allowances::default()).unwrap();
    let found: Vec<_> = read
        .capacity
        .iter()
        .map(|(name, one)| format!("{name} {one}"))
        .collect();
    assert_eq!(found, ["acme.dev/share 500m", "cores 8", "memory 1Gi"]);
    assert_eq!(
        problems(&claimed("    memory: 40GB\n    co-res: 8\n")),
        [
            "x.yaml:10:13: spec.capacity.co-res: \"co-res\" is not a valid capacity name; expected letters, digits and _, at most 32, with or without a domain [ValueInvalid]",
            "x.yaml:9:13: spec.capacity.memory: \"40GB\" is not a quantity; expected a quantity such as 40Gi, 8 or 500m [ValueInvalid]",
        ]
    );
    let counted = text.replace("serve: dra", "serve: devicePlugin");
    let found = problems(&counted).join("\n");
    assert!(
        found.contains("spec.capacity: device plugins have no capacity"),
        "{found}"
    );
}

#[test]
fn a_minimal_declaration_maps_the_node_to_its_own_path() {
    let text = "{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {name: fuse}, \
                spec: {resource: machinist.dev/fuse, match: [{path: /dev/fuse}]}}";
    let read = parse("x.yaml", text, &Allowances::default()).unwrap();
    assert_eq!(read.share, Share::EXCLUSIVE);
    assert_eq!(read.numa, NumaAffinity::Auto);
    assert_eq!(read.recipe.nodes.len(), 1);
    assert_eq!(read.recipe.nodes[0].inside, None);
}

/// (text to replace, by what, how the report begins)
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "resource: acme.dev/serial",
        "resource: serial",
        "x.yaml:5:13: spec.resource: \"serial\" is not a valid resource name: it has no slash; \
             expected vendor domain/name [ValueInvalid]",
    ),
    (
        "- path: /dev/ttyACM0",
        "- pth: /dev/ttyACM0",
        "x.yaml:8:5: spec.match[1].pth: unknown field; expected one of path, usb, \
             pci, subsystem, cdi [FieldUnknown]",
    ),
    (
        "resource: acme.dev/serial",
        "resource: acme.dev/serial\n  serve: both",
        "x.yaml:6:10: spec.serve: ",
    ),
    (
        "replicas: 4",
        "replicas: many",
        "x.yaml:9:21: spec.share.replicas: ",
    ),
    (
        "resource: acme.dev/serial",
        "serve: dra",
        "x.yaml:4:1: spec.resource: resource is missing [ValueInvalid]",
    ),
    (
        "/dev/ttyACM0",
        "/dev/../etc/shadow",
        "x.yaml:8:11: spec.match[1].path: \"/dev/../etc/shadow\" is no absolute path: it \
             holds . or ..; expected an absolute path below /dev",
    ),
    (
        "/opt/acme/lib",
        "/etc",
        "x.yaml:12:21: spec.container.mounts[0].from: /etc must not be mounted into \
             containers; expected a path below /opt, /usr/lib, /usr/local/lib, /usr/share or \
             /run/acme.dev [PathInvalid]",
    ),
    (
        "rwm",
        "rwx",
        "x.yaml:11:61: spec.container.nodes[0].permissions: \"rwx\" are not valid permissions; \
             expected any of r, w and m, each once [ValueInvalid]",
    ),
    (
        "\"{id}\"",
        "\"{serial}\"",
        "x.yaml:13:24: spec.container.env.ACME_DEVICE: {serial} is not a known placeholder; \
             expected {id}, {node} or {name} [ValueInvalid]",
    ),
    (
        "machinist.dev/v1",
        "machinist.dev/v2",
        "x.yaml:1:13: apiVersion: ",
    ),
    (
        "numa: [1, 0, 1]",
        "numa: near",
        "x.yaml:15:9: spec.numa: \"near\" is not known; ",
    ),
    (
        "numa: [1, 0, 1]",
        "numa: {a: 1}",
        "x.yaml:15:9: spec.numa: ",
    ),
    (
        "[exists]",
        "[exits]",
        "x.yaml:16:12: spec.health[0]: \"exits\" is not known; ",
    ),
];

#[test]
fn every_error_has_line_column_and_field() {
    for (from, to, found) in MISTAKES {
        let found_now = problems(&changed(from, to));
        assert!(
            found_now.len() == 1 && found_now[0].starts_with(found),
            "{found_now:#?}\n{found}"
        );
    }
}

/// (text to replace, by what, how the report begins)
const HARDWARE_MISTAKES: &[[&str; 3]] = &[
    [
        "path: /dev/ttyACM0",
        "usb: {vendor: \"0x403\"}",
        "x.yaml:8:19: spec.match[1].usb.vendor: \"0x403\" is not a hexadecimal ID; expected four hexadecimal digits",
    ],
    [
        "path: /dev/ttyACM0",
        "usb: {}",
        "x.yaml:8:10: spec.match[1].usb: no condition on the device",
    ],
    [
        "path: /dev/ttyACM0",
        "pci: {class: \"30\", iommuGroup: half}",
        "x.yaml:8:36: spec.match[1].pci.iommuGroup: \"half\" is not known; expected whole",
    ],
    [
        "path: /dev/ttyACM0",
        "pci: {class: VGA}",
        "x.yaml:8:18: spec.match[1].pci.class: \"vga\" is not a PCI class",
    ],
    [
        "path: /dev/ttyACM0",
        "subsystem: {name: tty, attributes: {../../secret: x}}",
        "x.yaml:8:55: spec.match[1].subsystem.attributes.../../secret: \"../../secret\" is not an attribute file",
    ],
    [
        "path: /dev/ttyACM0",
        "cdi: {kind: gpu}",
        "x.yaml:8:17: spec.match[1].cdi.kind: \"gpu\" is not a valid CDI kind",
    ],
    [
        "path: /dev/ttyACM0",
        "{cdi: {kind: a.b/c}, path: /dev/x}",
        "x.yaml:8:5: spec.match[1]: cdi cannot be combined with other keys",
    ],
    [
        "[exists]",
        "[{sysfs: {file: /etc/shadow, equals: b}}]",
        "x.yaml:16:27: spec.health[0].sysfs.file: \"/etc/shadow\" is not an attribute file",
    ],
    [
        "[exists]",
        "[exists, {unit: acme}]",
        "x.yaml:16:27: spec.health[1].unit: ",
    ],
    [
        "  numa",
        "  group: {by: colour}\n  numa",
        "x.yaml:15:15: spec.group.by: \"colour\" is not known; expected usbPath or pciAddress",
    ],
    [
        "  numa",
        "  taint: {key: acme.dev/x, effect: NoExecute}\n  numa",
        "x.yaml:15:36: spec.taint.effect: NoExecute is not supported: it would evict pods; expected NoSchedule",
    ],
    [
        "  numa",
        "  taint: {key: node.kubernetes.io/x, effect: NoSchedule}\n  numa",
        "x.yaml:15:16: spec.taint.key: \"node.kubernetes.io/x\" is not a valid taint key: kubernetes.io is reserved",
    ],
    [
        "  numa",
        "  taint: {key: acme.dev/x, value: -y, effect: NoSchedule}\n  numa",
        "x.yaml:15:35: spec.taint.value: \"-y\" is not a valid taint value",
    ],
];

#[test]
fn hardware_errors_have_line_and_column() {
    for [from, to, begins] in HARDWARE_MISTAKES {
        let found = problems(&changed(from, to));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with(begins), "{found:#?}, not {begins}");
    }
}

#[test]
fn hardware_selectors_and_health_are_parsed() {
    let text = changed(
        "  - path: /dev/ttyACM0",
        "  - {path: /dev/ttyACM*, usb: {vendor: \"2E8A\"}}\n  - {pci: {class: \"0302\", iommuGroup: whole}}\n  \
           - {subsystem: {name: tty, attributes: {device/state: \"ok*\"}}}\n  - {cdi: {kind: acme.dev/gpu}}",
    )
    .replace(
        "health: [exists]",
        "health: [exists, {sysfs: {file: device/state, equals: ok}}, {unit: acme.service}]\n  \
         group: {by: usbPath}\n  taint: {key: acme.dev/gpu, effect: PreferNoSchedule}",
    );
    let read = parse("x.yaml", &text, &Allowances::default()).unwrap();
    let taint = read.taint.as_ref().unwrap().to_string();
    assert_eq!(taint, "acme.dev/gpu:PreferNoSchedule");
    assert_eq!(read.matches.len(), 5);
    assert!(read.asks_hardware());
    assert_eq!(read.probes.len(), 2);
    assert_eq!(read.probed_units().collect::<Vec<_>>(), ["acme.service"]);
    assert_eq!(read.group, Some(GroupBy::UsbPath));
}

#[test]
fn stop_units_are_full_names_and_never_node_services() {
    let quiesce = |units: &str| {
        changed(
            "  numa",
            &format!("  quiesce: {{stopUnits: {units}}}\n  numa"),
        )
    };
    let good = quiesce("[acme-monitor.service, acme@1.socket, acme-monitor.service]");
    let declaration = parse("x.yaml", &good, &Allowances::default()).unwrap();
    assert_eq!(
        declaration.stop_units,
        ["acme-monitor.service", "acme@1.socket"]
    );
    let cases = [
        ("[]", "0 units"),
        ("[acme]", "it has no type"),
        (
            "[multi-user.target]",
            "multi-user.target cannot be stopped for a device",
        ),
        ("[kubelet.service]", "is required by the node"),
        ("[containerd.service]", "is required by the node"),
        ("[machinist-guard.service]", "is required by the node"),
        ("[systemd-udevd.service]", "is required by the node"),
    ];
    for (units, why) in cases {
        let found = problems(&quiesce(units));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].contains(why) && found[0].contains("spec.quiesce"),
            "{found:#?}"
        );
    }
}

#[test]
fn all_errors_of_a_file_are_reported_together() {
    let text = changed("acme.dev/serial", "kubernetes.io/serial").replace("/opt/acme/lib", "opt");
    assert_eq!(problems(&text).len(), 2);
}

#[test]
fn mounts_are_allowed_from_the_vendors_run_directory_and_added_prefixes() {
    for (from, allowed) in [
        ("/run/acme.dev/sock", true),
        ("/run/acme.development", false),
        ("/run/containerd", false),
        ("/srv/acme", true),
        ("/srv", false),
        ("/usr/library", false),
        ("/", false),
    ] {
        let allowances = Allowances {
            mounts: vec!["/srv/acme".parse().unwrap()],
            ..Allowances::default()
        };
        let got = parse("x.yaml", &changed("/opt/acme/lib", from), &allowances);
        assert_eq!(got.is_ok(), allowed, "{from}");
    }
}

#[test]
fn an_unparsable_declaration_is_rejected_with_its_location() {
    for text in [
        "",
        "a: [",
        "\t",
        "- 1",
        "a: b\na: c",
        "--- 1\n--- 2",
        "a: *b",
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text:?} {found:?}");
        assert!(!found[0].contains('\n'), "{found:?}");
    }
    let found = problems("spec:\n  match: [\n");
    assert!(found[0].starts_with("x.yaml:"), "{found:?}");
    let large = format!("# {}", "x".repeat(MAX_DOCUMENT_BYTES));
    assert!(problems(&large)[0].contains("expected at most 65536 bytes"));
}

#[test]
fn a_vendor_file_among_declarations_names_its_directory() {
    let text = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\n\
        spec: {connects: program, resources: [acme.dev/*]}\n";
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    let begins = "x.yaml:2:7: kind: DeviceVendor must be in vendors.d, not here";
    assert!(found[0].starts_with(begins), "{found:#?}");
}

proptest::proptest! {
    #[test]
    fn declaration_parser_never_panics(text in "[-a-z0-9:{}\\[\\],\"'&*!|>#\n /]{0,200}", cut in 0..600usize) {
        let _ = parse("x.yaml", &text, &Allowances::default());
        let mut half = WHOLE.to_owned();
        half.truncate(cut.min(WHOLE.len()));
        let _ = parse("x.yaml", &(half + &text), &Allowances::default());
    }
}

#[test]
fn fields_without_a_dra_form_are_rejected_with_their_location() {
    let text = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\n\
        spec:\n  resource: acme.dev/x\n  serve: dra\n  match: [{path: /dev/x}]\n  \
        share: {replicas: 2, strict: true}\n  container: {annotations: {acme.dev/a: b}}\n";
    let found = problems(text);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].starts_with("x.yaml:8:32: spec.share.strict: "),
        "{found:#?}"
    );
    assert!(
        found[1].starts_with("x.yaml:9:28: spec.container.annotations: "),
        "{found:#?}"
    );
    let plainly = text.replace("  serve: dra\n", "");
    assert!(parse("x.yaml", &plainly, &Allowances::default()).is_ok());
}

#[test]
fn yaml_type_errors_are_reported_in_the_authors_terms() {
    let of = |spec: &str| {
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\nspec:\n{spec}"
        );
        problems(&text).join("; ")
    };
    for (spec, expected) in [
        (
            "  resource: acme.dev/x\n  match: /dev/x\n",
            "x.yaml:6:10: spec.match: this is a text; expected a list of entries",
        ),
        (
            "  resource: acme.dev/x\n  match:\n    path: /dev/x\n",
            "x.yaml:7:5: spec.match: this is a map of fields; expected a list of entries",
        ),
        (
            "  resource: acme.dev/x\n  match: [/dev/x]\n",
            "x.yaml:6:11: spec.match[0]: this is a text; expected a map of fields",
        ),
        (
            "  resource: [acme.dev/x]\n  match: [{path: /dev/x}]\n",
            "x.yaml:5:13: spec.resource: this is a list of entries; expected a text",
        ),
        (
            "  - acme.dev/x\n",
            "x.yaml:5:3: spec: this is a list of entries; expected a map of fields",
        ),
    ] {
        let found = of(spec);
        assert!(found.starts_with(expected), "{found}\nand not\n{expected}");
    }
}

#[test]
fn values_of_the_wrong_type_are_reported_in_the_authors_terms() {
    let head = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\n\
        spec:\n  resource: acme.dev/x\n  match: [{path: /dev/x}]\n";
    for (more, found) in [
        (
            "  share: {replicas: -1}\n",
            "x.yaml:7:21: spec.share.replicas: \"-1\" has the wrong type or size; \
             expected a whole number from 0 to 4294967295",
        ),
        (
            "  share: {replicas: 2, strict: yes}\n",
            "x.yaml:7:32: spec.share.strict: \"yes\" has the wrong type or size; expected true or false",
        ),
        (
            "  container: {env: {A: }}\n",
            "x.yaml:7:22: spec.container.env.A: value is missing; expected a text",
        ),
        (
            "  health: [{exists: true}]\n",
            "x.yaml:7:21: spec.health[0].exists: the keyword takes no value; expected the keyword without a value",
        ),
        (
            "---\nkind: DeviceDeclaration\n",
            "x.yaml:7:1: a second YAML document starts here; expected one document in each file",
        ),
    ] {
        let found = format!("{found} [ValueInvalid]");
        assert_eq!(problems(&format!("{head}{more}")), [found]);
    }
}

#[test]
fn another_version_is_the_only_error_of_a_file() {
    let text = "apiVersion: machinist.dev/v2\nkind: DeviceDeclaration\nmetadata: {name: x}\nspec: {novel: 1}\n";
    let found = "x.yaml:1:13: apiVersion: \"machinist.dev/v2\" is not supported; expected machinist.dev/v1 \
         [VersionUnsupported]";
    assert_eq!(problems(text), [found]);
}
