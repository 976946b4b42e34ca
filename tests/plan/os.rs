//! The operating system in a plan, on a host whose provider can change it.

use machinist_base::reason::Reason;
use machinist_ignition::{KernelCommandLine, MachineConfig, Refusal, Release};
use machinist_plan::{Capabilities, Cost, HostKind, OsCapabilities, OsFacts, Plan, Policies};
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
    to.release = Some(Release {
        version: "4.15.9".to_owned(),
        may_be_lower: true,
        ..Release::default()
    });
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
            "kernel argument fips=1: cannot change FIPS mode on a bootc host: not supported by its \
             provider",
            "kernel argument nosmt: cannot change kernel arguments on a bootc host: not supported by its \
             provider",
        ]
    );
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
