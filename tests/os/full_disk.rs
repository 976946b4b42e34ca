//! A disk that becomes full while a provider keeps a deployment, in a process that goes on.

use machinist_update::os::{DeploymentId, OsProvider};

use super::{
    contract::Host,
    fedora_host::FedoraHost,
    grub_host::GrubHost,
    grub_machine,
    interruptions::{Interruption, Lack, moments},
    ostree_files::Layout,
    ostree_host::OstreeHost,
    ostree_machine,
    power_cuts::{CuttableHost, stages},
    systemd_boot_host::SystemdBootHost,
    systemd_boot_machine,
};

/// A machine whose disk can become full.
pub(crate) trait FillableHost: CuttableHost {
    /// A provider of which operations fail.
    fn interrupted_agent(&self, interruption: &Interruption) -> Self::Provider;

    /// Checks that the boot loader's files agree with those of which they are made.
    fn assert_consistent(&self, _case: &str) {}
}

/// What follows the failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    KeepAgain,
    Discard,
    /// While the disk is still full; then the machine loses power.
    DiscardInVain,
    PowerCut,
}

const CASES: [(Lack, Then); 4] = [
    (Lack::SpaceOnce, Then::KeepAgain),
    (Lack::Space, Then::Discard),
    (Lack::Space, Then::DiscardInVain),
    (Lack::Space, Then::PowerCut),
];

/// A machine that runs on a trial.
async fn in_trial<H: Host>(host: &H) -> DeploymentId {
    let id = stages(host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    id
}

/// Fills the disk at an operation of `keep`, and returns whether that was done before.
async fn is_kept_before<H: FillableHost>(
    host: &H,
    before: &str,
    (operations, lack, then): (usize, Lack, Then),
) -> bool {
    let case = format!("{operations} operations, {lack:?}, {then:?}");
    let after = format!("{before} nosmt");
    let id = in_trial(host).await;
    let disk = Interruption::after(operations, lack);
    let agent = host.interrupted_agent(&disk);
    let kept = agent.keep(&id).await;
    let is_in_boot = |path: &str| path.starts_with("/boot");
    if lack == Lack::SpaceOnce
        && disk
            .failed
            .get()
            .is_some_and(|path| is_in_boot(path.as_str()))
    {
        // The file below /etc was restored at once.
        host.assert_consistent(&case);
    }
    match then {
        Then::KeepAgain => host.agent().keep(&id).await.unwrap(),
        Then::Discard => host.agent().discard().await.unwrap(),
        Then::DiscardInVain | Then::PowerCut => {
            if then == Then::DiscardInVain
                && let Err(error) = agent.discard().await
            {
                assert!(error.is_retryable(), "{case}: {error}");
            }
            host.power_cut();
            let running = host.running();
            assert!([before, &after].contains(&&*running), "{case}: {running}");
            host.agent().discard().await.unwrap();
        }
    }
    let next = host.agent().observe().await.unwrap().next;
    let own = match next == id {
        true => "nosmt",
        false => "",
    };
    if !agent.has_etc_per_deployment() {
        // OSTree leaves a trial by the boot.
        host.assert_settled(own, &case);
        host.assert_consistent(&case);
    }
    host.power_cut();
    let booted = host.agent().observe().await.unwrap().booted.id;
    assert_eq!(booted, next, "{case}");
    host.agent().discard().await.unwrap();
    host.assert_settled(own, &case);
    host.assert_consistent(&case);
    let running = host.running();
    let may_be_old = then != Then::KeepAgain && kept.is_err();
    assert!(
        running == after || may_be_old && running == before,
        "{case}: {running}"
    );
    kept.is_ok()
}

/// Fills the disk of new hosts at these operations of `keep`.
async fn a_full_disk_leaves_one_of_two_deployments<H: FillableHost, M: Iterator<Item = usize>>(
    new_host: impl Fn() -> H,
    before: &str,
    moments: impl Fn(usize) -> M,
) {
    for (case, (lack, then)) in CASES.into_iter().enumerate() {
        for operations in moments(case) {
            assert!(operations < 100, "it never ends");
            if is_kept_before(&new_host(), before, (operations, lack, then)).await {
                assert!(operations > 10, "it writes several files: {operations}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_disk_that_is_full_at_any_operation_of_keep_leaves_one_of_two_deployments() {
    let before = grub_machine::BEFORE;
    a_full_disk_leaves_one_of_two_deployments(GrubHost::new, before, |_| 0..).await;
    a_full_disk_leaves_one_of_two_deployments(FedoraHost::new, before, moments).await;
    let before = systemd_boot_machine::BEFORE;
    a_full_disk_leaves_one_of_two_deployments(SystemdBootHost::new, before, moments).await;
}

#[tokio::test]
async fn a_disk_that_is_full_while_ostree_keeps_a_deployment_leaves_one_of_two() {
    for layout in [Layout::Debian, Layout::Bootc, Layout::RpmOstree] {
        let new_host = || OstreeHost::with_layout(layout);
        let before = ostree_machine::BEFORE;
        a_full_disk_leaves_one_of_two_deployments(new_host, before, moments).await;
    }
}
