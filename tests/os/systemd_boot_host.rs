//! The provider of systemd-boot on real files with a simulated boot loader.

use std::{fs, ops::Deref, time::Duration};

use machinist_base::error_chain::chain;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{DeploymentId, OsProvider as _, ProviderStep, SystemdBootProvider};

use super::{
    contract::{Host, STEP_TIMEOUT, every_provider_keeps, wanted},
    full_disk::FillableHost,
    interruptions::Interruption,
    power_cuts::{CuttableHost, each_power_cut_leaves_one_of_two_deployments, stages, updates},
    systemd_boot_machine::{BEFORE, Bootctl, HOST_ARGUMENTS, SystemdBootMachine},
};

pub(crate) struct SystemdBootHost {
    machine: SystemdBootMachine,
    _directory: tempfile::TempDir,
}

impl SystemdBootHost {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            machine: SystemdBootMachine::new(directory.path()),
            _directory: directory,
        }
    }

    async fn refusal(&self, append: &str) -> String {
        let staged = self.agent().stage(&wanted(append, ""), STEP_TIMEOUT).await;
        let staged = match staged {
            Ok(Some(id)) => {
                self.agent().unlock(&id).await.unwrap();
                self.reboot();
                self.agent().keep(&id).await.map(drop)
            }
            staged => staged.map(drop),
        };
        chain(&staged.unwrap_err())
    }
}

impl Deref for SystemdBootHost {
    type Target = SystemdBootMachine;

    fn deref(&self) -> &SystemdBootMachine {
        &self.machine
    }
}

impl Host for SystemdBootHost {
    type Provider = SystemdBootProvider<Bootctl>;

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

impl FillableHost for SystemdBootHost {
    fn interrupted_agent(&self, interruption: &Interruption) -> Self::Provider {
        self.machine.interrupted_agent(interruption)
    }
}

impl CuttableHost for SystemdBootHost {
    fn agent_until(&self, operations: usize) -> Self::Provider {
        self.machine.agent_until(operations)
    }

    fn running(&self) -> String {
        self.machine.running()
    }

    fn assert_settled(&self, own: &str, case: &str) {
        let mut entries = self.entries();
        // The loader ignores a hidden file, which the next step replaces.
        entries.retain(|name| !name.starts_with('.'));
        // The one of the host, and the kept one: its arguments are not those of the host.
        assert_eq!(entries.len(), 2, "{case}: {entries:?}");
        assert!(entries[1].starts_with("machinist-"), "{case}: {entries:?}");
        let cmdline = self.read("etc/kernel/cmdline");
        assert_eq!(cmdline.trim(), format!("{BEFORE} {own}").trim(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_systemd_boot_provider_passes_the_contract() {
    let broken = every_provider_keeps(SystemdBootHost::new).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

#[tokio::test]
async fn a_power_cut_during_any_systemd_boot_step_leaves_one_of_two_deployments() {
    each_power_cut_leaves_one_of_two_deployments(SystemdBootHost::new, BEFORE).await;
}

#[tokio::test]
async fn arguments_reach_the_kernel_with_quotes_in_every_boot() {
    let host = SystemdBootHost::new();
    let text = "a=\"b c\" d=$x e=`y` f=#z;g|h&i \"j=k l\" m=*?[n]~ o=\\p q=it's console=ttyS0 console=tty1";
    let id = stages(&host, text, "").await;
    host.agent().unlock(&id).await.unwrap();
    let expected = KernelCommandLine::parse(&format!("{BEFORE} {text}"));
    for kept in [false, true] {
        host.reboot();
        let running = KernelCommandLine::parse(&host.running());
        assert_eq!(running, expected, "kept: {kept}");
        host.agent().keep(&id).await.unwrap();
    }
}

/// kernel-install may run at any moment, with the arguments of /etc/kernel/cmdline.
#[tokio::test]
async fn a_kernel_that_is_installed_later_has_the_kept_arguments() {
    let host = SystemdBootHost::new();
    let id = stages(&host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    host.install_kernel("6.2", host.read("etc/kernel/cmdline").trim());
    host.agent().keep(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    host.install_kernel("6.10", host.read("etc/kernel/cmdline").trim());
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    // It is the default: the entry of the kept deployment is for an older kernel.
    fs::remove_dir_all(host.path("efi/1234/6.1")).unwrap();
    let seen = host.agent().observe().await.unwrap();
    assert_eq!(seen.booted.id, seen.next);
    let previous = seen.fallback.unwrap().id;
    host.agent().roll_back(&previous).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    assert!(
        host.read("efi/loader/entries/machinist-3.conf")
            .contains("linux      /1234/6.10/linux")
    );
    // A kernel without machinist's arguments.
    host.install_kernel("6.11", "root=UUID=1234 ro");
    host.reboot();
    updates(&host, "nosmt", "").await;
    host.reboot();
    assert_eq!(
        host.running(),
        "root=UUID=1234 ro systemd.machine_id=1234 nosmt"
    );
}

/// kernel-install appends `systemd.machine_id=` to those of /etc/kernel/cmdline.
#[tokio::test]
async fn arguments_before_those_of_kernel_install_leave_the_entries_with_the_config() {
    for (kept, next) in [("nosmt", ""), ("isolcpus=1-3", "isolcpus=4-7")] {
        let host = SystemdBootHost::new();
        updates(&host, "", "audit=0 quiet").await;
        host.reboot();
        fs::write(host.path("etc/kernel/cmdline"), "root=UUID=1234 ro\n").unwrap();
        updates(&host, kept, "").await;
        let file = || host.read("etc/kernel/cmdline").trim().to_owned();
        assert_eq!(file(), format!("root=UUID=1234 ro {kept}"));
        host.install_kernel("6.2", &file());
        host.reboot();
        let before = format!("root=UUID=1234 ro {kept} systemd.machine_id=1234");
        assert_eq!(host.running(), before);
        updates(&host, next, kept).await;
        assert_eq!(file(), format!("root=UUID=1234 ro {next}").trim());
        host.reboot();
        let after = format!("root=UUID=1234 ro systemd.machine_id=1234 {next}");
        assert_eq!(host.running(), after.trim());
    }
}

/// Without the file, kernel-install copies the arguments of the running kernel, those of a trial as well.
#[tokio::test]
async fn a_missing_kernel_cmdline_is_created_for_the_time_of_a_trial() {
    let host = SystemdBootHost::new();
    let file = host.path("etc/kernel/cmdline");
    fs::remove_file(&file).unwrap();
    let id = stages(&host, "nosmt", "").await;
    assert_eq!(host.read("etc/kernel/cmdline").trim(), BEFORE);
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    host.install_kernel("6.2", host.read("etc/kernel/cmdline").trim());
    host.agent().keep(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    host.install_kernel("6.10", host.read("etc/kernel/cmdline").trim());
    updates(&host, "", "audit=0 quiet nosmt").await;
    host.agent().clean_up().await.unwrap();
    let of_host = BEFORE.replace(" audit=0 quiet", "");
    assert_eq!(host.read("etc/kernel/cmdline").trim(), of_host);
    host.reboot();
    assert_eq!(host.running(), of_host);
    host.agent().clean_up().await.unwrap();
    assert!(!file.exists());
    // The file of the host is not removed.
    fs::write(&file, format!("{of_host}\n")).unwrap();
    updates(&host, "nosmt", "").await;
    host.reboot();
    updates(&host, "", "nosmt").await;
    host.reboot();
    host.agent().clean_up().await.unwrap();
    assert_eq!(host.read("etc/kernel/cmdline").trim(), of_host);
}

#[tokio::test]
async fn later_kernels_have_no_arguments_that_left_the_config() {
    let host = SystemdBootHost::new();
    updates(&host, "", "audit=0 quiet").await;
    host.reboot();
    let without = BEFORE.replace(" audit=0 quiet", "");
    assert_eq!(host.running(), without);
    assert_eq!(host.read("etc/kernel/cmdline").trim(), without);
}

#[tokio::test]
async fn a_loader_that_would_not_enter_the_kept_entry_is_refused() {
    let host = SystemdBootHost::new();
    fs::write(
        host.path("efi/loader/loader.conf"),
        "default machinist-1.conf\n",
    )
    .unwrap();
    let text = host.refusal("nosmt").await;
    assert!(
        text.contains("would enter machinist-1.conf instead of machinist-2.conf"),
        "{text}"
    );
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    let host = SystemdBootHost::new();
    fs::write(
        host.path("efi/loader/loader.conf"),
        "default machinist-[0-9].conf\n",
    )
    .unwrap();
    updates(&host, "nosmt", "").await;
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

/// `bootctl set-default` of an administrator is stronger than loader.conf and the order of the entries.
#[tokio::test]
async fn an_efi_variable_that_selects_another_entry_than_the_kept_one_is_refused() {
    let host = SystemdBootHost::new();
    host.set("LoaderEntryDefault", "machinist-1.conf");
    let text = host.refusal("nosmt").await;
    assert!(
        text.contains("would enter machinist-1.conf instead of machinist-2.conf"),
        "{text}"
    );
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    // It is set after the trial was unlocked.
    let host = SystemdBootHost::new();
    let id = stages(&host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    host.set("LoaderEntryDefault", "1234-6.1.conf");
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    let text = chain(&host.agent().keep(&id).await.unwrap_err());
    assert!(text.contains("would enter 1234-6.1.conf"), "{text}");
    host.agent().discard().await.unwrap();
    host.reboot();
    let of_host = BEFORE.replace(" audit=0 quiet", "");
    assert_eq!(host.running(), of_host);
}

/// kernel-install writes to the root file system where it finds no partition for entries.
#[tokio::test]
async fn entries_that_the_loader_does_not_read_are_ignored() {
    let host = SystemdBootHost::new();
    fs::create_dir_all(host.path("boot/loader/entries")).unwrap();
    let unread = "linux /linux\nsort-key a\nversion 9\noptions x=y\n";
    fs::write(host.path("boot/loader/entries/a.conf"), unread).unwrap();
    fs::write(host.path("boot/linux"), "").unwrap();
    updates(&host, "nosmt", "").await;
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

#[tokio::test]
async fn a_request_of_the_administrator_is_kept_by_lock_and_discard() {
    let host = SystemdBootHost::new();
    stages(&host, "nosmt", "").await;
    host.set("LoaderEntryOneShot", "memtest.conf");
    host.agent().lock().await.unwrap();
    host.agent().discard().await.unwrap();
    host.set("LoaderEntryOneShot", "1234-6.1.conf");
    host.agent().discard().await.unwrap();
    host.reboot();
    assert_eq!(host.running(), HOST_ARGUMENTS);
}
