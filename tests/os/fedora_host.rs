//! The GRUB provider where GRUB reads boot entries, on real files with a simulated boot loader.

use std::{fs, ops::Deref, sync::atomic::Ordering, time::Duration};

use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{DeploymentId, GrubProvider, OsProvider as _, ProviderStep};

use super::{
    contract::{Host, every_provider_keeps},
    fedora_machine::{FedoraMachine, Fsfreeze, HOST_OPTIONS, VENDOR_CMDLINE},
    full_disk::FillableHost,
    grub_machine::BEFORE,
    interruptions::Interruption,
    power_cuts::{CuttableHost, each_power_cut_leaves_one_of_two_deployments, stages, updates},
};

pub(super) struct FedoraHost {
    machine: FedoraMachine,
    directory: tempfile::TempDir,
}

impl FedoraHost {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            machine: FedoraMachine::new(directory.path()),
            directory,
        }
    }

    /// Why the arguments could not be changed, which the plan reports before the node is drained.
    fn refusal(&self, append: &str) -> String {
        let root = machinist_rootfs::Root::open(self.directory.path()).unwrap();
        let can = machinist_update::os::capabilities(&root);
        assert!(can.kernel_arguments, "{can:?}");
        let update = machinist_plan::OsUpdate {
            append_arguments: KernelCommandLine::parse(append),
            ..machinist_plan::OsUpdate::default()
        };
        let refusal = machinist_update::os::refusal(&root, can, &update);
        refusal
            .map(|refusal| refusal.to_string())
            .unwrap_or_default()
    }
}

impl Deref for FedoraHost {
    type Target = FedoraMachine;

    fn deref(&self) -> &FedoraMachine {
        &self.machine
    }
}

impl Host for FedoraHost {
    type Provider = GrubProvider<Fsfreeze>;

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

impl FillableHost for FedoraHost {
    fn interrupted_agent(&self, interruption: &Interruption) -> Self::Provider {
        self.machine.agent_on(interruption.root(&self.path("")))
    }
}

impl CuttableHost for FedoraHost {
    fn agent_until(&self, operations: usize) -> Self::Provider {
        self.machine.agent_until(operations)
    }

    fn running(&self) -> String {
        self.machine.running()
    }

    fn assert_settled(&self, own: &str, case: &str) {
        self.machine.assert_settled(own, case);
    }
}

#[tokio::test(start_paused = true)]
async fn the_grub_provider_passes_the_contract_with_boot_entries() {
    let broken = every_provider_keeps(FedoraHost::new).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

#[tokio::test]
async fn a_power_cut_during_any_step_with_boot_entries_leaves_one_of_two_deployments() {
    each_power_cut_leaves_one_of_two_deployments(FedoraHost::new, BEFORE).await;
}

/// TuneD and administrators change variables of the environment block, which GRUB replaces in every entry.
#[tokio::test]
async fn variables_of_the_options_stay_in_the_kept_entry() {
    let host = FedoraHost::new();
    updates(&host, "nosmt", "").await;
    let entry = host.read("boot/loader/entries/machinist-2.conf");
    let options = format!("options {HOST_OPTIONS} $tuned_params audit=0 quiet nosmt\n");
    assert!(entry.contains(&options), "{entry}");
    let title = "title Fedora Linux (6.1.0-1) 43 (machinist)\n";
    assert!(entry.contains(title), "{entry}");
    host.set_variable("tuned_params", "isolcpus=1 nohz_full=1");
    host.reboot();
    let tuned = format!("{HOST_OPTIONS} isolcpus=1 nohz_full=1");
    assert_eq!(host.running(), format!("{tuned} audit=0 quiet nosmt"));
    updates(&host, "b=1", "nosmt").await;
    host.reboot();
    assert_eq!(host.running(), format!("{tuned} audit=0 quiet b=1"));
    // In the entry of a new kernel, the variable follows the arguments of the config.
    host.install_kernel("6.2.0-1");
    host.reboot();
    assert_eq!(
        host.running(),
        format!("{BEFORE} b=1 isolcpus=1 nohz_full=1")
    );
    updates(&host, "c=1", "audit=0 quiet b=1").await;
    host.reboot();
    assert_eq!(host.running(), format!("{tuned} c=1"));
    updates(&host, "", "c=1").await;
    host.reboot();
    assert_eq!(host.running(), tuned);
    assert_eq!(host.read("etc/kernel/cmdline").trim(), HOST_OPTIONS);
    // The entry of the distribution is unchanged.
    let entry = host.read("boot/loader/entries/1234-6.1.0-1.conf");
    assert!(entry.contains("console=tty0 $tuned_params\n"), "{entry}");
}

/// TuneD, installed after the kernels, does not know the entry of machinist.
#[tokio::test]
async fn the_variable_of_tuned_is_added_to_the_kept_entry() {
    let host = FedoraHost::new();
    for name in ["1234-6.1.0-1", "machinist-1"] {
        let file = format!("boot/loader/entries/{name}.conf");
        host.write(&file, host.read(&file).replace(" $tuned_params", ""));
    }
    updates(&host, "nosmt", "").await;
    assert!(
        !host
            .read("boot/loader/entries/machinist-2.conf")
            .contains("$tuned_params")
    );
    fs::create_dir_all(host.path("usr/lib/kernel/install.d")).unwrap();
    host.write("usr/lib/kernel/install.d/92-tuned.install", "");
    updates(&host, "b=1", "nosmt").await;
    let entry = host.read("boot/loader/entries/machinist-3.conf");
    assert!(
        entry.contains("console=tty0 $tuned_params audit=0 quiet b=1\n"),
        "{entry}"
    );
}

/// kernel-install may run at any moment. It makes the entry of the new kernel the saved one.
#[tokio::test]
async fn a_new_kernel_has_the_kept_arguments_and_becomes_the_default() {
    let host = FedoraHost::new();
    let id = stages(&host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    // During the trial it gets the arguments of before.
    host.install_kernel("6.2.0-1");
    host.agent().keep(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    assert!(host.read("proc/cmdline").contains("vmlinuz-6.2.0-1"));
    host.install_kernel("6.10.0-1");
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    assert!(host.read("proc/cmdline").contains("vmlinuz-6.10.0-1"));
    let seen = host.agent().observe().await.unwrap();
    assert_eq!(seen.booted.id, seen.next);
    let previous = seen.fallback.unwrap().id;
    host.agent().roll_back(&previous).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    assert!(host.read("proc/cmdline").contains("vmlinuz-6.10.0-1"));
    host.assert_settled("", "after a rollback");
}

/// Keeps or discards a trial of `nosmt`; returns the arguments of the next boot.
async fn ends_trial(host: &FedoraHost, id: &DeploymentId, is_kept: bool, before: String) -> String {
    match is_kept {
        true => host
            .agent()
            .keep(id)
            .await
            .map(|()| format!("{before} nosmt")),
        false => host.agent().discard().await.map(|()| before),
    }
    .unwrap()
}

/// Without /etc/kernel/cmdline, a new kernel has the arguments of the running one, those of the trial as well. Also in the
/// first trial of a machine.
#[tokio::test]
async fn a_kernel_that_is_installed_during_a_trial_is_no_trial() {
    for (is_first, is_kept) in [(false, true), (false, false), (true, true), (true, false)] {
        let host = FedoraHost::new();
        fs::remove_file(host.path("etc/kernel/cmdline")).unwrap();
        if is_first {
            fs::remove_file(host.path("boot/loader/entries/machinist-1.conf")).unwrap();
            host.set_variable("saved_entry", "1234-6.1.0-1");
            host.reboot();
        }
        let before = host.running();
        let id = stages(&host, "nosmt", "").await;
        host.agent().unlock(&id).await.unwrap();
        host.reboot();
        host.install_kernel("6.2.0-1");
        let expected = ends_trial(&host, &id, is_kept, before).await;
        host.reboot();
        let line = host.read("proc/cmdline");
        assert!(
            !line.contains("machinist.trial"),
            "{is_first} {is_kept}: {line}"
        );
        assert_eq!(host.running(), expected, "{is_first} {is_kept}");
        assert!(
            line.contains("vmlinuz-6.2.0-1"),
            "{is_first} {is_kept}: {line}"
        );
    }
}

/// The running kernel has the arguments of the trial until the next reboot.
#[tokio::test]
async fn a_kernel_that_is_installed_after_a_trial_is_no_trial() {
    for is_kept in [true, false] {
        let host = FedoraHost::new();
        fs::remove_file(host.path("etc/kernel/cmdline")).unwrap();
        fs::remove_file(host.path("boot/loader/entries/machinist-1.conf")).unwrap();
        host.set_variable("saved_entry", "1234-6.1.0-1");
        host.reboot();
        let before = host.running();
        let id = stages(&host, "nosmt", "").await;
        host.agent().unlock(&id).await.unwrap();
        host.reboot();
        let expected = ends_trial(&host, &id, is_kept, before).await;
        host.agent().clean_up().await.unwrap();
        host.install_kernel("6.2.0-1");
        host.agent().clean_up().await.unwrap();
        host.reboot();
        let line = host.read("proc/cmdline");
        assert_eq!(host.running(), expected, "{is_kept}: {line}");
        assert!(line.contains("vmlinuz-6.2.0-1"), "{is_kept}: {line}");
        assert!(!line.contains("machinist.trial"), "{is_kept}: {line}");
        // The file that machinist created goes when it is not needed.
        host.agent().clean_up().await.unwrap();
        assert_eq!(host.path("etc/kernel/cmdline").exists(), is_kept);
    }
}

/// kernel-install reads the vendor's file if the administrator has none.
#[tokio::test]
async fn kept_arguments_follow_the_file_of_the_vendor() {
    let host = FedoraHost::new();
    fs::remove_file(host.path("etc/kernel/cmdline")).unwrap();
    fs::remove_file(host.path("boot/loader/entries/machinist-1.conf")).unwrap();
    fs::create_dir_all(host.path("usr/lib/kernel")).unwrap();
    host.write(VENDOR_CMDLINE, format!("{HOST_OPTIONS}\n"));
    host.set_variable("saved_entry", "1234-6.1.0-1");
    host.reboot();
    let before = host.running();
    for (append, remove, version) in [("nosmt", "", "6.2.0-1"), ("", "nosmt", "6.10.0-1")] {
        let id = stages(&host, append, remove).await;
        host.agent().unlock(&id).await.unwrap();
        host.reboot();
        host.agent().keep(&id).await.unwrap();
        host.reboot();
        host.agent().clean_up().await.unwrap();
        assert_eq!(host.path("etc/kernel/cmdline").exists(), !append.is_empty());
        host.install_kernel(version);
        host.reboot();
        assert_eq!(host.running(), format!("{before} {append}").trim_end());
        let line = host.read("proc/cmdline");
        assert!(line.contains(&format!("vmlinuz-{version}")), "{line}");
    }
    assert_eq!(host.read(VENDOR_CMDLINE).trim(), HOST_OPTIONS);
}

/// The packages of the kernel that the kept entry names are removed, while it is the default or a later kernel is.
#[tokio::test]
async fn a_kept_entry_whose_kernel_is_removed_is_replaced() {
    for is_default in [true, false] {
        let host = FedoraHost::new();
        host.install_kernel("6.2.0-1");
        if is_default {
            host.set_variable("saved_entry", "machinist-1");
        }
        host.remove_kernel("6.1.0-1");
        host.agent().clean_up().await.unwrap();
        host.reboot();
        assert_eq!(host.running(), BEFORE, "{is_default}");
        assert!(host.read("proc/cmdline").contains("vmlinuz-6.2.0-1"));
        assert_eq!(host.entries(), ["1234-6.2.0-1.conf", "machinist-2.conf"]);
        host.agent().clean_up().await.unwrap();
        assert_eq!(host.entries(), ["1234-6.2.0-1.conf", "machinist-2.conf"]);
        updates(&host, "", "audit=0 quiet").await;
        host.reboot();
        assert_eq!(host.running(), HOST_OPTIONS);
    }
}

#[tokio::test]
async fn the_agent_replaces_such_an_entry_before_another_step() {
    for step in ["stage", "discard"] {
        let host = FedoraHost::new();
        host.install_kernel("6.2.0-1");
        host.set_variable("saved_entry", "machinist-1");
        host.remove_kernel("6.1.0-1");
        match step {
            "stage" => drop(stages(&host, "nosmt", "").await),
            _ => host.agent().discard().await.unwrap(),
        }
        host.reboot();
        assert_eq!(host.running(), BEFORE, "{step}");
    }
}

/// grubby changes every entry and /etc/kernel/cmdline.
#[tokio::test]
async fn arguments_that_grubby_appends_stay() {
    let host = FedoraHost::new();
    host.append_to_all("foo=1");
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} foo=1"));
    host.agent().discard().await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} foo=1"));
    updates(&host, "nosmt", "audit=0 quiet").await;
    host.reboot();
    assert_eq!(host.running(), format!("{HOST_OPTIONS} foo=1 nosmt"));
    let cmdline = host.read("etc/kernel/cmdline");
    assert_eq!(cmdline.trim(), format!("{HOST_OPTIONS} foo=1 nosmt"));
}

/// GRUB reads the disk without the journal of its file system.
#[tokio::test]
async fn the_journal_is_written_before_older_entries_are_removed() {
    let host = FedoraHost::new();
    let flushed = || host.fsfreeze.0.load(Ordering::Relaxed);
    let id = stages(&host, "nosmt", "").await;
    assert_eq!(flushed(), 2, "before and after custom.cfg is exchanged");
    host.agent().unlock(&id).await.unwrap();
    assert_eq!(flushed(), 4, "and the environment block");
    host.reboot();
    host.agent().keep(&id).await.unwrap();
    assert_eq!(flushed(), 10, "and the entry, the block, and custom.cfg");
    for file in ["custom.cfg", "grubenv"] {
        assert!(!host.path(&format!("boot/grub2/{file}.machinist")).exists());
    }
}

/// An administrator selects an entry without machinist's arguments: they are those of the host from then on.
#[tokio::test]
async fn an_update_starts_from_the_entry_that_an_administrator_has_selected() {
    let host = FedoraHost::new();
    host.set_variable("saved_entry", "1234-6.1.0-1");
    host.reboot();
    assert_eq!(host.running(), HOST_OPTIONS);
    updates(&host, "nosmt", "").await;
    host.reboot();
    assert_eq!(host.running(), format!("{HOST_OPTIONS} nosmt"));
}

/// The agent is killed, or the machine loses power, while it cleans up after it has kept a deployment.
#[tokio::test]
async fn a_repeated_keep_ends_what_an_interrupted_one_has_begun() {
    for operations in 0.. {
        let host = FedoraHost::new();
        let id = stages(&host, "nosmt", "").await;
        host.agent().unlock(&id).await.unwrap();
        host.reboot();
        let is_done = host.agent_until(operations).keep(&id).await.is_ok();
        host.agent().keep(&id).await.unwrap();
        host.assert_settled("nosmt", &format!("after {operations} operations"));
        host.reboot();
        assert_eq!(host.running(), format!("{BEFORE} nosmt"));
        if is_done {
            break;
        }
    }
}

#[tokio::test]
async fn a_kernel_that_grub_cannot_load_falls_back_by_itself() {
    let host = FedoraHost::new();
    let id = stages(&host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    let custom = host.read("boot/grub2/custom.cfg");
    host.write(
        "boot/grub2/custom.cfg",
        custom.replace("vmlinuz-6.1", "vmlinuz-6.0"),
    );
    host.reboot();
    assert_eq!(host.running(), BEFORE);
}

#[tokio::test]
async fn what_grub_would_not_boot_as_wanted_is_refused_before_the_drain() {
    let host = FedoraHost::new();
    assert_eq!(host.refusal("nosmt"), "");
    for argument in ["a=b;c", "a=$tuned_params"] {
        let text = host.refusal(argument);
        let has_reason = text.contains("GRUB") || text.contains("would boot with");
        assert!(has_reason, "{argument}: {text}");
    }
    // Whether an entry is the first one of the menu depends on its name.
    for machine in ["1234", "a234"] {
        let host = FedoraHost::new();
        let entries = host.path("boot/loader/entries");
        let name = format!("{machine}-6.1.0-1");
        fs::rename(
            entries.join("1234-6.1.0-1.conf"),
            entries.join(format!("{name}.conf")),
        )
        .unwrap();
        fs::remove_file(entries.join("machinist-1.conf")).unwrap();
        host.set_variable("saved_entry", &name);
        let config = host.read("boot/grub2/grub.cfg");
        let fixed = config.replace("default=\"${saved_entry}\"", "default=0");
        host.write("boot/grub2/grub.cfg", fixed);
        host.reboot();
        let text = host.refusal("nosmt");
        assert!(text.contains("GRUB_DEFAULT=saved"), "{machine}: {text}");
    }
}
