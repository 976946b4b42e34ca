//! Power cuts during each step of a provider of kernel arguments, at each of its file operations.

use machinist_update::os::{DeploymentId, OsProvider as _};

use super::contract::{Host, STEP_TIMEOUT, wanted};

/// A machine that can lose power during a step.
pub(crate) trait CuttableHost: Host {
    /// A provider on a machine that loses power after some file operations.
    fn agent_until(&self, operations: usize) -> Self::Provider;

    /// The arguments of the running kernel, without those of a trial.
    fn running(&self) -> String;

    /// Checks that nothing of a trial is left, and that later kernels get these arguments of machinist.
    fn assert_settled(&self, own: &str, case: &str);
}

pub(crate) async fn stages<H: Host>(host: &H, append: &str, remove: &str) -> DeploymentId {
    let (agent, wanted) = (host.agent(), wanted(append, remove));
    let staged = agent.stage(&wanted, STEP_TIMEOUT).await;
    staged.unwrap().unwrap()
}

/// Stages, boots and keeps a deployment.
pub(crate) async fn updates<H: Host>(host: &H, append: &str, remove: &str) {
    let id = stages(host, append, remove).await;
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    host.agent().keep(&id).await.unwrap();
}

/// After a power cut at any moment the machine boots with the arguments of `before` or with the new ones, and the steps can
/// be repeated or undone.
pub(crate) async fn each_power_cut_leaves_one_of_two_deployments<H: CuttableHost>(
    new_host: impl Fn() -> H,
    before: &str,
) {
    for step in ["stage", "unlock", "keep", "roll_back", "discard"] {
        let mut operations = 0;
        while !is_done_before(&new_host(), (step, operations), before).await {
            operations += 1;
            assert!(operations < 200, "{step}");
        }
    }
}

/// Cuts the power after some file operations of a step, and returns whether it was done by then.
async fn is_done_before<H: CuttableHost>(
    host: &H,
    (step, operations): (&str, usize),
    before: &str,
) -> bool {
    let case = format!("{step} after {operations} operations");
    let first = host.agent().observe().await.unwrap().booted.id;
    let mut id = None;
    if step != "stage" {
        id = Some(stages(host, "nosmt", "").await);
    }
    if ["keep", "roll_back"].contains(&step) {
        host.agent().unlock(id.as_ref().unwrap()).await.unwrap();
        host.reboot();
    }
    if step == "roll_back" {
        host.agent().keep(id.as_ref().unwrap()).await.unwrap();
    }
    let agent = host.agent_until(operations);
    let nosmt = wanted("nosmt", "");
    let done = match step {
        "stage" => agent.stage(&nosmt, STEP_TIMEOUT).await.map(drop),
        "unlock" => agent.unlock(id.as_ref().unwrap()).await,
        "keep" => agent.keep(id.as_ref().unwrap()).await,
        "roll_back" => agent.roll_back(&first).await,
        _ => agent.discard().await,
    };
    host.power_cut();
    let (running, after) = (host.running(), format!("{before} nosmt"));
    assert!([before, &after].contains(&&*running), "{case}: {running}");
    // The next process can discard it, and stage and keep another deployment.
    host.agent().discard().await.unwrap();
    updates(host, "b=1", "nosmt").await;
    host.reboot();
    assert_eq!(host.running(), format!("{before} b=1"), "{case}");
    host.assert_settled("b=1", &case);
    done.is_ok()
}
