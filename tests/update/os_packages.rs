//! Updates that change extensions and the kernel type, on a machine with rpm-ostree.

use std::collections::BTreeSet;

use machinist_base::reason::Reason;
use machinist_plan::ImageRef;
use machinist_testkit::sandbox::{Written, config};
use machinist_update::reconciler::UpdateReport;

use crate::{
    os::{ostree_files::Layout, ostree_machine::BEFORE, rpm_ostree_daemon::Packages},
    update::{os_trials_on_ostree::Host, reboots::reboots},
};

fn image(content: &str) -> ImageRef {
    let digest = machinist_base::digest::Digest::of(content.as_bytes());
    ImageRef::parse(&format!("registry.example.com/os@{digest}")).unwrap()
}

fn with_extensions(name: &str, extensions: &[&str]) -> Written {
    let mut wanted = config(name).file("/etc/example.conf", name, 0o644);
    wanted.0.extensions = extensions.iter().map(|one| (*one).to_owned()).collect();
    wanted.0.extensions_image = Some(image("extensions").to_string());
    wanted
}

/// The packages of the running deployment.
fn packages(host: &Host) -> BTreeSet<String> {
    let mounts = host.ostree.read("proc/1/mountinfo");
    let (_, rest) = mounts.split_once("/deploy/debian/deploy/").unwrap();
    let name = rest.split(' ').next().unwrap();
    let origin = format!("ostree/deploy/debian/deploy/{name}.origin");
    Packages::of_origin(&host.ostree.read(&origin)).requested
}

fn host() -> Host {
    let host = Host::with_layout(Layout::RpmOstree);
    let registry = &host.ostree.registry;
    registry.publish_repository(&image("extensions"), &["usbguard", "krb5-workstation"]);
    host
}

#[tokio::test(start_paused = true)]
async fn extensions_and_kernel_type_are_tried_by_one_boot_and_taken_back() {
    let mut host = host();
    let mut first = with_extensions("one", &["usbguard", "kerberos"]);
    first.0.kernel_type = Some("realtime".to_owned());
    first.0.kernel_arguments = vec!["nosmt".to_owned()];
    host.apply(&first).await;
    let with_all = packages(&host);
    for name in ["usbguard", "libkadm5", "kernel-rt-core"] {
        assert!(with_all.contains(name), "{name}: {with_all:?}");
    }
    assert_eq!(host.ostree.running(), format!("{BEFORE} nosmt"));
    assert_eq!(reboots(&host.script), 1);
    // The image of extensions alone is no reason to boot if the packages are the same.
    host.apply(&with_extensions("two", &["usbguard"])).await;
    assert_eq!(packages(&host), BTreeSet::from(["usbguard".to_owned()]));
    assert_eq!(host.ostree.running(), BEFORE);
    host.apply(&with_extensions("three", &[])).await;
    assert_eq!(packages(&host), BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn a_panic_with_new_packages_returns_to_the_previous_ones() {
    let mut host = host();
    host.apply(&with_extensions("one", &["usbguard"])).await;
    let update = with_extensions("bad", &["kerberos", "usbguard"]);
    host.until_reboot(&update).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    let staged = trial.packages.clone().unwrap();
    assert!(staged.extensions.contains("kerberos"), "{trial:?}");
    host.ostree.panics(&trial.deployment);
    host.reboot();
    host.until_reboot(&update).await;
    host.reboot();
    assert_eq!(host.until_failed(&update).await, Reason::OSBootFailed);
    assert_eq!(packages(&host), BTreeSet::from(["usbguard".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn packages_that_cannot_be_downloaded_change_nothing() {
    let host = host();
    host.ostree.rpm_ostree.lacks("sysstat");
    let update = with_extensions("one", &["sysstat"]);
    let mut agent = host.agent(&update);
    let failure = agent.until_failed().await.failure.clone().unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Reason::OSStepFailed, false)
    );
    let message = &failure.message;
    assert!(message.contains("Packages not found: sysstat"), "{message}");
    agent.stop().await;
    assert!(!host.sandbox.path("/etc/example.conf").exists());
    assert_eq!(packages(&host), BTreeSet::new());
}

/// What machine-config-daemon has added leaves with the config that no longer has it, also if the first update changes
/// nothing of the operating system.
#[tokio::test(start_paused = true)]
async fn packages_and_arguments_of_another_daemon_are_removed_by_a_later_config() {
    let mut host = host();
    let mut theirs = with_extensions("theirs", &["usbguard", "kerberos"]);
    theirs.0.kernel_arguments = vec!["nosmt".to_owned(), "a=1".to_owned()];
    host.apply(&theirs).await;
    std::fs::remove_dir_all(host.sandbox.path("/var/lib/machinist")).unwrap();
    let declared = serde_json::json!({"metadata": {"name": "theirs"}, "spec": {
        "kernelArguments": ["nosmt", "a=1"], "extensions": ["usbguard", "kerberos"],
        "baseOSExtensionsContainerImage": image("extensions").to_string()}});
    let file = "/etc/machine-config-daemon/currentconfig";
    host.sandbox.write(file, &declared.to_string());
    let mut first = theirs.clone().file("/etc/example.conf", "one", 0o644);
    first.0.name = "one".to_owned();
    host.until_reboot(&first).await;
    assert_eq!(host.sandbox.journal().os_trial, None);
    host.reboot();
    host.until_on(&first).await;
    let mut second = with_extensions("two", &["usbguard"]);
    second.0.kernel_arguments = vec!["a=1".to_owned()];
    host.apply(&second).await;
    assert_eq!(packages(&host), BTreeSet::from(["usbguard".to_owned()]));
    assert_eq!(host.ostree.running(), format!("{BEFORE} a=1"));
    host.apply(&with_extensions("three", &[])).await;
    assert_eq!(packages(&host), BTreeSet::new());
    assert_eq!(host.ostree.running(), BEFORE);
}

/// Only aarch64 has such kernels, and elsewhere the plan refuses them before the node is drained.
#[cfg_attr(target_arch = "aarch64", ignore = "it has such kernels")]
#[tokio::test(start_paused = true)]
async fn large_pages_are_refused_on_other_processors_than_aarch64() {
    let host = host();
    let mut update = with_extensions("one", &[]);
    update.0.kernel_type = Some("64k-pages".to_owned());
    let mut agent = host.agent(&update);
    let refused = |report: &UpdateReport| report.failure.is_some();
    let report = agent.until("a refusal", refused).await;
    let refusals = &report.failure.as_ref().unwrap().refusals;
    agent.stop().await;
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_eq!(refusals[0].field.as_deref(), Some("kernelType"));
    let message = &refusals[0].message;
    assert_eq!(&**message, "kernelType 64k-pages needs aarch64");
    assert!(!host.sandbox.path("/etc/example.conf").exists());
    assert_eq!(
        (packages(&host), reboots(&host.script)),
        (BTreeSet::new(), 0)
    );
}
