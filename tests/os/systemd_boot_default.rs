//! The entry that systemd-boot enters without a request, where others have a say in it.

use std::fs;

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::KernelCommandLine;
use machinist_plan::OsUpdate;
use machinist_rootfs::Root;
use machinist_update::os::{self, OsProvider as _};

use super::{
    contract::{Host as _, STEP_TIMEOUT, wanted},
    power_cuts::stages,
    systemd_boot_host::SystemdBootHost,
    systemd_boot_machine::BEFORE,
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
