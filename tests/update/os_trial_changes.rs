//! What changes around a trial on a machine with packages: the desired config, and the kernels.

use std::{fs, time::Duration};

use machinist_base::reason::Reason;
use machinist_testkit::{sandbox::Written, scripted_services::Script};
use machinist_update::{
    journal::Outcome,
    phase::Phase,
    reconciler::{RebootPolicy, UpdateReport},
};

use crate::{
    os::{
        grub_machine::{BEFORE, CUSTOM},
        systemd_boot_machine::{BEFORE as SYSTEMD_BOOT_BEFORE, SystemdBootMachine},
    },
    update::{
        boots::KUBELET,
        harness::{Driver, boot, machine},
        os_trials::{Host, options, with_arguments},
        reboots::reboots,
    },
};

/// The journal has one trial: if another one replaced it, its arguments would count as those of the host.
#[tokio::test(start_paused = true)]
async fn a_config_that_arrives_during_a_grub_trial_waits_until_its_arguments_are_kept() {
    let one = with_arguments("one", &["nosmt"]);
    let two = with_arguments("two", &["a=1"]).file("/etc/app", "2\n", 0o644);
    for panics in [false, true] {
        let mut host = Host::new();
        host.until_reboot(&one).await;
        host.boot();
        assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
        host.script.unit_is(KUBELET, "activating");
        let mut agent = host.agent(&one);
        let verifying = |report: &UpdateReport| report.phase == Phase::Verifying;
        agent.until("verifying", verifying).await;
        agent.wants(&two);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(agent.reports.borrow().phase, Phase::Verifying);
        host.script.unit_is(KUBELET, "active");
        host.script.until_asked_times("reboot Logind", 2).await;
        agent.stop().await;
        let kept = &host.sandbox.journal().history[0];
        assert_eq!((&*kept.to, kept.outcome), ("one", Outcome::Done));
        if panics {
            host.grub.panics(&host.next_entry().unwrap());
        }
        host.boot();
        if panics {
            // The previous kernel has booted with the file of the second config.
            host.until_reboot(&two).await;
            host.boot();
            let mut agent = host.agent(&two);
            let report = agent.until_failed().await;
            assert_eq!(report.failure.as_ref().unwrap().code, Reason::OSBootFailed);
            agent.stop().await;
            assert_eq!(
                (host.sandbox.read("/etc/app"), host.next_entry()),
                (None, None)
            );
        } else {
            let mut agent = host.agent(&two);
            agent.until_on(&two).await;
            agent.stop().await;
        }
        assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
        host.boot();
        let expected = match panics {
            true => format!("{BEFORE} nosmt"),
            false => format!("{BEFORE} a=1"),
        };
        assert_eq!(host.grub.running(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_config_that_arrives_during_a_systemd_boot_trial_waits_until_its_arguments_are_kept() {
    let two = with_arguments("two", &["a=1"]);
    for panics in [false, true] {
        let (sandbox, script) = (machine(), Script::new());
        let host = SystemdBootMachine::new(&sandbox.path("/"));
        let agent = |wanted: &Written| {
            let how = (wanted.desired(), options(RebootPolicy::Auto));
            Driver::on_os(&sandbox.root(), &script, host.agent(), how)
        };
        let first = agent(&with_arguments("one", &["nosmt"]));
        script.until_asked_times("reboot Logind", 1).await;
        first.stop().await;
        host.boot();
        boot(&sandbox, "boot-2");
        assert_eq!(host.running(), format!("{SYSTEMD_BOOT_BEFORE} nosmt"));
        script.unit_is(KUBELET, "activating");
        let mut first = agent(&with_arguments("one", &["nosmt"]));
        let verifying = |report: &UpdateReport| report.phase == Phase::Verifying;
        first.until("verifying", verifying).await;
        first.wants(&two);
        script.unit_is(KUBELET, "active");
        script.until_asked_times("reboot Logind", 2).await;
        first.stop().await;
        let trial = sandbox.journal().os_trial.unwrap();
        if panics {
            host.panics(&trial.deployment);
        }
        host.boot();
        boot(&sandbox, "boot-3");
        let mut second = agent(&two);
        let expected = match panics {
            true => {
                second.until_failed().await;
                format!("{SYSTEMD_BOOT_BEFORE} nosmt")
            }
            false => {
                second.until_on(&two).await;
                format!("{SYSTEMD_BOOT_BEFORE} a=1")
            }
        };
        second.stop().await;
        host.boot();
        assert_eq!(host.running(), expected);
    }
}

/// An upgrade of the distribution while an operator is asked for the reboot.
#[tokio::test]
async fn a_trial_whose_kernel_was_replaced_is_staged_again_with_the_new_kernel() {
    let one = with_arguments("one", &["nosmt"]);
    let mut host = Host::new();
    let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    host.grub.install_kernel();
    for file in ["boot/vmlinuz-6.1", "boot/initrd.img-6.1"] {
        fs::remove_file(host.grub.path(file)).unwrap();
    }
    agent.confirm();
    host.script.wait_for_requests("reboot Logind").await;
    agent.stop().await;
    assert!(host.next_entry().is_some());
    host.boot();
    let running = host.grub.read("proc/cmdline");
    assert!(
        running.starts_with("BOOT_IMAGE=/boot/vmlinuz-6.2 "),
        "{running}"
    );
    let after = format!("{BEFORE} nosmt");
    assert_eq!(host.grub.running(), after);
    let mut agent = host.agent(&one);
    let report = agent.until_on(&one).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    agent.stop().await;
    host.boot();
    assert_eq!((host.grub.running(), reboots(&host.script)), (after, 1));
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
}
