use serde_json::{Value, json};

use super::*;
use crate::cdi::{CdiSpecDevice, parse};

/// The device of a spec with these edits for the device and for the whole file.
fn device(own: &Value, of_all: &Value) -> CdiSpecDevice {
    let spec = json!({
        "cdiVersion": "1.1.0", "kind": "acme.dev/gpu", "containerEdits": of_all,
        "devices": [{"name": "0", "containerEdits": own}],
    });
    let spec = parse("/etc/cdi/acme.json", &spec.to_string()).unwrap();
    spec.devices.into_iter().next().unwrap()
}

fn recipe(own: &Value, of_all: &Value) -> DeviceSpec {
    let mut recipe = DeviceSpec::default();
    device(own, of_all).plain().unwrap().add_to(&mut recipe);
    recipe
}

#[test]
fn file_edits_precede_device_edits_which_take_precedence() {
    let of_all = json!({
        "env": ["ACME=all", "BOTH=file"],
        "deviceNodes": [{"path": "/dev/acmectl"}, {"path": "/dev/gpu", "hostPath": "/dev/none"}],
        "mounts": [
            {"hostPath": "/usr/lib/acme", "containerPath": "/lib/acme", "options": ["ro", "rbind", "rprivate"]},
            {"hostPath": "/opt/a", "containerPath": "/data", "options": ["bind"]},
        ],
    });
    let own = json!({
        "env": ["BOTH=a=b,{\"c\": 1}"],
        "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/gpu0", "permissions": "rw"}],
        "mounts": [{"hostPath": "/opt/b", "containerPath": "/data", "type": "bind", "options": ["ro", "rw"]}],
    });
    let recipe = recipe(&own, &of_all);
    let nodes = recipe.nodes.iter().map(|node| {
        let inside = node.inside.as_ref().unwrap().fill("", "");
        (node.path.fill("", ""), inside, node.permissions.as_str())
    });
    let nodes: Vec<_> = nodes.collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        nodes,
        [
            (text("/dev/acmectl"), text("/dev/acmectl"), "rwm"),
            (text("/dev/gpu0"), text("/dev/gpu"), "rw"),
        ]
    );
    let mounts = recipe.mounts.iter();
    let mounts = mounts.map(|one| (one.from.as_str(), one.to.as_str(), one.read_only));
    assert!(mounts.eq([
        ("/usr/lib/acme", "/lib/acme", true),
        ("/opt/b", "/data", false)
    ]));
    let env = recipe.env.iter();
    let env = env.map(|(key, value)| format!("{key}={}", value.fill("x", "/dev/x")));
    assert!(env.eq(["ACME=all", "BOTH=a=b,{\"c\": 1}"]));
    assert!(recipe.cdi.is_empty() && recipe.annotations.is_empty());
}

#[test]
fn device_edits_override_the_declaration() {
    let own = json!({
        "env": ["A=spec"],
        "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/gpu0"}],
    });
    let literal = |text: &str| Template::literal(text).unwrap();
    let mut recipe = DeviceSpec {
        nodes: vec![DeviceNodeSpec {
            path: literal("/dev/other"),
            inside: Some(literal("/dev/gpu")),
            permissions: "rw".into(),
        }],
        env: ["A", "B"]
            .map(|key| (key.to_owned(), literal("own")))
            .into_iter()
            .collect(),
        ..DeviceSpec::default()
    };
    device(&own, &json!({}))
        .plain()
        .unwrap()
        .add_to(&mut recipe);
    assert_eq!(recipe.nodes.len(), 1);
    assert_eq!(recipe.nodes[0].path, literal("/dev/gpu0"));
    assert_eq!(
        (&recipe.env[&"A".to_owned()], &recipe.env[&"B".to_owned()]),
        (&literal("spec"), &literal("own"))
    );
}

/// The fields of both objects.
fn with(mut one: Value, more: &Value) -> Value {
    let more = more.as_object().unwrap().clone();
    one.as_object_mut().unwrap().extend(more);
    one
}

fn mount(more: &Value) -> Value {
    let mount = json!({"hostPath": "/opt/a", "containerPath": "/a", "options": ["bind"]});
    json!({"mounts": [with(mount, more)]})
}

fn node(more: &Value) -> Value {
    json!({"deviceNodes": [with(json!({"path": "/dev/gpu0"}), more)]})
}

fn all_refused<const N: usize>(cases: [(Value, &str); N]) {
    for (edits, message) in cases {
        let plain = json!({"env": ["OK=1"]});
        let refused = device(&edits, &json!({})).plain().unwrap_err();
        let whole = device(&plain, &edits).plain().unwrap_err();
        for text in [&refused, &whole] {
            assert!(
                text.starts_with("/etc/cdi/acme.json: acme.dev/gpu=0: "),
                "{text}"
            );
            assert!(text.contains(message), "{text}");
        }
    }
}

#[test]
fn edits_without_a_device_plugin_form_are_rejected_with_file_and_device() {
    let hook = json!({"hooks": [{"hookName": "createContainer", "path": "/usr/bin/acme"}]});
    let many: Vec<_> = (0..65).map(|n| format!("V{n}=")).collect();
    let net = json!({"netDevices": [{"hostInterfaceName": "eth7", "name": "eth0"}]});
    let long = format!("A={}", "x".repeat(4097));
    all_refused([
        (hook.clone(), "hooks[0] (createContainer /usr/bin/acme)"),
        (net, "netDevices[0] (eth7)"),
        (json!({"intelRdt": {"closID": "x"}}), "intelRdt"),
        (json!({"additionalGids": [44]}), "additionalGids"),
        (
            json!({"env": ["A.B=1"]}),
            "\"A.B=1\" is not an environment variable",
        ),
        (
            json!({"env": ["A={node}"]}),
            "A contains a placeholder of a declaration",
        ),
        (json!({"env": [long]}), "A has more than 4096 bytes"),
        (
            json!({"env": many}),
            "more than 64 nodes, mounts or variables",
        ),
    ]);
    let whole = device(&json!({"env": ["A=1"]}), &hook).plain().unwrap_err();
    assert!(whole.contains("of the whole file"), "{whole}");
}

#[test]
fn cdi_nodes_and_mounts_without_a_device_plugin_equivalent_are_rejected() {
    let why = |message: &str| format!("a device plugin cannot {message}");
    all_refused([
        (
            mount(&json!({"options": ["bind", "nosuid"]})),
            &why("mount with option nosuid"),
        ),
        (
            mount(&json!({"options": ["bind", "rshared"]})),
            &why("mount with option rshared"),
        ),
        (
            mount(&json!({"options": []})),
            "a device plugin supports only bind mounts",
        ),
        (mount(&json!({"type": "tmpfs"})), &why("mount a tmpfs")),
        (
            mount(&json!({"containerPath": "/"})),
            "/ cannot be its path",
        ),
        (mount(&json!({"hostPath": "/opt/../etc"})), "mounts[0] (/a)"),
        (
            mount(&json!({"hostPath": "/opt/{id}"})),
            "contains a placeholder of a declaration",
        ),
        (
            node(&json!({"permissions": "none"})),
            "with permissions \"none\"",
        ),
        (
            node(&json!({"type": "p"})),
            &why("pass a device node of type \"p\""),
        ),
    ]);
}

#[test]
fn a_node_is_allocated_unchanged_or_rejected() {
    let found = HostNode {
        block: false,
        number: (195, 0),
        mode: 0o660,
        owner: (0, 44),
    };
    let edits = |more: Value| {
        let device = device(&node(&more), &json!({}));
        device.plain().unwrap().nodes[0].differs(found)
    };
    let same =
        json!({"type": "c", "major": 195, "minor": 0, "fileMode": 0o660, "uid": 0, "gid": 44});
    assert_eq!(edits(same), None);
    // Without a major number runtimes use the numbers on the host.
    for as_it_is in [
        json!({}),
        json!({"major": 0, "minor": 7}),
        json!({"minor": 1}),
    ] {
        assert_eq!(edits(as_it_is), None);
    }
    for (more, message) in [
        (json!({"type": "b"}), "/dev/gpu0 is not a block device"),
        (
            json!({"major": 1}),
            "has major number 195, the spec requires 1",
        ),
        (json!({"major": 195, "minor": 1}), "has minor number 0"),
        (
            json!({"fileMode": 0o666}),
            "has mode 660, the spec requires 666",
        ),
        (json!({"uid": 1000}), "has owner 0"),
        (json!({"gid": 39}), "has group 44, the spec requires 39"),
    ] {
        let why = edits(more).unwrap();
        assert!(why.contains(message), "{why}");
    }
}
