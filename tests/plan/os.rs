//! The operating system in a plan, on a host whose provider can change it.

use machinist_base::reason::Reason;
use machinist_ignition::{KernelCommandLine, MachineConfig, Refusal};
use machinist_plan::{
    Capabilities, Cost, HostKind, KernelType, OsCapabilities, OsFacts, Plan, Policies,
};
use machinist_update::observe::CallerFacts;

use super::support::{LIVE, Tree, config};

const OLD: &str =
    "quay.io/os@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const NEW: &str =
    "quay.io/os@sha256:01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b";

const IMAGES: OsCapabilities = OsCapabilities {
    image: true,
    ..OsCapabilities::without_provider(HostKind::Bootc)
};

fn asks_for(image: &str) -> MachineConfig {
    MachineConfig {
        os_image_url: Some(image.to_owned()),
        ..MachineConfig::default()
    }
}

fn planned(from: &MachineConfig, to: &MachineConfig, os: OsFacts) -> Result<Plan, Vec<Refusal>> {
    let tree = Tree::new();
    let known = CallerFacts {
        os,
        ..CallerFacts::default()
    };
    let observed = tree.observed(from, to, known);
    let capabilities = Capabilities { os: IMAGES, ..LIVE };
    machinist_plan::between(from, to, &observed, &Policies::default(), capabilities)
}

fn booted(image: &str) -> OsFacts {
    OsFacts {
        image: Some(image.to_owned()),
        ..OsFacts::default()
    }
}

#[test]
fn an_update_starts_from_the_image_that_is_booted() {
    let config = asks_for(NEW);
    let plan = planned(&config, &config, booted(OLD)).unwrap();
    let names: Vec<_> = plan.changes.iter().map(|change| &change.name).collect();
    assert_eq!(names, [NEW], "recorded as applied, and another one runs");
    assert_eq!(plan.cost, machinist_plan::Cost::Reboot);
}

#[test]
fn an_image_that_is_booted_already_is_no_change() {
    let plan = planned(&asks_for(OLD), &asks_for(NEW), booted(NEW)).unwrap();
    assert!(plan.is_empty(), "{}", plan.to_text(false));
}

#[test]
fn an_os_downgrade_is_rejected_unless_allowed() {
    let os = |offered: &str| OsFacts {
        version: Some("416.94.2".to_owned()),
        offered: Some(offered.to_owned()),
        ..booted(OLD)
    };
    let mut to = asks_for(NEW);
    let from = asks_for(OLD);
    assert!(planned(&from, &to, os("416.94.3")).is_ok());
    let refusals = planned(&from, &to, os("415.92.9")).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::DowngradeRefused]);
    to.allow_downgrade();
    assert!(planned(&from, &to, os("415.92.9")).is_ok());
    let text = format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: to\n  \
         annotations: {{machinist.dev/allow-downgrade: \"true\"}}\nspec: {{osImageURL: {NEW}}}\n"
    );
    let rules = machinist_ignition::ConfigRules::default();
    let documents = machinist_ignition::parse(&text, "to.yaml", &rules).unwrap();
    let order = machinist_ignition::MergeOrder::AsGiven;
    let (to, _) = machinist_ignition::merge(documents, "to", order).unwrap();
    assert!(planned(&from, &to, os("415.92.9")).is_ok());
}

#[test]
fn changes_unsupported_by_the_os_provider_are_rejected_by_name() {
    let to = MachineConfig {
        kernel_arguments: vec!["nosmt".to_owned()],
        fips: true,
        ..asks_for(NEW)
    };
    let refusals = planned(&MachineConfig::default(), &to, booted(OLD)).unwrap_err();
    let mut messages: Vec<_> = refusals.iter().map(|refusal| &*refusal.message).collect();
    messages.sort_unstable();
    assert_eq!(
        messages,
        [
            "kernel argument fips=1: FIPS mode can only be set when a machine is installed",
            "kernel argument nosmt: cannot change kernel arguments on a bootc host: not supported by its \
             provider",
        ]
    );
}

#[test]
fn a_refusal_names_the_program_that_the_host_lacks() {
    let to = MachineConfig {
        extensions: vec!["usbguard".to_owned()],
        ..asks_for(NEW)
    };
    let only_arguments = OsCapabilities {
        kernel_arguments: true,
        ..OsCapabilities::without_provider(HostKind::Ostree)
    };
    let tree = Tree::new();
    let observed = tree.observed(&MachineConfig::default(), &to, CallerFacts::default());
    let capabilities = Capabilities {
        os: only_arguments,
        ..LIVE
    };
    let from = MachineConfig::default();
    let planned =
        machinist_plan::between(&from, &to, &observed, &Policies::default(), capabilities);
    let refusals = planned.unwrap_err();
    let messages: Vec<_> = refusals.iter().map(|refusal| &*refusal.message).collect();
    for lacking in [
        "cannot change the OS image: libostree's extension for container images or skopeo is not installed",
        "cannot change OS extensions: rpm-ostree is not installed",
    ] {
        let is_named = messages.iter().any(|message| message.ends_with(lacking));
        assert!(is_named, "{lacking}: {messages:?}");
    }
}

#[test]
fn an_image_is_refused_at_its_own_field() {
    let rendered = |image: &str| {
        config(&format!(
            "{{\"kind\": \"MachineConfig\", \"apiVersion\": \"machineconfiguration.openshift.io/v1\", \
             \"metadata\": {{\"name\": \"a\"}}, \"spec\": {{\"osImageURL\": \"{image}\", \
             \"baseOSExtensionsContainerImage\": \"{NEW}\", \
             \"config\": {{\"ignition\": {{\"version\": \"3.4.0\"}}}}}}}}"
        ))
    };
    let tree = Tree::new();
    let (from, to) = (rendered(OLD), rendered(NEW));
    let observed = tree.observed(&from, &to, CallerFacts::default());
    let plan = machinist_plan::between(&from, &to, &observed, &Policies::default(), LIVE);
    let refusals = plan.unwrap_err();
    let fields: Vec<_> = refusals.iter().map(|one| one.field.as_deref()).collect();
    assert_eq!(fields, [Some("spec.osImageURL")]);
}

/// The running arguments, machinist's among them, those of the two configs, and what is removed and appended.
type ArgumentCase = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    Option<(&'static str, &'static str)>,
);

const ARGUMENT_CASES: &[ArgumentCase] = &[
    ("quiet", "", &[], &["quiet", "a=1"], Some(("", "a=1"))),
    (
        "quiet a=1",
        "a=1",
        &["quiet", "a=1"],
        &[],
        Some(("a=1", "")),
    ),
    ("quiet a=1", "", &["quiet", "a=1"], &[], None),
    (
        "quiet a=1 b=2",
        "a=1 b=2",
        &["a=1", "b=2"],
        &["b=2"],
        Some(("a=1 b=2", "b=2")),
    ),
    (
        "c=0 c=1",
        "c=0 c=1",
        &["c=0", "c=1"],
        &["c=1", "c=0"],
        Some(("c=0 c=1", "c=1 c=0")),
    ),
    ("c=0 c=1", "c=1", &["c=1"], &["c=0"], Some(("c=1", ""))),
    ("a=1", "a=1", &["a=1"], &["a=1"], None),
    // Another program has removed it.
    ("quiet", "a=1", &["a=1"], &["a=1"], Some(("", "a=1"))),
    ("quiet", "a=1", &["a=1"], &[], None),
    (
        "quiet",
        "",
        &[],
        &["l=1", "l=2", "l=1"],
        Some(("", "l=1 l=2 l=1")),
    ),
    (
        "quiet l=1 l=2 l=1",
        "l=1 l=2 l=1",
        &["l=1", "l=2", "l=1"],
        &["l=1", "l=2", "l=1"],
        None,
    ),
    // The last one wins, so both come after that of the host.
    (
        "console=ttyS0",
        "",
        &[],
        &["console=tty0", "console=ttyS0"],
        Some(("", "console=tty0 console=ttyS0")),
    ),
];

#[test]
fn only_kernel_arguments_of_machinist_are_removed_and_their_order_is_that_of_the_config() {
    let tree = Tree::new();
    let with = |arguments: &[&str]| MachineConfig {
        kernel_arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
        ..MachineConfig::default()
    };
    let capabilities = Capabilities {
        os: OsCapabilities {
            kernel_arguments: true,
            repeated_arguments: true,
            ..OsCapabilities::default()
        },
        ..LIVE
    };
    for (running, own, from, to, expected) in ARGUMENT_CASES {
        tree.write("/proc/cmdline", running);
        let (from, to) = (with(from), with(to));
        let known = CallerFacts {
            os: OsFacts {
                own_arguments: KernelCommandLine::parse(own),
                ..OsFacts::default()
            },
            ..CallerFacts::default()
        };
        let observed = tree.observed(&from, &to, known);
        let plan =
            machinist_plan::between(&from, &to, &observed, &Policies::default(), capabilities);
        let plan = plan.unwrap();
        let update = plan.os.as_ref().map(|os| {
            let [remove, append] = [&os.remove_arguments, &os.append_arguments];
            (remove.to_string(), append.to_string())
        });
        let expected = expected.map(|(remove, append)| (remove.to_owned(), append.to_owned()));
        assert_eq!(update, expected, "{running} | {own}");
        assert_eq!(plan.cost == Cost::Reboot, update.is_some());
        assert_eq!(plan.is_empty(), update.is_none());
    }
}

/// systemd would start only a shell, before the guard that judges the boot.
#[test]
fn arguments_for_a_shell_instead_of_services_are_refused() {
    let tree = Tree::new();
    tree.write("/proc/cmdline", "quiet");
    let capabilities = Capabilities {
        os: OsCapabilities {
            kernel_arguments: true,
            ..OsCapabilities::default()
        },
        ..LIVE
    };
    let refused = |argument: &str| {
        let nothing = MachineConfig::default();
        let to = MachineConfig {
            kernel_arguments: vec![argument.to_owned()],
            ..MachineConfig::default()
        };
        let observed = tree.observed(&nothing, &to, CallerFacts::default());
        let policies = Policies::default();
        machinist_plan::between(&nothing, &to, &observed, &policies, capabilities).is_err()
    };
    for argument in [
        "emergency",
        "quiet emergency",
        "systemd.unit=\"emergency.target\"",
        "-b",
        "systemd.unit=emergency.target",
        "init=/bin/sh",
        "init=\"/usr/bin/bash\"",
        "rdinit=/bin/busybox",
        "machinist.trial",
        "quiet machinist.trial=machinist-0123456789abcdef",
        "\"machinist.trial=x y\"",
        "-- machinist.trial=x",
    ] {
        assert!(refused(argument), "{argument}");
    }
    for argument in [
        "emergency=1",
        "rescue",
        "systemd.unit=multi-user.target",
        "rd.emergency=reboot",
        "init=/bin/false",
        "init=/lib/systemd/systemd",
        "rdinit=/init",
        "machinist.trials=1",
        "init",
    ] {
        assert!(!refused(argument), "{argument}");
    }
}

/// A boot loader returns to the previous deployment only if it runs again.
#[test]
fn a_deployment_that_is_tried_warns_of_boots_that_hang() {
    let tree = Tree::new();
    tree.write("/proc/cmdline", "quiet");
    let nothing = MachineConfig::default();
    let with = |argument: &str| MachineConfig {
        kernel_arguments: vec![argument.to_owned()],
        ..MachineConfig::default()
    };
    let file = config(
        r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/a", "contents": {"source": "data:,b"}}]}}"#,
    );
    let capabilities = Capabilities {
        os: OsCapabilities {
            kernel_arguments: true,
            ..OsCapabilities::default()
        },
        ..LIVE
    };
    let hang = "a boot of the new deployment that hangs is not rolled back, unless a hardware watchdog restarts the \
                machine";
    for (to, is_empty, warnings) in [
        (with("nosmt"), false, vec![hang]),
        (with("quiet"), true, vec![]),
        (file, false, vec![]),
    ] {
        let observed = tree.observed(&nothing, &to, CallerFacts::default());
        let policies = Policies::default();
        let plan = machinist_plan::between(&nothing, &to, &observed, &policies, capabilities);
        let plan = plan.unwrap();
        assert_eq!(plan.is_empty(), is_empty);
        assert_eq!(plan.warnings, warnings);
    }
}

const PACKAGES: OsCapabilities = OsCapabilities {
    image: true,
    kernel_type: true,
    extensions: true,
    ..OsCapabilities::without_provider(HostKind::RpmOstree)
};

fn with_extensions(names: &[&str]) -> MachineConfig {
    MachineConfig {
        extensions: names.iter().map(|name| (*name).to_owned()).collect(),
        ..MachineConfig::default()
    }
}

fn planned_packages(
    from: &MachineConfig,
    to: &MachineConfig,
    os: OsFacts,
) -> Result<Plan, Vec<Refusal>> {
    let tree = Tree::new();
    let known = CallerFacts {
        os,
        ..CallerFacts::default()
    };
    let observed = tree.observed(from, to, known);
    let capabilities = Capabilities {
        os: PACKAGES,
        ..LIVE
    };
    machinist_plan::between(from, to, &observed, &Policies::default(), capabilities)
}

/// The extensions of the booted deployment, of which machinist has added some.
fn extended(all: &[&str], own: &[&str]) -> OsFacts {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    OsFacts {
        extensions: Some(names(all)),
        own_extensions: names(own),
        ..OsFacts::default()
    }
}

fn changes(plan: &Plan) -> Vec<String> {
    let change = |one: &machinist_plan::PlanChange| format!("{:?} {}", one.change, one.name);
    plan.changes.iter().map(change).collect()
}

#[test]
fn extensions_are_added_and_removed_and_those_of_the_host_stay() {
    let all = [
        "ipsec",
        "kerberos",
        "kernel-devel",
        "sandboxed-containers",
        "sysstat",
        "two-node-ha",
        "usbguard",
    ];
    let (nothing, everything) = (with_extensions(&[]), with_extensions(&all));
    let plan = planned_packages(&nothing, &everything, extended(&["usbguard"], &[])).unwrap();
    assert_eq!(plan.cost, Cost::Reboot);
    let added: Vec<String> = all[..6]
        .iter()
        .map(|name| format!("Create {name}"))
        .collect();
    assert_eq!(changes(&plan), added);
    let packages = plan.os.unwrap().packages.unwrap();
    assert!(packages.extensions.iter().eq(all.iter()));
    let booted = extended(&all, &all[..6]);
    let plan = planned_packages(&everything, &nothing, booted).unwrap();
    let removed: Vec<String> = all[..6]
        .iter()
        .map(|name| format!("Remove {name}"))
        .collect();
    assert_eq!(changes(&plan), removed);
    // What the machine has lost is added again.
    let plan = planned_packages(&everything, &everything, extended(&all[1..], &all[1..])).unwrap();
    assert_eq!(changes(&plan), ["Create ipsec"]);
}

#[test]
fn an_unknown_extension_is_refused_with_the_known_ones() {
    let to = with_extensions(&["usbguard", "games"]);
    let refusals = planned_packages(&with_extensions(&[]), &to, extended(&[], &[])).unwrap_err();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_eq!(refusals[0].reason, Reason::NoProviderForExtensions);
    assert_eq!(&*refusals[0].message, "\"games\" is not a known extension");
    let expected = refusals[0].expected.as_deref().unwrap();
    assert!(
        expected.starts_with("one of ipsec, kerberos, "),
        "{expected}"
    );
}

#[test]
fn the_image_of_extensions_matters_only_with_packages() {
    let image = |image: &str, extensions: &[&str]| MachineConfig {
        extensions_image: Some(image.to_owned()),
        ..with_extensions(extensions)
    };
    let none = extended(&[], &[]);
    let plan = planned_packages(&image(OLD, &[]), &image(NEW, &[]), none).unwrap();
    assert!(plan.is_empty(), "{}", plan.to_text(false));
    let (from, to) = (image(OLD, &["sysstat"]), image(NEW, &["sysstat"]));
    let plan = planned_packages(&from, &to, extended(&["sysstat"], &["sysstat"])).unwrap();
    let repository = plan.os.unwrap().packages.unwrap().repository.unwrap();
    assert_eq!(repository.to_string(), NEW);
}

#[test]
fn a_kernel_type_is_a_change_unless_that_kernel_runs() {
    let realtime = MachineConfig {
        kernel_type: Some("realtime".to_owned()),
        ..MachineConfig::default()
    };
    let plain = MachineConfig::default();
    let plan = planned_packages(&plain, &realtime, extended(&[], &[])).unwrap();
    assert_eq!(changes(&plan), ["Modify kernelType realtime"]);
    assert_eq!(
        plan.os.unwrap().packages.unwrap().kernel_type,
        KernelType::Realtime
    );
    let own = OsFacts {
        has_own_kernel_type: true,
        ..extended(&[], &[])
    };
    let plan = planned_packages(&realtime, &plain, own).unwrap();
    assert_eq!(changes(&plan), ["Modify kernelType default"]);
    // An administrator has installed that kernel.
    let plan = planned_packages(&realtime, &plain, extended(&[], &[])).unwrap();
    assert_eq!(changes(&plan), [""; 0]);
    let stays = "OS image kernelType realtime is no longer in the config, but stays: machinist has not added it";
    assert!(
        plan.warnings.iter().any(|it| it == stays),
        "{:?}",
        plan.warnings
    );
}
