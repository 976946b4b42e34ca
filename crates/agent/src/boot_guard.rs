//! The boot guard: takes the lock and verifies the running boot. If the agent holds the lock, the
//! agent verifies the boot by the same rules, and the guard only makes sure that this happens.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{AgentError, capabilities, one_shot::OneShotAudience, reconciler_options};
use crate::admin::fetch_status;
use machinist_base::{
    error_chain::chain,
    shutdown::{ProcessSignals, Tasks},
};
use machinist_plan::{ActionKind, UnitFacts};
use machinist_rootfs::Root;
use machinist_status::settings::Settings;
use machinist_systemd::Systemd;
use machinist_update::{
    boot_health, boot_id,
    journal::Journal,
    reconciler::{DesiredConfig, Reconciler, UpdateError},
    service_port::{ServiceError, Services},
    store::{self, StoreError},
};

/// Retry interval for a lock that another process holds.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The agent's unit, which is restarted if it holds the lock and does not respond.
const AGENT_UNIT: &str = "machinist.service";

/// Whether an update waits for the verification of the boot that runs below `root`.
pub fn is_due(root: &Root) -> Result<bool, StoreError> {
    Ok(due(root)?.is_some())
}

fn due(root: &Root) -> Result<Option<Journal>, StoreError> {
    let boot = boot_id::current(root)?;
    let journal = store::peek(root)?;
    let due = root.is_live() && boot.is_some_and(|boot| boot_health::is_due(&journal, &boot));
    Ok(due.then_some(journal))
}

/// Verifies the running boot if that is due, and acts on the result: accepts it, reboots again, or
/// rolls the update back. Returns when nothing is left to do; a reboot ends the process instead.
///
/// A first signal stops it between two steps, a second one immediately: exit the process then.
/// Unfinished steps are recovered as after a crash.
pub async fn run(root: &Root, settings: &Settings) -> Result<(), AgentError> {
    let signals =
        ProcessSignals::listen().map_err(|e| AgentError::System("listen for signals", e))?;
    let tasks = Tasks::new();
    tokio::select! {
        judged = judge(root, settings, tasks.token()) => judged,
        () = signals.handle_requests(&tasks, || {}) => Ok(()),
    }
}

async fn judge(
    root: &Root,
    settings: &Settings,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let capabilities = capabilities(root, settings.owners)?;
    let systemd = Systemd::of(root);
    boot_id::record_userspace(root, &systemd).await;
    let mut patience = Instant::now() + settings.update.verify_timeout;
    while due(root)
        .map_err(|error| Box::new(UpdateError::Store(error)))?
        .is_some()
    {
        let (_keep, desired) = watch::channel(DesiredConfig::Unknown);
        // No plan is made here, so policies are not needed.
        let conduct = reconciler_options(settings, capabilities, Arc::default());
        let once = OneShotAudience(|_: &_| false);
        match Reconciler::new(root, Some(systemd.clone()), once, conduct, desired) {
            Ok((driver, _)) => {
                let provider = super::settings_mapping::os_provider(root, Some(&systemd));
                let driver = driver.with_os_provider(provider);
                driver.judge_boot(stop).await.map_err(Box::new)?;
                return Ok(());
            }
            Err(error) if error.is_locked() => {}
            Err(error) => return Err(Box::new(error).into()),
        }
        if Instant::now() >= patience {
            restart_a_silent_agent(root, &systemd, settings).await;
            patience = Instant::now() + settings.update.verify_timeout;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            // Cancel-safe: it only waits for the next attempt.
            () = tokio::time::sleep(LOCK_RETRY_INTERVAL) => {}
        }
    }
    Ok(())
}

/// An agent that holds the lock and does not respond will not verify this boot. Restart it: the new
/// agent may do so, unless the guard gets the lock first. If the agent is not running, an
/// operator's command holds the lock.
async fn restart_a_silent_agent(root: &Root, systemd: &Systemd, settings: &Settings) {
    let asked = root.clone();
    match tokio::task::spawn_blocking(move || fetch_status(&asked)).await {
        Ok(Err(error)) => tracing::warn!(
            "the transaction lock is held and the agent does not respond: {}",
            chain(&error)
        ),
        _ => return,
    }
    let (limit, settle) = (settings.actions.job_timeout, Duration::ZERO);
    let restarted = async {
        if !runs(
            systemd
                .unit_facts(&[AGENT_UNIT.to_owned()])
                .await?
                .get(AGENT_UNIT),
        ) {
            return Ok::<_, ServiceError>(false);
        }
        systemd
            .act(ActionKind::Restart, AGENT_UNIT, limit, settle)
            .await
            .map(|()| true)
    };
    match restarted.await {
        Ok(true) => {
            tracing::warn!(
                "restarted {AGENT_UNIT}: it held the transaction lock and did not respond"
            )
        }
        Ok(false) => {
            tracing::warn!(
                "{AGENT_UNIT} is not running; another command holds the transaction lock"
            )
        }
        Err(error) => tracing::error!(reason = %error.reason, "{}", chain(&error)),
    }
}

fn runs(agent: Option<&UnitFacts>) -> bool {
    let state = agent.and_then(|facts| facts.active.as_deref());
    state.is_some_and(boot_health::runs)
}
