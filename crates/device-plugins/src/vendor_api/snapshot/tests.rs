use super::*;
use machinist_device::vendor_declaration;

const FILE: &str = "\
apiVersion: machinist.dev/v1
kind: DeviceVendor
metadata: {name: acme}
spec:
  connects: program
  resources: [acme.dev/*]
  devices: ['/dev/acme*', '/dev/null', '/dev/zero', '/dev/shadow', '/dev/fifo', '/dev/out']
  mounts: [/srv/acme]
  cdi: [acme.dev/gpu]
  limits: {devices: 3}
";

/// A machine without hardware.
#[expect(clippy::disallowed_methods, reason = "the test lays out the machine")]
fn machine() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for made in ["dev", "etc", "opt/acme", "srv/acme", "run/acme.dev"] {
        std::fs::create_dir_all(at(made)).unwrap();
    }
    std::fs::write(at("etc/shadow"), "").unwrap();
    std::fs::write(at("dev/acme-file"), "").unwrap();
    let link = |to: &str, path: &str| std::os::unix::fs::symlink(to, at(path)).unwrap();
    link("/etc/shadow", "dev/shadow");
    link("../etc", "dev/out");
    link("/etc", "opt/acme/etc");
    link("../../run/acme.dev", "opt/acme/run");
    nix::unistd::mkfifo(&at("dev/fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    nix::unistd::mkfifo(&at("srv/acme/fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let root = Root::open(dir.path()).unwrap();
    (dir, root)
}

fn device(recipe: api::Recipe) -> api::Device {
    api::Device {
        id: "a".into(),
        health: api::Health::Healthy.into(),
        recipe: Some(recipe),
        ..api::Device::default()
    }
}

fn node(path: &str) -> api::Recipe {
    api::Recipe {
        nodes: vec![api::Node {
            path: path.into(),
            ..api::Node::default()
        }],
        ..api::Recipe::default()
    }
}

fn mount(from: &str) -> api::Recipe {
    api::Recipe {
        mounts: vec![api::Mount {
            from: from.into(),
            to: "/acme".into(),
            writable: false,
        }],
        ..api::Recipe::default()
    }
}

fn read_in(root: &Root, devices: Vec<api::Device>) -> Result<Resource, SnapshotRejection> {
    let vendor = vendor_declaration::parse("acme.yaml", FILE).unwrap();
    let name = ResourceName::new("acme.dev/x").unwrap();
    let snapshot = api::Snapshot {
        devices,
        ..api::Snapshot::default()
    };
    read(
        Some(root),
        &vendor,
        &name,
        (snapshot.into(), 100),
        OtherResources::default(),
    )
}

fn refused(devices: Vec<api::Device>) -> SnapshotRejection {
    let (_dir, root) = machine();
    read_in(&root, devices).unwrap_err()
}

#[test]
fn paths_outside_the_allowed_ones_are_rejected_with_a_message() {
    for (recipe, expected) in [
        (node("/dev/acme/../../etc/shadow"), "it holds . or .."),
        (node("/etc/shadow"), "is not among the nodes"),
        (node("/dev/sda"), "is not among the nodes"),
        (node("dev/acme0"), "does not start with /"),
        (node("/dev/acme\n0"), "holds a control character"),
        (node("/dev/shadow"), "a link to /etc/shadow, outside /dev"),
        (node("/dev/out"), "a link to /etc, outside /dev"),
        (node("/dev/fifo"), "not a device"),
        (node("/dev/acme-file"), "not a device"),
        (node("/dev/acme0"), "/dev/acme0 does not exist"),
        (node("/dev/acme{word}"), "{word} is not a known placeholder"),
        (mount("/etc"), "must not be mounted"),
        (mount("/opt/acme/../../etc"), "it holds . or .."),
        (
            mount("/opt/acme/etc"),
            "leads to /etc, which vendor acme must not mount",
        ),
        (mount("/srv/other"), "must not be mounted"),
        (mount("/srv/acme/fifo"), "/srv/acme/fifo is a"),
        (mount("/opt/acme/none"), "does not exist"),
    ] {
        let refused = refused(vec![device(recipe)]);
        assert!(
            refused.message.contains(expected),
            "{}: {expected}",
            refused.message
        );
        assert_eq!(refused.device, "a");
        let known = [Reason::PathForbidden, Reason::RecipeInvalid];
        assert!(known.contains(&refused.reason), "{:?}", refused.reason);
    }
}

#[test]
fn an_allowed_spec_is_accepted_and_its_templates_are_filled_in() {
    let (_dir, root) = machine();
    let mut wanted = mount("/opt/acme/run");
    wanted.env = [("ACME".to_owned(), "{id} {name}".to_owned())].into();
    wanted.cdi = vec!["acme.dev/gpu={id}".into()];
    let mut given = device(wanted);
    given.health = api::Health::Unhealthy.into();
    given.recipe.as_mut().unwrap().nodes = node("/dev/acme-{id}").nodes;
    let read = read_in(&root, vec![given]).unwrap();
    let device = &read.devices["a"];
    assert_eq!(device.reason.as_deref(), Some("reported by the vendor"));
    assert_eq!(
        device.nodes[0].host.as_str(),
        "/dev/acme-a",
        "an unhealthy one may be unplugged"
    );
    let recipe = device.recipe.as_ref().unwrap();
    assert_eq!(recipe.env[&"ACME".to_owned()].fill("", ""), "a acme-a");
    assert_eq!(recipe.cdi[0].fill("", ""), "acme.dev/gpu=a");
    assert!(recipe.mounts[0].read_only);
}

/// A valid device with one change.
fn with(change: fn(&mut api::Device)) -> Vec<api::Device> {
    let mut device = device(api::Recipe::default());
    change(&mut device);
    vec![device]
}

fn with_recipe(change: fn(&mut api::Recipe)) -> Vec<api::Device> {
    let mut recipe = api::Recipe::default();
    change(&mut recipe);
    vec![device(recipe)]
}

fn all_refused(cases: Vec<(Vec<api::Device>, Reason, &str)>) {
    for (devices, reason, expected) in cases {
        let refused = refused(devices);
        assert_eq!(refused.reason, reason, "{}", refused.message);
        let message = &refused.message;
        assert!(message.contains(expected), "{message}: {expected}");
    }
}

#[test]
fn snapshot_devices_that_violate_the_contract_are_rejected_by_name() {
    use Reason::DeviceInvalid as Invalid;
    let good = || device(api::Recipe::default());
    all_refused(vec![
        (with(|one| one.id = "../x".into()), Invalid, "invalid id"),
        (with(|one| one.id = "x".repeat(64)), Invalid, "invalid id"),
        (with(|one| one.health = 0), Invalid, "health is not set"),
        (with(|one| one.health = 9), Invalid, "health is not set"),
        (with(|one| one.numa = vec![1024]), Invalid, "NUMA"),
        (
            with(|one| one.attributes = [("a\n".to_owned(), String::new())].into()),
            Invalid,
            "is not an attribute name",
        ),
        (
            with(|one| one.capacity = [("memory".to_owned(), "40GB".to_owned())].into()),
            Invalid,
            "device \"a\": capacity memory: \"40GB\" is not a quantity",
        ),
        (
            with(|one| one.capacity = [("me-mory".to_owned(), "1".to_owned())].into()),
            Invalid,
            "\"me-mory\" is not a valid capacity name",
        ),
        (
            with(|one| one.capacity = (0..17).map(|n| (format!("c{n}"), "1".to_owned())).collect()),
            Reason::Limit,
            "17 capacities are more than 16",
        ),
        (vec![good(), good()], Invalid, "duplicate id"),
        (
            vec![good(); 4],
            Reason::Limit,
            "4 devices are more than the 3",
        ),
    ]);
}

#[test]
fn snapshot_recipes_that_violate_the_contract_are_rejected_by_name() {
    all_refused(vec![
        (
            with(|one| one.recipe = None),
            Reason::RecipeInvalid,
            "no recipe",
        ),
        (
            with_recipe(|one| one.cdi = vec!["other.dev/gpu=0".into()]),
            Reason::PathForbidden,
            "not a CDI device that vendor acme may use",
        ),
        (
            with_recipe(|one| {
                one.annotations = [("cdi.k8s.io/x".to_owned(), String::new())].into()
            }),
            Reason::RecipeInvalid,
            "cannot be set by a vendor",
        ),
        (
            with_recipe(|one| one.mounts = vec![api::Mount::default(); 65]),
            Reason::Limit,
            "65 mounts",
        ),
    ]);
}

#[test]
fn parts_of_all_snapshots_of_a_vendor_count_towards_one_limit() {
    let (_dir, root) = machine();
    let mut given = device(api::Recipe::default());
    given.attributes = [("serial".to_owned(), "A5".to_owned())].into();
    let read = |parts| {
        let vendor = vendor_declaration::parse("acme.yaml", FILE).unwrap();
        let name = ResourceName::new("acme.dev/x").unwrap();
        let snapshot = api::Snapshot {
            devices: vec![given.clone()],
            ..api::Snapshot::default()
        };
        let besides = OtherResources {
            parts,
            ..OtherResources::default()
        };
        super::read(Some(&root), &vendor, &name, (snapshot.into(), 1), besides)
    };
    assert_eq!(parts(&read(MAX_SNAPSHOT_TOTAL_PARTS - 2).unwrap()), 2);
    let refused = read(MAX_SNAPSHOT_TOTAL_PARTS - 1).unwrap_err();
    assert_eq!(refused.reason, Reason::Limit);
    assert!(refused.message.contains("16385 parts"), "{refused:?}");
}

#[test]
fn an_undecodable_device_is_named_by_its_index() {
    let vendor = vendor_declaration::parse("acme.yaml", FILE).unwrap();
    let name = ResourceName::new("acme.dev/x").unwrap();
    let good = api::Snapshot {
        devices: vec![device(api::Recipe::default())],
        ..api::Snapshot::default()
    };
    let mut snapshot = lazy_messages::LazySnapshot::from(good);
    // An id that is not UTF-8.
    snapshot.devices.push(Bytes::from_static(&[0x0a, 1, 0xff]));
    let refused = super::read(
        None,
        &vendor,
        &name,
        (snapshot, 1),
        OtherResources::default(),
    )
    .unwrap_err();
    assert_eq!(refused.reason, Reason::DeviceInvalid);
    let message = "device 2 of the snapshot is not valid protobuf";
    assert!(refused.message.starts_with(message), "{}", refused.message);
}
