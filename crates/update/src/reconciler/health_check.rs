//! Collects evidence of the machine's health before and after an update, and waits until it is healthy again.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    boot_health::{self, BootHealth, NODE_SERVICES, Regression},
    journal::{MachineBefore, UpdateFailure},
    os,
    phase::PhaseEvent,
    service_port::{Services, StartupState},
    store,
};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::KernelCommandLine;

/// Interval between two checks. A boot takes many seconds, a check some milliseconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long an update without a reboot may take to be as healthy as before, limited by `update.verifyTimeout`: its
/// units were already started and watched, and a reconfigured network needs seconds.
const NO_REBOOT_HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// A boot must be healthy for this multiple of `actions.settle`: a kubelet that lacks something takes longer to
/// fail than a service that cannot read its config.
const STABLE_SETTLE_FACTOR: u32 = 5;

/// Result of waiting for a healthy machine.
#[derive(Debug)]
pub(super) enum HealthOutcome {
    /// It is healthy.
    Healthy,
    /// It was not healthy within the time limit.
    Unhealthy(Vec<Regression>),
    /// Another event comes first.
    Event(PhaseEvent),
    /// The reconciler must stop.
    Stopped,
}

/// The invocation ID of each service; `None` if it is unknown.
type InvocationIds = BTreeMap<String, Option<String>>;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Returns the state that the machine must reach again after the update; `None` for an offline root.
    pub(super) async fn observe_machine(&self) -> Option<MachineBefore> {
        let services = self.services.clone()?;
        let observed = async {
            let startup = services.startup().await;
            let names: Vec<_> = NODE_SERVICES.map(str::to_owned).into();
            let facts = services.unit_facts(&names).await.unwrap_or_default();
            let running = facts.into_iter().filter(|(_, facts)| {
                let active = facts.active.as_deref();
                active.is_some_and(boot_health::runs)
            });
            MachineBefore {
                up: startup.is_ok_and(|startup| startup == StartupState::Finished),
                running: running.map(|(unit, _)| unit).collect(),
                gateways: self.hooks.gateways().await,
            }
        };
        Some(self.run_responsive(observed).await)
    }

    /// Waits until the machine is as healthy as before the update, or until the time limit.
    pub(super) async fn wait_for_health(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<HealthOutcome, UpdateError> {
        let offline = self.journal.top().is_some_and(|tx| tx.offline);
        let (Some(services), false) = (self.services.clone(), offline) else {
            return Ok(HealthOutcome::Healthy);
        };
        let booted = self.has_booted();
        let mut timeout = self.options.current().verify_timeout;
        let mut stable_for = self.options.current().settle * STABLE_SETTLE_FACTOR;
        if !booted {
            (timeout, stable_for) = (timeout.min(NO_REBOOT_HEALTH_TIMEOUT), Duration::ZERO);
        }
        let deadline = Instant::now() + timeout;
        let mut healthy_since: Option<(Instant, InvocationIds)> = None;
        loop {
            let (mut regressions, starts) = self
                .run_responsive(self.check_health(&*services, booted))
                .await;
            let now = Instant::now();
            match &healthy_since {
                Some((_, earlier)) if regressions.is_empty() && *earlier != starts => {
                    regressions = restarted(earlier, &starts);
                    healthy_since = None;
                }
                Some((since, _)) if regressions.is_empty() && now >= *since + stable_for => {
                    return Ok(HealthOutcome::Healthy);
                }
                None if regressions.is_empty() && stable_for.is_zero() => {
                    return Ok(HealthOutcome::Healthy);
                }
                None if regressions.is_empty() => healthy_since = Some((now, starts)),
                Some(_) if regressions.is_empty() => {}
                _ => healthy_since = None,
            }
            if now >= deadline && (!regressions.is_empty() || now >= deadline + stable_for) {
                return Ok(HealthOutcome::Unhealthy(regressions));
            }
            self.report_regressions(&regressions).await?;
            tokio::select! {
                () = stop.cancelled() => return Ok(HealthOutcome::Stopped),
                // Safe to drop: the next check is due in any case.
                () = self.run_responsive(tokio::time::sleep(CHECK_INTERVAL)) => {}
            }
            if self.desired.has_changed()
                && let Some(event) = self.event_for_desired()
            {
                return Ok(HealthOutcome::Event(event));
            }
        }
    }

    /// Returns whether the machine has rebooted with an unverified update.
    pub(super) fn has_booted(&self) -> bool {
        let mut open = self.journal.transactions.iter();
        self.boot_id()
            .is_some_and(|boot| open.any(|tx| tx.rebooted_since(&boot)))
    }

    async fn check_health(&self, services: &S, booted: bool) -> (Vec<Regression>, InvocationIds) {
        let before = self.journal.machine_before.clone().unwrap_or_default();
        let mut starts = InvocationIds::new();
        for unit in &before.running {
            let start = services.invocation(unit).await.ok().flatten();
            starts.insert(unit.clone(), start);
        }
        let names: Vec<_> = before.running.iter().cloned().collect();
        let facts = services.unit_facts(&names).await.unwrap_or_default();
        let state = |(unit, facts): (_, machinist_plan::UnitFacts)| Some((unit, facts.active?));
        let failed = services.failed_units().await;
        let startup = services.startup().await;
        if let Some(error) = startup.as_ref().err().or(failed.as_ref().err()) {
            tracing::debug!("{}", chain(error));
        }
        let health = BootHealth {
            // The same manager returns both, so an error of either invalidates both.
            startup: startup.ok().filter(|_| failed.is_ok()),
            failed_units: failed.unwrap_or_default().into_iter().collect(),
            services: facts.into_iter().filter_map(state).collect(),
            gateways: match before.gateways.is_empty() {
                true => before.gateways.clone(),
                false => self.hooks.gateways().await,
            },
            missing_arguments: self.missing_arguments(),
        };
        let failed_before = &self.journal.failed_units;
        (
            boot_health::faults(&before, failed_before, &health, booted),
            starts,
        )
    }

    /// Returns arguments of the config that the running kernel lacks.
    fn missing_arguments(&self) -> Vec<String> {
        let to = self.journal.top().map(|tx| &tx.to);
        let (root, store) = (self.state.root(), self.state.store());
        let config = store.map(|store| store::cached_config(root, to, store.remembered()));
        // The check of the disk reads the same config and reports the error.
        let Some(Ok(config)) = config else {
            return Vec::new();
        };
        let desired = KernelCommandLine::of(&config.kernel_arguments);
        let running = os::running_arguments(root).unwrap_or_default();
        let missing = desired.absent_from(&running).into_iter();
        missing
            .map(|argument| argument.as_str().to_owned())
            .collect()
    }

    /// Reports regressions, each combination once: in the log, and in the journal, where the agent reads them for
    /// its status while the guard judges the boot.
    async fn report_regressions(&mut self, regressions: &[Regression]) -> Result<(), UpdateError> {
        let message = crate::bounded(boot_health::sentence(regressions));
        let failure = self.journal.failure.as_ref();
        let reported = failure.filter(|failure| failure.code == Reason::HealthRegressed);
        if regressions.is_empty() || reported.is_some_and(|reported| reported.message == message) {
            return Ok(());
        }
        tracing::info!("not verified yet: {message}");
        self.report_unverified(Reason::HealthRegressed, message)
            .await
    }

    /// Reports why an update is not verified yet, for the status.
    pub(super) async fn report_unverified(
        &mut self,
        code: Reason,
        message: String,
    ) -> Result<(), UpdateError> {
        self.journal.failure = Some(UpdateFailure {
            code,
            message: crate::bounded(message),
            retryable: true,
            digest: None,
            refusals: Vec::new(),
        });
        self.publish();
        self.save().await
    }
}

/// Returns the services that were restarted since the last check.
fn restarted(before: &InvocationIds, now: &InvocationIds) -> Vec<Regression> {
    let differ = before
        .iter()
        .filter(|(unit, start)| now.get(*unit) != Some(start));
    differ
        .map(|(unit, _)| Regression::Restarts(unit.clone()))
        .collect()
}
