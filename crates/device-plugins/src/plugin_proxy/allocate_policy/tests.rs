use std::time::Duration;

use super::*;
use machinist_device::{
    glob::Glob,
    inventory::ServeMode,
    vendor_declaration::{VendorLimits, VendorTransport},
};

fn vendor(devices: &[&str], mounts: &[&str], cdi: &[&str]) -> Vendor {
    Vendor {
        name: "acme".into(),
        connects: VendorTransport::Plugin,
        serve: ServeMode::DevicePlugin,
        users: vec![0],
        group: 0,
        resources: Vec::new(),
        devices: devices.iter().map(|one| Glob::new(one).unwrap()).collect(),
        mounts: mounts.iter().map(|one| one.parse().unwrap()).collect(),
        cdi: cdi.iter().map(|one| (*one).to_owned()).collect(),
        grace: Duration::from_secs(30),
        deadline: Duration::from_secs(60),
        limits: VendorLimits::default(),
    }
}

/// A machine with some links that lead outside the allowed prefixes.
fn resolve_link(path: &AbsPath) -> ResolvedPath {
    let leads_to = match path.as_str() {
        "/opt/acme/link" => "/etc/shadow",
        "/dev/acme-link" => "/etc/shadow",
        "/dev/acme-disk" => "/dev/sda",
        "/dev/serial/by-id/acme" => "/dev/ttyUSB0",
        "/lib/acme" => "/usr/lib/acme",
        "/dev/shm/acme" => "/dev/acme0",
        other => other,
    };
    let leads_to: AbsPath = leads_to.parse().unwrap();
    let is_users = path.as_str().starts_with("/dev/shm/");
    ResolvedPath {
        is_stable: path.as_str().starts_with("/dev/serial/by-id/"),
        handed_out: if is_users { &leads_to } else { path }.clone(),
        leads_to,
    }
}

fn checked(vendor: &Vendor, change: impl FnOnce(&mut api::ContainerAllocateResponse)) -> String {
    let mut one = api::ContainerAllocateResponse::default();
    change(&mut one);
    let answer = api::AllocateResponse {
        container_responses: vec![one],
    };
    let name = ResourceName::new("acme.dev/gpu").unwrap();
    let bytes = answer.encode_to_vec().into();
    match check(&bytes, vendor, &name, resolve_link) {
        Ok(_) => "passed on".to_owned(),
        Err(refused) => refused.to_string(),
    }
}

fn node(vendor: &Vendor, host_path: &str) -> String {
    checked(vendor, |one| {
        one.devices.push(api::DeviceSpec {
            host_path: host_path.to_owned(),
            ..Default::default()
        });
    })
}

fn mount(vendor: &Vendor, host_path: &str) -> String {
    mounted(vendor, host_path, true)
}

fn mounted(vendor: &Vendor, host_path: &str, read_only: bool) -> String {
    checked(vendor, |one| {
        one.mounts.push(api::Mount {
            host_path: host_path.to_owned(),
            read_only,
            ..Default::default()
        });
    })
}

#[test]
fn executables_of_the_host_are_never_mounted_writable() {
    let some = vendor(&[], &["/srv/acme"], &[]);
    for own in ["/srv/acme/a", "/run/acme.dev/sock", "/dev/dri/by-path"] {
        assert_eq!(mounted(&some, own, false), "passed on", "{own}");
    }
    for software in ["/opt/acme", "/usr/lib/x", "/lib/acme"] {
        let message = mounted(&some, software, false);
        assert!(message.contains("must be read-only"), "{message}");
    }
}

#[test]
fn allocated_nodes_must_be_declared_or_below_dev() {
    let any = vendor(&[], &[], &[]);
    for good in ["/dev/acme0", "/dev/dri//card0", "/dev/serial/by-id/acme"] {
        assert_eq!(node(&any, good), "passed on", "{good}");
    }
    for bad in [
        "/dev",
        "/dev/",
        "/etc/shadow",
        "/dev/../etc/shadow",
        "dev/x",
        "",
        "/dev/acme-link",
    ] {
        assert_ne!(node(&any, bad), "passed on", "{bad}");
    }
    let some = vendor(&["/dev/acme*", "/dev/serial/by-id/*"], &[], &[]);
    assert_eq!(node(&some, "/dev/acme0"), "passed on");
    assert_eq!(node(&some, "/dev/serial/by-id/acme"), "passed on");
    // A link counts by its target, unless udev created it.
    assert_ne!(node(&some, "/dev/acme-disk"), "passed on");
    assert_eq!(
        node(&some, "/dev/sda"),
        "the node /dev/sda is not among the devices of the vendor's file (/dev/acme*, /dev/serial/by-id/*)"
    );
}

#[test]
fn mounts_must_resolve_into_the_allowed_prefixes() {
    let some = vendor(&[], &["/srv/acme"], &[]);
    for good in [
        "/opt/acme",
        "/usr/lib/x/",
        "/lib/acme",
        "/run/acme.dev/sock",
        "/srv/acme/a",
        "/dev/dri/by-path",
    ] {
        assert_eq!(mount(&some, good), "passed on", "{good}");
    }
    for bad in [
        "/",
        "/etc",
        "/srv",
        "/run/containerd",
        "/dev",
        "/opt/../etc",
    ] {
        assert_ne!(mount(&some, bad), "passed on", "{bad}");
    }
    let link = mount(&some, "/opt/acme/link");
    assert!(
        link.starts_with("the mount of /opt/acme/link (which leads to /etc/shadow) is not allowed"),
        "{link}"
    );
}

#[test]
fn a_mount_through_a_link_is_passed_on_as_its_checked_target() {
    let mut one = api::ContainerAllocateResponse::default();
    for host_path in ["/lib/acme", "/opt/acme", "/usr/lib//x"] {
        one.mounts.push(api::Mount {
            host_path: host_path.to_owned(),
            container_path: "/lib/acme".to_owned(),
            read_only: true,
        });
    }
    let answer = api::AllocateResponse {
        container_responses: vec![one],
    };
    let name = ResourceName::new("acme.dev/gpu").unwrap();
    let bytes = answer.encode_to_vec().into();
    let links = check(&bytes, &vendor(&[], &[], &[]), &name, resolve_link).unwrap();
    let real = "/usr/lib/acme".parse().unwrap();
    assert_eq!(links.mounts, [("/lib/acme".to_owned(), real)].into());
}

#[test]
fn annotations_interpreted_by_runtimes_are_rejected() {
    let any = vendor(&[], &[], &[]);
    let with = |key: &str| {
        checked(&any, |one| {
            one.annotations.insert(key.to_owned(), "x".to_owned());
        })
    };
    assert_eq!(with("acme.dev/made-by"), "passed on");
    for key in [
        "io.kubernetes.cri-o.Devices",
        "org.systemd.property.DeviceAllow",
        "a\nb",
    ] {
        let message = with(key);
        assert!(
            message.contains("is not allowed: container runtimes act on it"),
            "{message}"
        );
    }
}

#[test]
fn cdi_names_in_field_and_annotation_must_be_of_allowed_kinds() {
    let name = |vendor: &Vendor, name: &str| {
        let field = checked(vendor, |one| {
            let name = name.to_owned();
            one.cdi_devices.push(api::CdiDevice { name });
        });
        let annotation = checked(vendor, |one| {
            one.annotations
                .insert("cdi.k8s.io/x".into(), name.to_owned());
        });
        assert_eq!(field, annotation);
        field
    };
    let any = vendor(&[], &[], &[]);
    assert_eq!(name(&any, "acme.dev/gpu=0"), "passed on");
    assert_ne!(name(&any, "other.dev/gpu=0"), "passed on");
    assert_ne!(name(&any, "nonsense"), "passed on");
    let some = vendor(&[], &[], &["other.dev/gpu"]);
    assert_eq!(name(&some, "other.dev/gpu=0"), "passed on");
    assert_ne!(name(&some, "acme.dev/gpu=0"), "passed on");
}

#[test]
fn an_empty_answer_and_an_undecodable_one_are_rejected() {
    let name = ResourceName::new("acme.dev/gpu").unwrap();
    let checked = |bytes: &'static [u8]| {
        check(
            &Bytes::from_static(bytes),
            &vendor(&[], &[], &[]),
            &name,
            resolve_link,
        )
    };
    assert_eq!(checked(b""), Err(AllocateRejection::Empty));
    assert!(matches!(
        checked(b"\x0a\xff"),
        Err(AllocateRejection::Unreadable(_))
    ));
}

#[test]
fn an_answer_of_many_small_parts_is_rejected_before_decoding() {
    let vendor = vendor(&[], &[], &[]);
    let message = checked(&vendor, |one| {
        one.mounts = vec![api::Mount::default(); MAX_RESPONSE_PARTS];
    });
    assert_eq!(
        message,
        "the plugin's answer has 4097 parts; at most 4096 are read"
    );
}

#[test]
fn links_are_replaced_by_checked_targets_and_unknown_fields_stay() {
    let mount = |host_path: &str| api::Mount {
        host_path: host_path.to_owned(),
        container_path: "/opt/link".to_owned(),
        read_only: true,
    };
    let node = |host_path: &str| api::DeviceSpec {
        host_path: host_path.to_owned(),
        container_path: "/dev/shm/acme".to_owned(),
        permissions: "rw".to_owned(),
    };
    let answer = |source: &str, device: &str| {
        let one = api::ContainerAllocateResponse {
            mounts: vec![mount(source), mount("/opt/b")],
            devices: vec![node(device), node("/dev/serial/by-id/acme")],
            ..Default::default()
        };
        let mut bytes = api::AllocateResponse {
            container_responses: vec![one],
        }
        .encode_to_vec();
        bytes.extend_from_slice(&[0x78, 0x2a]);
        bytes
    };
    let some = vendor(&["/dev/acme*", "/dev/serial/by-id/*"], &[], &[]);
    let name = ResourceName::new("acme.dev/gpu").unwrap();
    let given = answer("/lib/acme", "/dev/shm/acme");
    let links = check(&given.clone().into(), &some, &name, resolve_link).unwrap();
    assert_eq!(
        resolved(&given, &links),
        answer("/usr/lib/acme", "/dev/acme0")
    );
}
