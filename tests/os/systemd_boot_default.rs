//! The entry that systemd-boot enters without a request, where other settings may select it.

use std::fs;

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::KernelCommandLine;
use machinist_plan::OsUpdate;
use machinist_rootfs::Root;
use machinist_update::os::{self, OsProvider as _};

use super::{
    contract::{Host as _, STEP_TIMEOUT, wanted},
    power_cuts::{CuttableHost as _, stages, updates},
    systemd_boot_host::SystemdBootHost,
    systemd_boot_machine::{BEFORE, HOST_ARGUMENTS},
};

/// `preferred` in loader.conf, and `bootctl set-preferred`.
const PREFERENCES: [fn(&SystemdBootHost); 2] = [
    |host| {
        let config = "timeout 3\npreferred\t1234-*\n";
        fs::write(host.path("efi/loader/loader.conf"), config).unwrap();
    },
    |host| host.set("LoaderEntryPreferred", "1234-6.1.conf"),
];

fn assert_names_preferred(error: &(dyn std::error::Error + 'static)) {
    let text = chain(error);
    assert!(text.contains("260 and later enter 1234-"), "{text}");
}

#[tokio::test]
async fn a_preferred_entry_is_refused_by_the_plan_and_by_each_step() {
    for prefers in PREFERENCES {
        let host = SystemdBootHost::new();
        prefers(&host);
        let root = Root::open(&host.path("")).unwrap();
        let update = OsUpdate {
            append_arguments: KernelCommandLine::parse("nosmt"),
            ..OsUpdate::default()
        };
        let refusal = os::refusal(&root, host.agent().capabilities(), &update).unwrap();
        assert_eq!(refusal.reason, Reason::NoProviderForKernelArguments);
        let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
        assert_names_preferred(&staged.unwrap_err());
        // It is set after the deployment was staged.
        let host = SystemdBootHost::new();
        let id = stages(&host, "nosmt", "").await;
        prefers(&host);
        assert_names_preferred(&host.agent().unlock(&id).await.unwrap_err());
        // It is set after the deployment was unlocked.
        let host = SystemdBootHost::new();
        let id = stages(&host, "nosmt", "").await;
        host.agent().unlock(&id).await.unwrap();
        prefers(&host);
        host.reboot();
        assert_eq!(host.running(), format!("{BEFORE} nosmt"));
        let before = host.agent().observe().await.unwrap().next;
        assert_names_preferred(&host.agent().keep(&id).await.unwrap_err());
        host.agent().discard().await.unwrap();
        let after = host.agent().observe().await.unwrap();
        assert!(after.staged.is_none());
        assert_eq!(after.next, before);
    }
}

const OWN_ENTRY: &str = "efi/loader/entries/1234-6.1.conf";

/// A host whose kept entry has no arguments of machinist, after a boot without a trial.
async fn without_arguments() -> SystemdBootHost {
    let host = SystemdBootHost::new();
    updates(&host, "", "audit=0 quiet").await;
    // The running kernel has the arguments of the trial.
    host.agent().clean_up().await.unwrap();
    assert_eq!(host.entries(), ["1234-6.1.conf", "machinist-2.conf"]);
    host.reboot();
    assert_eq!(host.running(), HOST_ARGUMENTS);
    host
}

#[tokio::test]
async fn a_kept_entry_without_arguments_is_removed_and_the_entry_of_the_host_is_entered() {
    let host = without_arguments().await;
    let config = host.read("efi/loader/loader.conf");
    os::leave_host(&host.agent()).await.unwrap();
    assert_eq!(host.entries(), ["1234-6.1.conf"]);
    assert_eq!(host.read("efi/loader/loader.conf"), config);
    host.reboot();
    assert_eq!(host.running(), HOST_ARGUMENTS);
    // An administrator changes the arguments of the host.
    let changed = format!("{HOST_ARGUMENTS} a=1");
    fs::write(host.path("etc/kernel/cmdline"), format!("{changed}\n")).unwrap();
    host.install_kernel("6.1", &changed);
    host.reboot();
    assert_eq!(host.running(), changed);
    updates(&host, "nosmt", "").await;
    host.reboot();
    host.agent().clean_up().await.unwrap();
    assert_eq!(host.entries(), ["1234-6.1.conf", "machinist-1.conf"]);
    assert_eq!(host.running(), format!("{changed} nosmt"));
}

#[tokio::test]
async fn a_kept_entry_that_the_machine_needs_is_not_removed() {
    let changes: [fn(&SystemdBootHost); 8] = [
        |host| fs::remove_file(host.path(OWN_ENTRY)).unwrap(),
        |host| fs::remove_file(host.path("efi/1234/6.1/initrd.img-6.1")).unwrap(),
        |host| host.install_kernel("6.1", &format!("{HOST_ARGUMENTS} a=1")),
        // The own entry is for another kernel with the same arguments.
        |host| {
            host.install_kernel("6.0", HOST_ARGUMENTS);
            fs::remove_file(host.path(OWN_ENTRY)).unwrap();
        },
        // The running kernel was started with other arguments.
        |host| fs::write(host.path("proc/cmdline"), "root=UUID=1234 ro a=1\n").unwrap(),
        |host| {
            let file = host.path("efi/loader/entries/machinist-2.conf");
            let text = fs::read_to_string(&file).unwrap();
            fs::write(&file, text.replace("# Current: ", "# Current: quiet")).unwrap();
        },
        |host| {
            host.install_kernel("6.0", "root=UUID=1234 ro a=1");
            host.set("LoaderEntryDefault", "*6.0.conf");
        },
        PREFERENCES[1],
    ];
    for (case, change) in changes.into_iter().enumerate() {
        let host = without_arguments().await;
        change(&host);
        let before = host.entries();
        host.agent().clean_up().await.unwrap();
        assert_eq!(host.entries(), before, "case {case}");
    }
    let host = without_arguments().await;
    stages(&host, "nosmt", "").await;
    let before = host.entries();
    host.agent().clean_up().await.unwrap();
    assert_eq!(host.entries(), before, "a trial is staged");
}

/// Without the kept entry's kernel, the entry is in no menu.
#[tokio::test]
async fn a_kept_entry_of_a_removed_kernel_is_removed_under_a_newer_kernel() {
    let host = without_arguments().await;
    host.install_kernel("6.2", HOST_ARGUMENTS);
    fs::remove_dir_all(host.path("efi/1234/6.1")).unwrap();
    fs::remove_file(host.path(OWN_ENTRY)).unwrap();
    host.reboot();
    host.agent().clean_up().await.unwrap();
    assert_eq!(host.entries(), ["1234-6.2.conf"]);
}

#[tokio::test]
async fn a_power_cut_while_the_kept_entry_is_removed_leaves_the_same_arguments() {
    for operations in 0.. {
        assert!(operations < 100, "it never ends");
        let host = without_arguments().await;
        let done = host.agent_until(operations).clean_up().await;
        host.power_cut();
        assert_eq!(host.running(), HOST_ARGUMENTS, "after {operations}");
        host.agent().clean_up().await.unwrap();
        assert_eq!(host.entries(), ["1234-6.1.conf"], "after {operations}");
        if done.is_ok() {
            assert!(operations > 0, "it changes something");
            break;
        }
    }
}
