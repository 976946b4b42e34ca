//! Deployments of an administrator beside a trial of machinist, on a host with OSTree.

use std::sync::atomic::Ordering;

use machinist_plan::KernelType;
use machinist_update::os::{
    DeploymentId, DesiredDeployment, OsError, OsProvider as _, ProviderStep,
};

use super::{
    contract::{STEP_TIMEOUT, image, of_image, wanted},
    ostree_files::{FOREIGN_COMMIT, Layout},
    ostree_host::OstreeHost,
    ostree_machine::{BEFORE, OstreeMachine},
    rpm_ostree_host::with_packages,
};
use crate::os::contract::Host as _;

/// A machine that runs on a trial, and the identifier of the trial.
async fn in_trial() -> (OstreeHost, DeploymentId) {
    let host = OstreeHost::new();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    // As after each start of the agent.
    host.agent().lock().await.unwrap();
    (host, id)
}

/// Fedora CoreOS has a variable in each entry, for the arguments of the first boot.
#[tokio::test]
async fn a_variable_of_the_boot_loader_stays_in_the_entry() {
    let host = OstreeHost::with_layout(Layout::RpmOstree);
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    host.agent().keep(&id).await.unwrap();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    let (name, options) = &host.menu()[0];
    let expected = BEFORE.replacen(' ', " $ignition_firstboot ", 1) + " nosmt";
    assert_eq!((name.as_str(), options), (id.as_str(), &expected));
}

/// `rpm-ostree rollback` and `bootc rollback` change the menu as `ostree admin set-default` does.
#[tokio::test]
async fn an_administrators_rollback_of_a_trial_stays() {
    for is_rolled_back in [true, false] {
        let (host, id) = in_trial().await;
        host.admin(&["set-default", "1"]);
        let kept = host.agent().keep(&id).await.unwrap_err();
        let error = machinist_base::error_chain::chain(&kept);
        assert!(error.contains("the next boot enters another"), "{error}");
        if is_rolled_back {
            let previous = DeploymentId::new("cd.0");
            host.agent().roll_back(&previous).await.unwrap();
        }
        for _ in 0..2 {
            host.reboot();
            assert_eq!(host.running(), BEFORE);
        }
        host.agent().discard().await.unwrap();
        assert_eq!(host.menu()[0].0, "cd.0");
        assert!(host.menu().iter().all(|(name, _)| name != id.as_str()));
        host.assert_settled("rolled back");
        host.reboot();
        assert_eq!(host.running(), BEFORE);
    }
}

/// An administrator stages a deployment after a failed trial, before the agent has started.
#[tokio::test]
async fn a_failed_trial_is_removed_beside_a_staged_deployment_of_an_administrator() {
    // With the arguments of the deployment that runs, or with those of the failed one, which is the first of the menu and
    // which it must not be a second time.
    for (arguments, stays) in [
        ("quiet", true),
        ("quiet nosmt panic=10 machinist.trial=", false),
    ] {
        let host = OstreeHost::new();
        let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
        let id = staged.unwrap().unwrap();
        host.agent().unlock(&id).await.unwrap();
        host.panics(&id);
        host.reboot();
        assert_eq!(host.running(), BEFORE);
        let mark = host.menu()[0]
            .1
            .rsplit_once("machinist.trial=")
            .unwrap()
            .1
            .to_owned();
        let arguments = arguments.replace("trial=", &format!("trial={mark}"));
        stage_foreign(&host, &arguments);
        host.agent().discard().await.unwrap();
        host.agent().discard().await.unwrap();
        let staged = host.directory.path().join("run/ostree/staged-deployment");
        assert_eq!(staged.exists(), stays, "{arguments}");
        assert!(host.menu().iter().all(|(name, _)| name != id.as_str()));
        host.assert_settled(&arguments);
    }
}

/// Stages a deployment of another commit with these arguments.
pub(crate) fn stage_foreign(host: &OstreeMachine, arguments: &str) {
    let flags = "deploy --os=debian --stage --lock-finalization --karg-none \
                 --origin-file=/ostree/deploy/debian/deploy/cd.0.origin";
    let mut words: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    words.extend(
        arguments
            .split(' ')
            .map(|one| format!("--karg-append={one}")),
    );
    words.push(FOREIGN_COMMIT.to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    host.admin(&words);
    host.admin(&["lock-finalization", "--unlock"]);
}

/// rpm-ostree copies the arguments of the running deployment, here those of a trial, to the one that it makes.
#[tokio::test]
async fn a_deployment_with_copied_trial_arguments_is_no_trial() {
    let (host, _) = in_trial().await;
    stage_foreign(&host, &host.menu()[0].1);
    host.reboot();
    assert_eq!(host.menu()[0].0, "ef.0");
    host.agent().discard().await.unwrap();
    let observed = host.agent().observe().await.unwrap();
    assert_eq!(observed.booted.id.as_str(), "ef.0");
    assert_eq!(
        (&observed.next, observed.staged),
        (&observed.booted.id, None)
    );
    // It is the fallback of the next trial, and stays.
    let staged = host.agent().stage(&wanted("b=1", ""), STEP_TIMEOUT).await;
    host.agent()
        .unlock(&staged.unwrap().unwrap())
        .await
        .unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt b=1"));
    host.agent().lock().await.unwrap();
    host.agent().discard().await.unwrap();
    host.agent().roll_back(&observed.booted.id).await.unwrap();
    host.reboot();
    host.agent().discard().await.unwrap();
    assert_eq!(host.menu()[0].0, "ef.0");
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

/// rpm-ostree copies the arguments of a staged deployment, too, whose boot nothing would leave if it failed.
#[tokio::test]
async fn a_deployment_with_the_arguments_of_a_staged_trial_is_removed() {
    for layout in [Layout::Debian, Layout::RpmOstree] {
        let host = OstreeHost::with_layout(layout);
        let nosmt = wanted("nosmt", "");
        let staged = host.agent().stage(&nosmt, STEP_TIMEOUT).await;
        let id = staged.unwrap().unwrap();
        stage_foreign(
            &host,
            "quiet nosmt panic=10 machinist.trial=machinist-0123456789abcdef",
        );
        assert_eq!(host.agent().observe().await.unwrap().staged, None);
        let unlocked = host.agent().unlock(&id).await;
        assert!(matches!(unlocked, Err(OsError::DeploymentMissing { .. })));
        host.agent().remove_copy().await.unwrap();
        host.agent().remove_copy().await.unwrap();
        host.reboot();
        assert_eq!(host.running(), BEFORE);
        let staged = host.agent().stage(&nosmt, STEP_TIMEOUT).await;
        let id = staged.unwrap().unwrap();
        host.agent().remove_copy().await.unwrap();
        host.agent().unlock(&id).await.unwrap();
        host.reboot();
        host.agent().keep(&id).await.unwrap();
        assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    }
}

/// A trial that is not healthy is to be booted once more.
#[tokio::test]
async fn a_copy_of_a_running_trial_is_removed_before_the_trial_is_unlocked() {
    let (host, id) = in_trial().await;
    stage_foreign(&host, &host.menu()[0].1);
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    let observed = host.agent().observe().await.unwrap();
    assert_eq!(observed.booted.id, id);
}

/// Checks that staging is refused, and that the deployment of an administrator stays.
async fn assert_overtaken(host: &OstreeHost, wanted: &DesiredDeployment, command: &'static str) {
    let agent = host.agent();
    agent.fetch(wanted, STEP_TIMEOUT).await.unwrap();
    host.is_overtaken_after(command);
    for _ in 0..2 {
        let refused = agent.stage(wanted, STEP_TIMEOUT).await.unwrap_err();
        let error = machinist_base::error_chain::chain(&refused);
        let expected = "another program has staged the deployment ef.0";
        assert!(error.contains(expected), "{command}: {error}");
    }
    agent.discard().await.unwrap();
    host.assert_settled(command);
    host.reboot();
    assert_eq!(host.menu()[0].0, "ef.0", "{command}");
}

/// It takes minutes until bootc and rpm-ostree have prepared a deployment.
#[tokio::test]
async fn a_deployment_that_an_administrator_stages_during_the_staging_stays() {
    for command in ["switch", "undeploy"] {
        let host = OstreeHost::with_layout(Layout::Bootc);
        host.registry.publish(&image("new"), "2.0");
        assert_overtaken(&host, &of_image(image("new")), command).await;
    }
    for command in ["stage", "undeploy"] {
        let host = OstreeHost::with_layout(Layout::RpmOstree);
        let usbguard = with_packages(KernelType::Default, &["usbguard"]);
        assert_overtaken(&host, &usbguard, command).await;
    }
}

/// rpm-ostree removes its lock only once a deployment is staged.
#[tokio::test]
async fn a_lock_without_a_deployment_is_removed() {
    let host = OstreeHost::with_layout(Layout::RpmOstree);
    let usbguard = with_packages(KernelType::Default, &["usbguard"]);
    let agent = host.agent();
    agent.fetch(&usbguard, STEP_TIMEOUT).await.unwrap();
    let failing = &host.rpm_ostree.is_failing_late;
    failing.store(true, Ordering::Relaxed);
    agent.stage(&usbguard, STEP_TIMEOUT).await.unwrap_err();
    let lock = host
        .directory
        .path()
        .join("run/ostree/staged-deployment-locked");
    assert!(!lock.exists());
    // A process that was killed leaves it, too.
    std::fs::write(&lock, "").unwrap();
    agent.discard().await.unwrap();
    assert!(!lock.exists());
}

#[tokio::test]
async fn the_pin_of_the_running_deployment_is_not_copied() {
    let host = OstreeHost::new();
    let origin = "ostree/deploy/debian/deploy/cd.0.origin";
    let text = "[origin]\nrefspec=debian/stable\nunlocked=development\n\n\
                [libostree-transient]\npinned=true\n";
    std::fs::write(host.directory.path().join(origin), text).unwrap();
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    let origin = host.read(&format!("ostree/deploy/debian/deploy/{id}.origin"));
    assert_eq!(origin.trim(), "[origin]\nrefspec=debian/stable");
}

#[tokio::test]
async fn a_failed_staging_leaves_nothing() {
    let host = OstreeHost::new();
    host.fails_next(ProviderStep::Stage);
    let staged = host.agent().stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    staged.unwrap_err();
    host.assert_settled("failed");
    let lock = host
        .directory
        .path()
        .join("run/ostree/staged-deployment-locked");
    assert!(!lock.exists());
}

/// Such as an automatic update during the trial, which copies the arguments of the running deployment.
#[tokio::test]
async fn a_deployment_that_was_staged_from_a_trial_is_removed_with_the_verdict() {
    for is_kept in [true, false] {
        let (host, id) = in_trial().await;
        stage_foreign(&host, &host.menu()[0].1);
        let after = match is_kept {
            true => {
                host.agent().keep(&id).await.unwrap();
                format!("{BEFORE} nosmt")
            }
            false => {
                host.agent().discard().await.unwrap();
                BEFORE.to_owned()
            }
        };
        let staged = host.directory.path().join("run/ostree/staged-deployment");
        assert!(!staged.exists());
        host.reboot();
        assert_eq!(host.running(), after);
        host.agent().discard().await.unwrap();
        host.assert_settled(&after);
    }
}

/// An administrator changes the menu during a trial, and the trial stays the first deployment.
#[tokio::test]
async fn a_changed_menu_does_not_make_a_trial_the_default() {
    let (host, _) = in_trial().await;
    host.admin(&["set-default", "0"]);
    host.agent().lock().await.unwrap();
    host.power_cut();
    assert_eq!(host.running(), BEFORE);
    let (host, _) = in_trial().await;
    host.admin(&["set-default", "0"]);
    let previous = DeploymentId::new("cd.0");
    host.agent().roll_back(&previous).await.unwrap();
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    host.agent().discard().await.unwrap();
    host.assert_settled("rolled back");
}
