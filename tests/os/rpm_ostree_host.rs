//! The OSTree provider on a host with rpm-ostree: extensions and kernel types.

use std::{collections::BTreeSet, time::Duration};

use machinist_base::reason::Reason;
use machinist_plan::{ImageRef, KernelType, OsPackages};
use machinist_update::os::{
    DeploymentId, DesiredDeployment, OsError, OsProvider as _, OstreeProvider, ProviderStep,
    TransactionKind,
};

use super::{
    contract::{Host, STEP_TIMEOUT, every_provider_keeps, image},
    ostree_files::Layout,
    ostree_host::OstreeHost,
    ostree_machine::{BEFORE, OstreeProgram},
    rpm_ostree_daemon::Packages,
};

pub(super) struct RpmOstreeHost(pub(super) OstreeHost);

impl RpmOstreeHost {
    fn new() -> Self {
        Self::with_layout(Layout::RpmOstree)
    }

    pub(super) fn with_layout(layout: Layout) -> Self {
        Self(OstreeHost::with_layout(layout))
    }

    fn agent(&self) -> OstreeProvider<OstreeProgram> {
        self.0.agent()
    }

    /// Adds packages as an administrator does, to the deployment that runs.
    pub(super) fn add_packages(&self, text: &str) {
        let booted = self.booted();
        let origin = format!("ostree/deploy/debian/deploy/{booted}.origin");
        let before = self.0.read(&origin);
        let path = self.0.directory.path().join(origin);
        std::fs::write(path, format!("{before}\n{text}")).unwrap();
    }

    fn booted(&self) -> String {
        let mounts = self.0.read("proc/1/mountinfo");
        let (_, rest) = mounts.split_once("/deploy/debian/deploy/").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    }

    /// The packages of the running deployment.
    pub(super) fn packages(&self) -> Packages {
        let origin = format!("ostree/deploy/debian/deploy/{}.origin", self.booted());
        Packages::of_origin(&self.0.read(&origin))
    }

    /// Fetches, stages, boots and keeps a deployment.
    pub(super) async fn run_on(&self, wanted: &DesiredDeployment) {
        let agent = self.agent();
        agent.fetch(wanted, STEP_TIMEOUT).await.unwrap();
        assert!(agent.fetched(wanted).await.unwrap().is_some());
        let id = agent.stage(wanted, STEP_TIMEOUT).await.unwrap().unwrap();
        self.enter(&id).await;
    }

    async fn enter(&self, id: &DeploymentId) {
        self.agent().unlock(id).await.unwrap();
        self.0.reboot();
        assert_eq!(self.booted(), id.as_str());
        self.agent().keep(id).await.unwrap();
        self.0.assert_settled("kept");
        // Both files were written while /boot was mounted read-only.
        for file in ["custom.cfg", "grubenv"] {
            let written = self.0.read(&format!("run/by-unshare/boot/grub2/{file}"));
            assert_eq!(self.0.grub_file(file), written, "{file}");
        }
        assert_eq!(self.0.read("ostree/repo/refs/heads/machinist/layered"), "");
    }
}

impl Host for RpmOstreeHost {
    type Provider = OstreeProvider<OstreeProgram>;

    const KEEPS_EQUAL_ARGUMENTS: bool = OstreeHost::KEEPS_EQUAL_ARGUMENTS;

    const KEEPS_FALLBACK: bool = OstreeHost::KEEPS_FALLBACK;

    fn agent(&self) -> Self::Provider {
        self.0.agent()
    }

    fn reboot(&self) {
        self.0.reboot();
    }

    fn power_cut(&self) {
        self.0.power_cut();
    }

    fn publishes(&self, image: &ImageRef, version: &str) {
        self.0.publishes(image, version);
    }

    fn fails_next(&self, step: ProviderStep) {
        self.0.fails_next(step);
    }

    fn panics(&self, id: &DeploymentId) {
        Host::panics(&self.0, id);
    }

    fn takes(&self, long: Duration) {
        self.0.takes(long);
    }
}

pub(super) fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

pub(super) fn with_packages(kernel_type: KernelType, extensions: &[&str]) -> DesiredDeployment {
    DesiredDeployment {
        packages: Some(OsPackages {
            kernel_type,
            extensions: names(extensions),
            repository: None,
            adopted: BTreeSet::new(),
        }),
        ..DesiredDeployment::default()
    }
}

fn from_repository(extensions: &[&str], repository: &ImageRef) -> DesiredDeployment {
    let mut wanted = with_packages(KernelType::Default, extensions);
    if let Some(packages) = &mut wanted.packages {
        packages.repository = Some(repository.clone());
    }
    wanted
}

#[tokio::test(start_paused = true)]
async fn the_ostree_provider_passes_the_contract_with_rpm_ostree() {
    for layout in [Layout::RpmOstree, Layout::BootcAndRpmOstree] {
        let broken = every_provider_keeps(|| RpmOstreeHost::with_layout(layout)).await;
        assert!(broken.is_empty(), "{layout:?}: {broken:#?}");
    }
}

#[tokio::test]
async fn extensions_and_kernel_types_come_and_go_and_other_packages_stay() {
    extensions_come_and_go_with(KernelType::Realtime).await;
    extensions_come_and_go_with(KernelType::LargePages).await;
}

async fn extensions_come_and_go_with(kernel: KernelType) {
    let host = RpmOstreeHost::new();
    host.add_packages("[packages]\nrequested=htop;\n\n[overrides]\nremove=nano;\n");
    let all = [
        "ipsec",
        "kerberos",
        "sandboxed-containers",
        "sysstat",
        "two-node-ha",
        "usbguard",
    ];
    host.run_on(&with_packages(kernel, &all)).await;
    let packages = host.packages();
    let expected = names(&["htop", "krb5-workstation", "pcs", "libreswan"]);
    assert!(packages.requested.is_superset(&expected), "{packages:?}");
    let of_kernel = names(kernel.packages());
    assert!(packages.requested.is_superset(&of_kernel), "{packages:?}");
    assert!(packages.removed.is_superset(&names(&["kernel", "nano"])));
    let booted = host.agent().observe().await.unwrap().booted;
    assert_eq!(booted.kernel_type, kernel);
    assert_eq!(booted.extensions, names(&all));
    // A new image keeps them.
    host.0.registry.publish(&image("new"), "2.0");
    let next = DesiredDeployment {
        image: Some(image("new")),
        ..with_packages(kernel, &["usbguard"])
    };
    host.run_on(&next).await;
    let packages = host.packages();
    let expected = names(&["htop", "usbguard"]);
    assert!(packages.requested.is_superset(&expected), "{packages:?}");
    assert!(packages.requested.is_superset(&of_kernel), "{packages:?}");
    assert!(!packages.requested.contains("pcs"), "{packages:?}");
    let booted = host.agent().observe().await.unwrap().booted;
    assert_eq!(booted.image, next.image);
    assert_eq!(booted.version.as_deref(), Some("2.0"));
    // The same again changes nothing.
    let same = with_packages(kernel, &["usbguard"]);
    assert!(host.agent().fetched(&same).await.unwrap().is_some());
    assert_eq!(host.agent().stage(&same, STEP_TIMEOUT).await.unwrap(), None);
    host.run_on(&with_packages(KernelType::Default, &[])).await;
    let expected = Packages {
        requested: names(&["htop"]),
        removed: names(&["nano"]),
    };
    assert_eq!(host.packages(), expected);
    let booted = host.agent().observe().await.unwrap().booted;
    assert_eq!(booted.image, next.image);
}

/// One replaces the other, and the packages of the image come back after the last one.
#[tokio::test]
async fn a_kernel_type_is_exchanged_for_another_one_in_one_boot() {
    let host = RpmOstreeHost::new();
    host.add_packages("[packages]\nrequested=htop;\n\n[overrides]\nremove=nano;\n");
    let before = host.packages();
    for kernel in [
        KernelType::Realtime,
        KernelType::LargePages,
        KernelType::Realtime,
    ] {
        host.run_on(&with_packages(kernel, &["usbguard"])).await;
        let of_kernel: BTreeSet<String> = names(kernel.packages());
        let others = names(&["htop", "usbguard"]);
        let mut replaced = names(kernel.replaced_packages());
        replaced.insert("nano".to_owned());
        let expected = Packages {
            requested: others.union(&of_kernel).cloned().collect(),
            removed: replaced,
        };
        assert_eq!(host.packages(), expected);
        let booted = host.agent().observe().await.unwrap().booted;
        assert_eq!(booted.kernel_type, kernel);
    }
    let transactions = host.0.rpm_ostree.transactions.lock().unwrap().len();
    assert_eq!(transactions, 6, "a download and a deployment for each");
    host.run_on(&with_packages(KernelType::Default, &[])).await;
    assert_eq!(host.packages(), before);
}

/// The first config has not been booted when the second one arrives, which needs the same kernel.
#[tokio::test]
async fn packages_are_downloaded_while_another_deployment_waits_for_its_boot() {
    let host = RpmOstreeHost::new();
    let agent = host.agent();
    let first = with_packages(KernelType::Realtime, &[]);
    agent.fetch(&first, STEP_TIMEOUT).await.unwrap();
    let staged = agent.stage(&first, STEP_TIMEOUT).await.unwrap().unwrap();
    let second = with_packages(KernelType::Realtime, &["usbguard"]);
    agent.fetch(&second, STEP_TIMEOUT).await.unwrap();
    // If the config changes back, it is staged again.
    let missing = agent.unlock(&staged).await.unwrap_err();
    assert!(matches!(missing, OsError::DeploymentMissing { .. }));
    host.run_on(&second).await;
    assert!(host.packages().requested.contains("usbguard"));
    let booted = agent.observe().await.unwrap().booted;
    assert_eq!(booted.kernel_type, KernelType::Realtime);
}

#[tokio::test]
async fn arguments_of_a_deployment_with_packages_need_no_transaction() {
    let host = RpmOstreeHost::new();
    let packages = with_packages(KernelType::Default, &["usbguard"]);
    host.run_on(&packages).await;
    let count = || host.0.rpm_ostree.transactions.lock().unwrap().len();
    let before = count();
    let arguments = DesiredDeployment {
        packages: packages.packages,
        ..super::contract::wanted("nosmt", "")
    };
    host.run_on(&arguments).await;
    assert_eq!(count(), before);
    assert_eq!(host.0.running(), format!("{BEFORE} nosmt"));
    assert_eq!(host.packages().requested, names(&["usbguard"]));
}

/// The packages of an administrator that an extension also has stay when the extension goes.
#[tokio::test]
async fn packages_that_were_there_before_an_extension_stay() {
    let host = RpmOstreeHost::new();
    host.add_packages("[packages]\nrequested=usbguard;\n");
    let usbguard = with_packages(KernelType::Default, &["usbguard"]);
    assert_eq!(
        host.agent().stage(&usbguard, STEP_TIMEOUT).await.unwrap(),
        None
    );
    host.run_on(&with_packages(
        KernelType::Default,
        &["sysstat", "usbguard"],
    ))
    .await;
    host.run_on(&with_packages(KernelType::Default, &[])).await;
    assert_eq!(host.packages().requested, names(&["usbguard"]));
}

/// machinist has removed the package before, and the fallback deployment still has it.
#[tokio::test]
async fn a_package_that_an_administrator_installs_after_its_extension_has_gone_stays() {
    let host = RpmOstreeHost::new();
    let usbguard = with_packages(KernelType::Default, &["usbguard"]);
    let none = with_packages(KernelType::Default, &[]);
    // The packages of a trial, of the running deployment and of an earlier config remain machinist's.
    let agent = host.agent();
    agent.fetch(&usbguard, STEP_TIMEOUT).await.unwrap();
    let staged = agent.stage(&usbguard, STEP_TIMEOUT).await.unwrap().unwrap();
    agent.clean_up().await.unwrap();
    host.enter(&staged).await;
    for wanted in [&none, &usbguard, &none] {
        host.agent().clean_up().await.unwrap();
        host.run_on(wanted).await;
    }
    assert_eq!(host.packages(), Packages::default());
    host.agent().clean_up().await.unwrap();
    host.add_packages("[packages]\nrequested=usbguard;\n");
    let later = DesiredDeployment {
        packages: none.packages,
        ..super::contract::wanted("nosmt", "")
    };
    host.run_on(&later).await;
    assert_eq!(host.packages().requested, names(&["usbguard"]));
}

#[tokio::test]
async fn packages_come_from_the_image_of_extensions_and_leave_no_repository() {
    let host = RpmOstreeHost::new();
    let (old, new) = (image("extensions"), image("newer extensions"));
    host.0.registry.publish_repository(&old, &["libreswan"]);
    host.0
        .registry
        .publish_repository(&new, &["libreswan", "openvswitch3.5-ipsec"]);
    host.run_on(&from_repository(&["ipsec"], &old)).await;
    assert_eq!(
        host.packages().requested,
        names(&["NetworkManager-libreswan", "libreswan"])
    );
    host.run_on(&from_repository(&["ipsec"], &new)).await;
    assert!(host.packages().requested.contains("openvswitch3.5-ipsec"));
    let transactions = host.0.rpm_ostree.transactions.lock().unwrap().clone();
    let kinds: Vec<TransactionKind> = transactions.iter().map(|(kind, _)| *kind).collect();
    let (download, stage) = (TransactionKind::Download, TransactionKind::Stage);
    assert_eq!(kinds, [download, stage, download, stage]);
    for ((_, repository), image) in transactions.iter().zip([&old, &old, &new, &new]) {
        let digest = image.digest().to_string();
        let hex = digest.strip_prefix("sha256:").unwrap();
        let line = format!("baseurl=file:///var/lib/machinist/os-extensions/{hex}\n");
        assert!(repository.contains(&line), "{repository}");
    }
    let repository = "etc/yum.repos.d/machinist-os-extensions.repo";
    assert_eq!(host.0.read(repository), "");
    host.agent().clean_up().await.unwrap();
    let directory = host
        .0
        .directory
        .path()
        .join("var/lib/machinist/os-extensions");
    assert!(!directory.exists());
    // A registry without the image is named before the drain.
    let missing = from_repository(&["sysstat"], &image("missing"));
    assert_eq!(host.agent().fetched(&missing).await.unwrap(), None);
    let failed = host
        .agent()
        .fetch(&missing, STEP_TIMEOUT)
        .await
        .unwrap_err();
    assert_eq!(failed.reason(), Reason::ImageUnreachable);
    assert!(!failed.is_retryable());
}

#[tokio::test]
async fn a_package_that_no_repository_has_is_reported_before_the_drain() {
    let host = RpmOstreeHost::new();
    host.0.rpm_ostree.lacks("usbguard");
    let wanted = with_packages(KernelType::Default, &["usbguard"]);
    let failed = host.agent().fetch(&wanted, STEP_TIMEOUT).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::OSStepFailed);
    assert!(!failed.is_retryable());
    let message = machinist_base::error_chain::chain(&failed);
    assert!(
        message.contains("Packages not found: usbguard"),
        "{message}"
    );
    assert_eq!(host.0.read("run/ostree/staged-deployment"), "");
}

/// The agent was killed, also after rpm-ostree had staged its deployment and before that was staged as a trial.
#[tokio::test]
async fn an_interrupted_staging_of_packages_is_repeated_or_discarded() {
    for is_repeated in [true, false] {
        let mut operations = 0;
        while !is_staged_before(operations, is_repeated).await {
            operations += 1;
            assert!(operations < 200);
        }
        assert!(operations > 5);
    }
}

/// Interrupts the staging after some file operations, and returns whether it was done by then.
async fn is_staged_before(operations: usize, is_repeated: bool) -> bool {
    let host = RpmOstreeHost::new();
    let repository = image("extensions");
    host.0
        .registry
        .publish_repository(&repository, &["usbguard"]);
    let wanted = from_repository(&["usbguard"], &repository);
    host.agent().fetch(&wanted, STEP_TIMEOUT).await.unwrap();
    let agent = host.0.agent_until(operations);
    let is_done = agent.stage(&wanted, STEP_TIMEOUT).await.is_ok();
    if is_repeated {
        let id = host.agent().stage(&wanted, STEP_TIMEOUT).await.unwrap();
        host.enter(&id.unwrap()).await;
        assert_eq!(host.packages().requested, names(&["usbguard"]));
    } else {
        host.agent().discard().await.unwrap();
        assert_eq!(host.0.read("run/ostree/staged-deployment"), "");
        assert_eq!(
            host.0.read("etc/yum.repos.d/machinist-os-extensions.repo"),
            ""
        );
        host.0.reboot();
        assert_eq!(host.0.running(), BEFORE);
        host.0.assert_settled("discarded");
        assert_eq!(host.packages(), Packages::default());
    }
    is_done
}
