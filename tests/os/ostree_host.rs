//! The OSTree provider on real files with a simulated boot loader.

use std::{ops::Deref, sync::atomic::Ordering, time::Duration};

use machinist_base::reason::Reason;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{
    DeploymentId, DesiredDeployment, OsError, OsProvider as _, OstreeProvider, ProviderStep,
};

use super::{
    contract::{Host, STEP_TIMEOUT, every_provider_keeps, of_image, wanted},
    full_disk::FillableHost,
    interruptions::Interruption,
    ostree_files::Layout,
    ostree_machine::{BEFORE, CUSTOM, OstreeMachine, OstreeProgram},
    power_cuts::CuttableHost,
};

pub(super) struct OstreeHost {
    machine: OstreeMachine,
    pub(super) directory: tempfile::TempDir,
}

impl OstreeHost {
    pub(super) fn new() -> Self {
        Self::with_layout(Layout::Debian)
    }

    pub(super) fn with_layout(layout: Layout) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            machine: OstreeMachine::with_layout(directory.path(), layout),
            directory,
        }
    }

    /// Checks that nothing of a trial is left.
    pub(super) fn assert_settled(&self, case: &str) {
        assert_eq!(self.grub_file("custom.cfg"), CUSTOM, "{case}");
        assert!(!self.grub_file("grubenv").contains("machinist"), "{case}");
        let (name, options) = &self.menu()[0];
        assert!(!options.contains("machinist"), "{case}: {name} {options}");
        let second_name = self.directory.path().join("boot/loader.machinist");
        assert!(!second_name.is_symlink(), "{case}");
    }
}

impl Deref for OstreeHost {
    type Target = OstreeMachine;

    fn deref(&self) -> &OstreeMachine {
        &self.machine
    }
}

impl CuttableHost for OstreeHost {
    fn agent_until(&self, operations: usize) -> Self::Provider {
        self.machine.agent_until(operations)
    }

    fn running(&self) -> String {
        self.machine.running()
    }

    /// A deployment has the arguments of its own kernel only.
    fn assert_settled(&self, _own: &str, case: &str) {
        OstreeHost::assert_settled(self, case);
    }
}

impl FillableHost for OstreeHost {
    fn interrupted_agent(&self, interruption: &Interruption) -> Self::Provider {
        self.machine.interrupted_agent(interruption)
    }
}

impl Host for OstreeHost {
    type Provider = OstreeProvider<OstreeProgram>;

    const CHANGES_PACKAGES: bool = false;

    const KEEPS_EQUAL_ARGUMENTS: bool = false;

    const KEEPS_FALLBACK: bool = false;

    fn agent(&self) -> Self::Provider {
        self.machine.agent()
    }

    fn reboot(&self) {
        self.machine.reboot();
    }

    fn power_cut(&self) {
        self.machine.boot();
    }

    fn publishes(&self, image: &ImageRef, version: &str) {
        self.machine.registry.publish(image, version);
    }

    fn fails_next(&self, step: ProviderStep) {
        self.machine.fails_next(step);
    }

    fn panics(&self, id: &DeploymentId) {
        self.machine.panics(id.as_str());
    }

    fn takes(&self, long: Duration) {
        self.machine.registry.take(long);
    }
}

#[tokio::test(start_paused = true)]
async fn the_ostree_provider_passes_the_contract() {
    for layout in [Layout::Debian, Layout::Bootc] {
        let broken = every_provider_keeps(|| OstreeHost::with_layout(layout)).await;
        assert!(broken.is_empty(), "{layout:?}: {broken:#?}");
    }
}

#[tokio::test]
async fn a_deployment_whose_kernel_is_missing_falls_back_by_itself() {
    // Fedora's GRUB waits for a keystroke instead.
    let host = OstreeHost::new();
    let before = host.running();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot_without_kernel();
    assert_eq!(host.running(), before);
    host.agent().discard().await.unwrap();
    host.reboot();
    assert_eq!(host.running(), before);
    host.assert_settled("after a missing kernel");
}

/// The machine loses power after the deployment was unlocked and before it is finalized.
#[tokio::test]
async fn a_trial_that_was_never_finalized_does_not_select_another_deployment() {
    let host = OstreeHost::new();
    let first = host.agent().observe().await.unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    host.agent()
        .unlock(&staged.unwrap().unwrap())
        .await
        .unwrap();
    for _ in 0..3 {
        host.power_cut();
        let now = host.agent().observe().await.unwrap();
        assert_eq!((&now.booted, &now.next), (&first.booted, &first.next));
        assert_eq!(now.staged, None);
    }
    host.agent().discard().await.unwrap();
    host.assert_settled("after a power cut");
}

#[tokio::test]
async fn arguments_that_need_quotes_reach_the_kernel_of_a_deployment() {
    let host = OstreeHost::new();
    let text =
        "a=\"b  c\" d=$x e=`y` f=#z;g|h&i \"j=k l\" m=*?[n]~ console=ttyS0 console=tty1 o={p}<q>";
    let staged = host.agent().stage(&wanted(text, ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    let expected = KernelCommandLine::parse(&format!("{BEFORE} {text}"));
    for kept in [false, true] {
        host.reboot();
        let running = KernelCommandLine::parse(&host.running());
        assert_eq!(running, expected, "kept: {kept}");
        host.agent().keep(&id).await.unwrap();
    }
    host.assert_settled("kept");
    for text in ["a=\\b", "a=it's", "a=b\"c\"d"] {
        let refused = host.agent().stage(&wanted(text, ""), STEP_TIMEOUT).await;
        assert!(!refused.unwrap_err().is_retryable());
    }
}

/// libostree keeps the last of several equal arguments.
#[tokio::test]
async fn equal_arguments_are_the_last_of_them() {
    let host = OstreeHost::new();
    let text = "l=1 console=ttyS0 l=2 l=1 console=ttyS0 z";
    let staged = host.agent().stage(&wanted(text, ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    for _ in 0..2 {
        host.reboot();
        assert_eq!(host.running(), format!("{BEFORE} l=2 l=1 console=ttyS0 z"));
        host.agent().keep(&id).await.unwrap();
    }
    let agent = host.agent();
    let staged = agent.stage(&wanted("a=1 rw", "z"), STEP_TIMEOUT).await;
    let error = machinist_base::error_chain::chain(&staged.unwrap_err());
    assert!(error.contains("kernel argument rw: "), "{error}");
    let staged = agent.stage(&wanted("a=1", "l=2 z"), STEP_TIMEOUT).await;
    agent.unlock(&staged.unwrap().unwrap()).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} l=1 console=ttyS0 a=1"));
}

/// What an administrator has staged or deployed is not replaced.
#[tokio::test]
async fn deployments_of_other_programs_stay() {
    for is_staged in [true, false] {
        let host = OstreeHost::new();
        let origin = format!(
            "--origin-file=/ostree/deploy/debian/deploy/{}.origin",
            host.menu()[0].0
        );
        let deploy = [
            "deploy",
            "--os=debian",
            &origin,
            "--stage",
            "--lock-finalization",
            "--karg-none",
            "--karg-append=quiet",
            "ef",
        ];
        host.admin(&deploy);
        if !is_staged {
            host.admin(&["undeploy", "0"]);
            host.admin(&["set-default", "1"]);
        }
        let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
        let error = machinist_base::error_chain::chain(&staged.unwrap_err());
        let expected = match is_staged {
            true => "another program has staged the deployment ef.0",
            false => "the next boot enters another deployment than the running one, ab.0",
        };
        assert!(error.contains(expected), "{error}");
        host.agent().discard().await.unwrap();
        assert_eq!(host.read("boot/grub/custom.cfg"), CUSTOM);
        assert_eq!(
            host.read("run/ostree/staged-deployment").is_empty(),
            !is_staged
        );
    }
}

/// The agent was killed after bootc had staged the image, and before that was staged as a trial.
#[tokio::test]
async fn an_interrupted_switch_of_bootc_is_repeated_or_discarded() {
    for is_repeated in [true, false] {
        let mut operations = 0;
        while !is_switched_before(operations, is_repeated).await {
            operations += 1;
            assert!(operations < 200);
        }
    }
}

/// Interrupts the staging of an image after some file operations, and returns whether it was done by then.
async fn is_switched_before(operations: usize, is_repeated: bool) -> bool {
    let host = OstreeHost::with_layout(Layout::Bootc);
    let image = super::contract::image("new");
    host.registry.publish(&image, "2.0");
    host.agent()
        .fetch(&of_image(image.clone()), STEP_TIMEOUT)
        .await
        .unwrap();
    let wanted = DesiredDeployment {
        image: Some(image),
        ..wanted("nosmt", "")
    };
    let agent = host.agent_until(operations);
    let is_done = agent.stage(&wanted, STEP_TIMEOUT).await.is_ok();
    if is_repeated {
        let id = host.agent().stage(&wanted, STEP_TIMEOUT).await.unwrap();
        host.agent().unlock(&id.unwrap()).await.unwrap();
        host.reboot();
        assert_eq!(host.running(), format!("{BEFORE} nosmt"));
        let booted = host.agent().observe().await.unwrap().booted;
        assert_eq!(booted.image, wanted.image);
    } else {
        host.agent().discard().await.unwrap();
        assert_eq!(host.read("run/ostree/staged-deployment"), "");
        host.reboot();
        assert_eq!(host.running(), BEFORE);
        host.assert_settled("discarded");
    }
    is_done
}

/// bootc stages an image before it pulls those to which the image is bound.
#[tokio::test]
async fn a_switch_of_bootc_that_fails_leaves_nothing_staged() {
    let host = OstreeHost::with_layout(Layout::Bootc);
    let image = super::contract::image("new");
    host.registry.publish(&image, "2.0");
    host.agent()
        .fetch(&of_image(image.clone()), STEP_TIMEOUT)
        .await
        .unwrap();
    let wanted = DesiredDeployment {
        image: Some(image),
        ..wanted("nosmt", "")
    };
    host.fails_next(ProviderStep::Keep);
    let failed = host.agent().stage(&wanted, STEP_TIMEOUT).await.unwrap_err();
    let message = machinist_base::error_chain::chain(&failed);
    assert!(message.contains("Pulling bound images"), "{message}");
    assert!(failed.is_retryable());
    assert_eq!(host.read("run/ostree/staged-deployment"), "");
    // What an administrator has staged, even of the same image, stays.
    let origin = "/ostree/deploy/debian/deploy/cd.0.origin";
    let origin = format!("--origin-file={origin}");
    host.admin(&[
        "deploy",
        "--os=debian",
        &origin,
        "--stage",
        "--lock-finalization",
        "--karg-none",
        "ab",
    ]);
    let failed = host.agent().stage(&wanted, STEP_TIMEOUT).await.unwrap_err();
    let message = machinist_base::error_chain::chain(&failed);
    assert!(message.contains("another program has staged"), "{message}");
}

/// The file of an interrupted switch may stay until the next boot.
#[tokio::test]
async fn a_deployment_staged_after_an_interrupted_switch_stays() {
    let host = OstreeHost::with_layout(Layout::Bootc);
    let switching = host.directory.path().join("run/machinist/os-switch");
    std::fs::create_dir_all(switching.parent().unwrap()).unwrap();
    std::fs::write(switching, super::contract::image("new").to_string()).unwrap();
    let origin = "--origin-file=/ostree/deploy/debian/deploy/cd.0.origin";
    host.admin(&[
        "deploy",
        "--os=debian",
        origin,
        "--stage",
        "--lock-finalization",
        "--karg-none",
        "ef",
    ]);
    assert_eq!(host.agent().observe().await.unwrap().staged, None);
    host.agent().discard().await.unwrap();
    assert_ne!(host.read("run/ostree/staged-deployment"), "");
}

/// blscfg replaces variables within quotes as well.
#[tokio::test]
async fn arguments_with_variables_are_refused_where_grub_reads_boot_entries() {
    let host = OstreeHost::with_layout(Layout::Bootc);
    let staged = host.agent().stage(&wanted("a=$x", ""), STEP_TIMEOUT).await;
    assert!(!staged.unwrap_err().is_retryable());
    let text = "a=\"b  c\" e=`y` f=#z;g|h&i \"j=k l\" m=*?[n]~ o={p}<q>";
    let staged = host.agent().stage(&wanted(text, ""), STEP_TIMEOUT).await;
    host.agent()
        .unlock(&staged.unwrap().unwrap())
        .await
        .unwrap();
    host.reboot();
    let running = KernelCommandLine::parse(&host.running());
    assert_eq!(
        running,
        KernelCommandLine::parse(&format!("{BEFORE} {text}"))
    );
}

/// The kubelet would evict pods, from a node that is not cordoned yet.
#[tokio::test(start_paused = true)]
async fn the_download_of_an_image_leaves_a_reserve_of_space() {
    let host = OstreeHost::new();
    let image = super::contract::image("new");
    host.registry.publish(&image, "2.0");
    let is_low = |error: OsError| {
        let text = machinist_base::error_chain::chain(&error);
        assert!(
            text.contains("14336 MiB are free") && text.contains("of 15360 MiB (15 %)"),
            "{text}"
        );
        error.is_retryable() && error.reason() == Reason::NoSpace
    };
    // Of 100 GiB.
    host.free_bytes.store(14 << 30, Ordering::Relaxed);
    let (agent, wanted) = (host.agent(), of_image(image));
    assert!(is_low(agent.check_fetch().await.unwrap_err()));
    host.free_bytes.store(16 << 30, Ordering::Relaxed);
    host.registry.take(Duration::from_secs(600));
    let filling = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        agent.check_fetch().await.unwrap();
        assert!(host.registry.is_running());
        host.free_bytes.store(14 << 30, Ordering::Relaxed);
        agent.check_fetch().await.unwrap_err()
    };
    let error = tokio::select! {
        _ = agent.fetch(&wanted, STEP_TIMEOUT) => panic!("it has more space than the reserve"),
        error = filling => error,
    };
    assert!(is_low(error));
    assert!(!host.registry.is_running());
}

/// Only rpm-ostree can keep them, which the plan has to know.
#[tokio::test]
async fn an_image_is_refused_on_a_host_with_packages_and_without_rpm_ostree() {
    let host = OstreeHost::with_layout(Layout::Bootc);
    let image = super::contract::image("new");
    host.registry.publish(&image, "2.0");
    let origin = "ostree/deploy/debian/deploy/cd.0.origin";
    let text = "[origin]\ncontainer-image-reference=ostree-unverified-registry:q.io/os:9\n\n\
                [packages]\nrequested=htop;\n";
    std::fs::write(host.directory.path().join(origin), text).unwrap();
    let wanted = DesiredDeployment {
        image: Some(image),
        ..wanted("nosmt", "")
    };
    let agent = host.agent();
    let refused = agent.stage(&wanted, STEP_TIMEOUT).await.unwrap_err();
    let message = machinist_base::error_chain::chain(&refused);
    assert!(message.contains("which is not installed"), "{message}");
    // Its arguments can be changed.
    let arguments = DesiredDeployment {
        image: None,
        ..wanted
    };
    assert!(agent.stage(&arguments, STEP_TIMEOUT).await.is_ok());
}
