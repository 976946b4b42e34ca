//! The GRUB provider on real files with a simulated boot loader.

use std::{
    fs,
    ops::Deref,
    time::{Duration, SystemTime},
};

use machinist_boot_loader::grub::EnvironmentBlock;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{DeploymentId, GrubProvider, OsError, OsProvider as _, ProviderStep};

use super::{
    contract::{Host, STEP_TIMEOUT, every_provider_keeps, wanted},
    full_disk::FillableHost,
    grub_machine::{BEFORE, CUSTOM, GrubMachine, Initrd, Programs, mkconfig},
    interruptions::Interruption,
    power_cuts::{CuttableHost, each_power_cut_leaves_one_of_two_deployments, updates},
};

pub(crate) struct GrubHost {
    machine: GrubMachine,
    directory: tempfile::TempDir,
}

impl GrubHost {
    pub(super) fn new() -> Self {
        Self::with_initrd(Initrd::Always)
    }

    pub(super) fn with_initrd(initrd: Initrd) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            machine: GrubMachine::new(directory.path(), initrd),
            directory,
        }
    }
}

impl Deref for GrubHost {
    type Target = GrubMachine;

    fn deref(&self) -> &GrubMachine {
        &self.machine
    }
}

impl Host for GrubHost {
    type Provider = GrubProvider<Programs>;

    const CHANGES_IMAGES: bool = false;

    fn agent(&self) -> Self::Provider {
        self.machine.agent()
    }

    fn reboot(&self) {
        self.machine.boot();
    }

    /// Every write is durable, so that a power cut leaves what a shutdown leaves.
    fn power_cut(&self) {
        self.machine.boot();
    }

    fn publishes(&self, _image: &ImageRef, _version: &str) {}

    fn fails_next(&self, step: ProviderStep) {
        self.machine.fails_next(step);
    }

    fn panics(&self, id: &DeploymentId) {
        self.machine.panics(id.as_str());
    }

    fn takes(&self, _long: Duration) {}
}

impl FillableHost for GrubHost {
    fn interrupted_agent(&self, interruption: &Interruption) -> Self::Provider {
        self.machine.agent_on(interruption.root(&self.path("")))
    }

    /// grub.cfg is what grub-mkconfig writes now.
    fn assert_consistent(&self, case: &str) {
        let (expected, present) = ("boot/grub/expected", "boot/grub/grub.cfg");
        mkconfig(&self.path(""), expected);
        assert_eq!(self.read(present), self.read(expected), "{case}");
        fs::remove_file(self.path(expected)).unwrap();
    }
}

impl CuttableHost for GrubHost {
    fn agent_until(&self, operations: usize) -> Self::Provider {
        self.machine.agent_until(operations)
    }

    fn running(&self) -> String {
        self.machine.running()
    }

    fn assert_settled(&self, _own: &str, case: &str) {
        assert_eq!(self.read("boot/grub/custom.cfg"), CUSTOM, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_grub_provider_passes_the_contract() {
    let broken = every_provider_keeps(GrubHost::new).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_grub_provider_passes_the_contract_on_cloud_images_of_ubuntu() {
    for initrd in [Initrd::Unneeded, Initrd::TriedWithout] {
        let broken = every_provider_keeps(move || GrubHost::with_initrd(initrd)).await;
        assert!(broken.is_empty(), "{initrd:?}: {broken:#?}");
    }
}

#[tokio::test]
async fn a_power_cut_during_any_grub_step_leaves_one_of_two_deployments() {
    for initrd in [Initrd::Always, Initrd::Unneeded, Initrd::TriedWithout] {
        let new_host = || GrubHost::with_initrd(initrd);
        each_power_cut_leaves_one_of_two_deployments(new_host, BEFORE).await;
    }
}

#[tokio::test]
async fn arguments_that_need_quotes_reach_the_kernel_in_every_boot() {
    let host = GrubHost::new();
    let text =
        "a=\"b  c\" d=$x e=`y` f=#z;g|h&i \"j=k l\" m=*?[n]~ console=ttyS0 console=tty1 o={p}<q>";
    let id = host
        .agent()
        .stage(&wanted(text, ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    host.agent().unlock(&id).await.unwrap();
    let expected = KernelCommandLine::parse(&format!("{BEFORE} {text}"));
    for kept in [false, true] {
        host.reboot();
        assert_eq!(
            KernelCommandLine::parse(&host.running()),
            expected,
            "kept: {kept}"
        );
        host.agent().keep(&id).await.unwrap();
    }
    for text in ["a=\\b", "a=it's", "a=b\"c\"d"] {
        let refused = host
            .agent()
            .stage(&wanted(text, ""), STEP_TIMEOUT)
            .await
            .unwrap_err();
        assert!(!refused.is_retryable());
    }
}

/// update-grub of the distribution may run at any moment, for example with a new kernel package.
#[tokio::test]
async fn the_distributions_update_grub_changes_nothing_between_the_steps() {
    let host = GrubHost::new();
    let update_grub = || mkconfig(host.directory.path(), "/boot/grub/grub.cfg");
    let id = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    host.agent().unlock(&id).await.unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    update_grub();
    host.agent().keep(&id).await.unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

/// The package of a kernel makes the initial RAM disk minutes after the kernel is unpacked.
#[tokio::test]
async fn a_kernel_without_an_initial_ram_disk_yet_delays_the_keep() {
    let host = GrubHost::new();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    let before = host.read("boot/grub/grub.cfg");
    host.unpack_kernel();
    let error = host.agent().keep(&id).await.unwrap_err();
    assert!(error.is_retryable());
    let text = machinist_base::error_chain::chain(&error);
    assert!(
        text.contains("vmlinuz-6.2 without an initial RAM disk"),
        "{text}"
    );
    assert_eq!(host.read("boot/grub/grub.cfg"), before);
    host.install_kernel();
    host.agent().keep(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

/// It has begun before the keep, with the settings of then.
#[tokio::test]
async fn an_update_grub_that_writes_the_config_delays_the_keep() {
    let host = GrubHost::new();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    let before = host.read("boot/grub/grub.cfg");
    let written = host.path("boot/grub/grub.cfg.new");
    fs::write(&written, "half a conf").unwrap();
    let error = host.agent().keep(&id).await.unwrap_err();
    assert!(matches!(error, OsError::Busy { .. }), "{error:?}");
    assert_eq!(host.read("boot/grub/grub.cfg"), before);
    assert!(!host.path("boot/grub/machinist-new.cfg").exists());
    // It ends.
    fs::write(host.path("boot/grub/grub.cfg"), &before).unwrap();
    fs::remove_file(&written).unwrap();
    host.agent().keep(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    // One that has failed leaves the file.
    fs::write(&written, "half a conf").unwrap();
    let hour = Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(&written).unwrap();
    file.set_modified(SystemTime::now() - hour).unwrap();
    updates(&host, "a=1", "").await;
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt a=1"));
}

#[tokio::test]
async fn a_grub_config_that_would_not_boot_as_wanted_is_not_used() {
    let host = GrubHost::new();
    let id = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    let before = host.read("boot/grub/grub.cfg");
    let kept = || host.read("etc/default/grub.d/zz-machinist.cfg");
    let former = "# Current: audit=0 quiet\n# Previous: audit=1\n";
    assert!(kept().ends_with(former));
    // A later file drops the arguments.
    let later = host.path("etc/default/grub.d/zz.cfg");
    fs::write(&later, "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n").unwrap();
    let error = host.agent().keep(&id).await.unwrap_err();
    let text = machinist_base::error_chain::chain(&error);
    assert!(text.contains("has made a default entry with"), "{text}");
    assert!(error.is_retryable());
    assert_eq!(host.read("boot/grub/grub.cfg"), before);
    // A grub-mkconfig of the distribution may have read it, so that it stays until the keep is given up.
    assert!(kept().contains("\n# Current: audit=0 quiet nosmt\n"));
    assert!(!host.path("boot/grub/machinist-new.cfg").exists());
    host.agent().discard().await.unwrap();
    assert!(kept().ends_with(former), "{}", kept());
    fs::remove_file(later).unwrap();
    // A kernel that was removed cannot be staged, nor its entry unlocked.
    host.reboot();
    let staged = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    fs::remove_file(host.path("boot/initrd.img-6.1")).unwrap();
    let stale = host.agent().unlock(&staged).await.unwrap_err();
    let stale = machinist_base::error_chain::chain(&stale);
    assert!(
        stale.contains("/boot/initrd.img-6.1 does not exist"),
        "{stale}"
    );
}

#[tokio::test]
async fn the_administrators_custom_cfg_keeps_links_and_bytes() {
    let host = GrubHost::new();
    let (custom, target) = (
        host.path("boot/grub/custom.cfg"),
        host.path("boot/grub/mine.cfg"),
    );
    fs::rename(&custom, &target).unwrap();
    std::os::unix::fs::symlink("mine.cfg", &custom).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    assert!(staged.unwrap().is_some());
    assert!(custom.is_symlink());
    let text = fs::read_to_string(&target).unwrap();
    assert!(text.starts_with(CUSTOM) && text.contains("BEGIN machinist"));
    host.agent().discard().await.unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), CUSTOM);
    for bytes in [&b"# \xfcbung\n"[..], b"### BEGIN machinist ###\nset a=1\n"] {
        fs::write(&target, bytes).unwrap();
        let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
        assert!(!staged.unwrap_err().is_retryable());
        host.agent().discard().await.unwrap_err();
        assert_eq!(fs::read(&target).unwrap(), bytes);
    }
}

/// The machine had failed to boot without its initial RAM disk, and the service that forgets this has not run.
#[tokio::test]
async fn a_trial_is_entered_after_a_boot_that_failed_without_an_initrd() {
    let host = GrubHost::with_initrd(Initrd::TriedWithout);
    let mut block = EnvironmentBlock::parse(&host.read("boot/grub/grubenv")).unwrap();
    block.set("initrdfail", "1");
    block.set("prev_entry", "gnulinux-simple");
    fs::write(host.path("boot/grub/grubenv"), block.to_text().unwrap()).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    let seen = host.agent().observe().await.unwrap();
    assert_eq!(seen.staged.unwrap().deployment.id, id);
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

/// A package may remove the kernel of the trial while the machine shuts down.
#[tokio::test]
async fn a_trial_whose_kernel_is_missing_falls_back_by_itself() {
    let initrds = [Initrd::Always, Initrd::Unneeded];
    let files = ["vmlinuz-6.1", "initrd.img-6.1"];
    let cases = initrds
        .into_iter()
        .flat_map(|initrd| files.map(|file| (initrd, file)));
    for (initrd, file) in cases {
        let host = GrubHost::with_initrd(initrd);
        let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
        let id = staged.unwrap().unwrap();
        host.agent().unlock(&id).await.unwrap();
        let custom = host.read("boot/grub/custom.cfg");
        let custom = custom.replace(file, &file.replace("6.1", "6.0"));
        fs::write(host.path("boot/grub/custom.cfg"), custom).unwrap();
        host.reboot();
        assert_eq!(host.running(), BEFORE, "{file}");
        // The boot has failed: the request is gone, and the entry is there.
        let staged = host.agent().observe().await.unwrap().staged.unwrap();
        assert_eq!((staged.deployment.id, staged.locked), (id, true));
        host.agent().discard().await.unwrap();
        host.reboot();
        assert_eq!(host.running(), BEFORE);
        assert_eq!(host.read("boot/grub/custom.cfg"), CUSTOM);
    }
}

#[tokio::test]
async fn an_entry_with_several_kernels_is_refused() {
    let host = GrubHost::new();
    let config = host.read("boot/grub/grub.cfg");
    let linux = config.lines().find(|line| line.starts_with("\tlinux"));
    let linux = linux.unwrap();
    let config = config.replacen(linux, &format!("{linux}\n{linux}"), 1);
    fs::write(host.path("boot/grub/grub.cfg"), config).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let text = machinist_base::error_chain::chain(&staged.unwrap_err());
    assert!(text.contains("exactly one command linux"), "{text}");
}

/// The machine would wait for a person whenever a trial falls back.
#[tokio::test]
async fn a_default_entry_that_needs_a_password_is_refused() {
    let host = GrubHost::new();
    let config = host.read("boot/grub/grub.cfg");
    let locked = format!("set superusers=\"root\"\n{config}");
    fs::write(host.path("boot/grub/grub.cfg"), &locked).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let refused = staged.unwrap_err();
    assert!(!refused.is_retryable());
    let text = machinist_base::error_chain::chain(&refused);
    assert!(text.contains("asks for a password"), "{text}");
    let unrestricted = locked.replace("menuentry 'Debian", "menuentry --unrestricted 'Debian");
    fs::write(host.path("boot/grub/grub.cfg"), unrestricted).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    assert!(staged.unwrap().is_some());
}

/// Such a file is sourced before the entries of kernels, so that every boot would enter the staged deployment.
#[tokio::test]
async fn a_custom_cfg_before_the_kernels_is_refused() {
    let host = GrubHost::new();
    let config = host.read("boot/grub/grub.cfg");
    let source = "source ${config_directory}/custom.cfg\nmenuentry 'Debian";
    let config = config.replacen("menuentry 'Debian", source, 1);
    fs::write(host.path("boot/grub/grub.cfg"), config).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let text = machinist_base::error_chain::chain(&staged.unwrap_err());
    assert!(
        text.contains("with the entry of the trial, GRUB would enter"),
        "{text}"
    );
    assert_eq!(host.read("boot/grub/custom.cfg"), CUSTOM);
}
