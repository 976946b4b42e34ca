use super::*;
use machinist_base::reason::Reason;

const FULL: &str = "\
apiVersion: machinist.dev/v1
kind: DeviceVendor
metadata: {name: acme}
spec:
  connects: program
  users: [0, 1000]
  group: 1000
  resources: [acme.dev/*, acme.dev/serial, other.dev/gpu-*]
  devices: ['/dev/acme*', /dev/serial/by-id/usb-Acme_*]
  mounts: [/srv/acme]
  cdi: [acme.dev/gpu]
  grace: 45s
  deadline: 5m
  limits: {devices: 10, resources: 2}
";

fn refused(text: &str) -> Vec<String> {
    let refusals = parse("acme.yaml", text).unwrap_err();
    refusals.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_is_parsed() {
    let vendor = parse("acme.yaml", FULL).unwrap();
    assert_eq!(vendor.connects, VendorTransport::Program);
    assert_eq!(
        (vendor.users.as_slice(), vendor.group),
        (&[0, 1000][..], 1000)
    );
    assert_eq!(vendor.grace, Duration::from_secs(45));
    assert_eq!(vendor.deadline, Duration::from_secs(300));
    assert_eq!((vendor.limits.devices, vendor.limits.resources), (10, 2));
    let name = |text: &str| ResourceName::new(text).unwrap();
    for (resource, expected) in [
        ("acme.dev/anything", true),
        ("other.dev/gpu-1", true),
        ("other.dev/npu", false),
        ("acme.devil/x", false),
    ] {
        assert_eq!(vendor.may_claim(&name(resource)), expected, "{resource}");
    }
    let node = |text: &str| AbsPath::new(text).unwrap();
    assert!(vendor.may_pass_node(&node("/dev/acme0")));
    assert!(!vendor.may_pass_node(&node("/dev/acme/0")));
    assert!(!vendor.may_pass_node(&node("/dev/sda")));
    assert!(vendor.may_name("acme.dev/gpu=0") && !vendor.may_name("other.dev/gpu=0"));
    assert!(vendor.may_connect(1000) && !vendor.may_connect(1001));
}

#[test]
fn omitted_fields_have_defaults() {
    let text = "\
apiVersion: machinist.dev/v1
kind: DeviceVendor
metadata: {name: a}
spec: {connects: plugin, resources: [a.b/c]}
";
    let vendor = parse("a.yaml", text).unwrap();
    assert_eq!(vendor.connects, VendorTransport::Plugin);
    assert_eq!((vendor.users.as_slice(), vendor.group), (&[0][..], 0));
    assert_eq!(vendor.grace, Duration::from_secs(30));
    assert_eq!(vendor.deadline, Duration::from_secs(60));
    assert_eq!(vendor.limits, VendorLimits::default());
}

#[test]
fn every_error_has_a_location() {
    for (from, to, expected) in [
        ("{name: acme}", "{name: Acme}", "acme.yaml:3:18"),
        (
            "{name: acme}",
            "{name: ../acme}",
            "\"../acme\" is not a valid name",
        ),
        ("machinist.dev/v1\n", "machinist.dev/v2\n", "acme.yaml:1:13"),
        ("DeviceVendor", "DeviceDeclaration", "acme.yaml:2:7"),
        (
            "connects: program",
            "connects: socket",
            "one of program, plugin",
        ),
        (
            "connects: program",
            "connects: plugin\n  serve: dra",
            "serve: dra is not supported for a proxied device plugin",
        ),
        (
            "connects: program",
            "connects: program\n  serve: maybe",
            "acme.yaml:6:10",
        ),
        ("[0, 1000]", "[]", "1 to 64 entries"),
        ("acme.dev/*,", "'*',", "domain/name"),
        ("acme.dev/*,", "acme*,", "it has no slash"),
        (
            "acme.dev/*,",
            "kubernetes.io/*,",
            "is reserved for Kubernetes",
        ),
        ("'/dev/acme*'", "/etc/*", "\"/etc/*\" is not below /dev"),
        ("'/dev/acme*'", "/dev/../etc/shadow", "it holds . or .."),
        ("/srv/acme", "/", "/ is too broad"),
        ("/srv/acme", "srv", "it does not start with /"),
        ("acme.dev/gpu]", "gpu]", "is not a valid CDI kind"),
        ("45s", "0s", "spec.grace"),
        ("45s", "for ever", "1s to 3600s"),
        ("5m", "2h", "1s to 600s"),
        ("devices: 10,", "devices: 10000,", "1 to 2000"),
        ("resources: 2}", "resources: 0}", "1 to 64"),
        ("grace:", "graze:", "unknown field"),
    ] {
        let text = FULL.replacen(from, to, 1);
        assert_ne!(text, FULL, "{from}");
        let message = refused(&text);
        assert!(
            message.iter().any(|one| one.contains(expected)),
            "{message:?}: {expected}"
        );
        assert!(
            message.iter().all(|one| one.contains("acme.yaml:")),
            "{message:?}"
        );
    }
    let twice = FULL.replace("45s", "never").replace("/srv/acme", "srv");
    assert_eq!(refused(&twice).len(), 2, "all errors are reported at once");
}

#[test]
fn the_first_vendor_file_owns_a_name_and_an_invalid_update_is_ignored() {
    let path = |text: &str| AbsPath::new(text).unwrap();
    let (etc, run) = (
        path("/etc/machinist/vendors.d/acme.yaml"),
        path("/run/machinist/vendors.d/acme.yaml"),
    );
    let mut book = VendorRegistry::default();
    let both = |first: &str| -> VendorFiles {
        [
            (etc.clone(), Ok(first.to_owned())),
            (run.clone(), Ok(FULL.replace("45s", "10s"))),
        ]
        .into()
    };
    let vendors = book.read(both(FULL));
    assert_eq!(vendors.by_name["acme"].grace, Duration::from_secs(45));
    assert_eq!(vendors.problems.len(), 1);
    let message = vendors.problems[0].to_string();
    assert!(
        message.contains("acme is already declared by /etc/"),
        "{message}"
    );
    let vendors = book.read(both("spec: ["));
    assert_eq!(vendors.by_name["acme"].grace, Duration::from_secs(45));
    assert_eq!(vendors.problems.len(), 2);
    let mut next = VendorRegistry::default();
    next.restore(book.valid_files());
    let vendors = next.read(both("spec: ["));
    assert_eq!(vendors.by_name["acme"].grace, Duration::from_secs(45));
    assert!(!vendors.blind, "its content is known");
    assert!(
        VendorRegistry::default()
            .read([(etc.clone(), Ok("spec: [".to_owned()))].into())
            .blind
    );
    let dir = etc.parent().unwrap();
    let unread = Refusal::new(Reason::SourceUnreadable, "too many open files");
    let vendors = next.read([(dir, Err(unread))].into());
    assert_eq!(vendors.by_name.len(), 1, "its files are not gone");
    let vendors = book.read([(run, Ok(FULL.replace("45s", "10s")))].into());
    assert_eq!(vendors.by_name["acme"].grace, Duration::from_secs(10));
    assert_eq!(vendors.problems, []);
}

#[test]
fn reserved_user_ids_and_names_are_rejected() {
    let file = |name: &str, connects: &str, spec: &str| {
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {{name: {name}}}\nspec:\n  \
             connects: {connects}\n  resources: [acme.dev/*]\n{spec}"
        );
        let message = parse("x.yaml", &text).map_err(|all| all[0].to_string());
        message.map(drop)
    };
    let most = u32::MAX;
    for (spec, message) in [
        (format!("  group: {most}\n"), "x.yaml:7:10: spec.group: "),
        (
            format!("  users: [0, {most}]\n"),
            "x.yaml:7:14: spec.users[1]: ",
        ),
    ] {
        let why = file("acme", "program", &spec).unwrap_err();
        let whole = format!(
            "{message}{most} is not a valid ID; expected 0 to {}",
            most - 1
        );
        assert!(why.starts_with(&whole), "{why}");
    }
    assert_eq!(file("lock", "program", ""), Ok(()));
    let why = file("lock", "plugin", "").unwrap_err();
    assert!(
        why.starts_with("x.yaml:3:18: metadata.name: \"lock\" is a reserved directory name"),
        "{why}"
    );
}
