//! Requests the reboot, at most three times, and waits for it.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{RebootPolicy, Reconciler, ReconcilerHooks, UpdateError, node_call_retry::WaitEnd};
use crate::{
    boot_id, crash_recovery,
    journal::{Direction, OsTrialState, RebootRecord, Transaction, UpdateFailure, kernel_of},
    phase::PhaseEvent,
    service_port::{RebootKind, RebootMethod, ServiceError, Services},
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};

/// Delay before an inhibited reboot is requested again. Package managers and backups hold inhibitor locks for
/// minutes, so half a minute is short enough and delays them little.
const INHIBITED_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Delay before another method is tried. A bus that is stopped before it answers may have passed the request on: then
/// systemd ends this process within this time.
const OTHER_METHOD_DELAY: Duration = Duration::from_secs(2);

/// Delay before an unreachable service manager is tried again. A bus that is updated or restarted is unavailable
/// for seconds, sometimes for a minute.
const UNREACHABLE_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Delay after an administrator has cancelled a reboot, in which they can also withdraw the config or change
/// `update.reboot`.
const CANCELLED_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The root of a soft reboot, if it exists (systemd-soft-reboot.service(8)).
const NEXT_ROOT_PATH: &str = "/run/nextroot";

#[derive(Debug, thiserror::Error)]
#[error("the reboot was requested three times and did not happen")]
struct RebootTimeoutError;

#[derive(Debug, thiserror::Error)]
#[error("no boot ID below the root: a reboot could not be verified")]
struct NoBootIdError;

#[derive(Debug, thiserror::Error)]
#[error("no service manager to request the reboot from")]
struct NoServiceManagerError;

/// A failed attempt.
struct RebootAttempt {
    kind: RebootKind,
    reason: Reason,
    /// The service manager had accepted the reboot.
    accepted: bool,
    /// Number of attempts before it.
    earlier: u32,
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Requests the reboot. Returns on a changed desired config, on a failure, or with `None` on a stop; if it
    /// succeeds, the process ends with the machine.
    pub(super) async fn reboot(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        self.publish();
        if let Some(event) = self.event_for_desired_or_retry() {
            return Ok(Some(event));
        }
        self.record_boots();
        let boot_at_start = self.boot_id();
        let userspace_known = self.record_userspace().await;
        if let Some(event) = self.detect_past_reboot(boot_at_start).await? {
            return Ok(Some(event));
        }
        let Some(boot) = self.boot_id() else {
            self.record_failure(&NoBootIdError, Reason::BootUnverified, true);
            return Ok(Some(PhaseEvent::StepFailed));
        };
        if !self.may_reboot() {
            self.log_pending_reboot();
            return self.wait(stop).await;
        }
        if let Some(ended) = self.check_before_request(stop).await? {
            return Ok(ended);
        }
        let kind = self.reboot_kind(&boot, userspace_known);
        let mut unreachable = 0;
        loop {
            let earlier = self.attempts(&boot, kind);
            let Some(method) = RebootMethod::of_attempt(earlier) else {
                self.record_failure(&RebootTimeoutError, Reason::RebootTimeout, false);
                return Ok(Some(PhaseEvent::StepFailed));
            };
            let Some(services) = self.services.clone() else {
                self.record_failure(&NoServiceManagerError, Reason::ManagerUnreachable, false);
                return Ok(Some(PhaseEvent::StepFailed));
            };
            if let event @ Some(_) = self.prepare_request(&boot, kind, earlier + 1).await? {
                return Ok(event);
            }
            tracing::info!("requesting {kind}: {method:?}, attempt {}", earlier + 1);
            let Some((error, accepted)) = self.request_reboot(&*services, kind, method, stop).await
            else {
                return Ok(None);
            };
            self.report_error(&error);
            let attempt = RebootAttempt {
                kind,
                reason: error.reason,
                accepted,
                earlier,
            };
            let Some(pause) = self.delay_after(attempt, &boot, &mut unreachable).await? else {
                continue;
            };
            match self.pause(pause, stop).await? {
                Some(event) => return Ok(event),
                // Meanwhile reboots may have been left to an operator, or pods may have been scheduled.
                None if unreachable == 0 => return Ok(Some(PhaseEvent::Retry)),
                None => {}
            }
        }
    }

    /// Checks the cluster, and disables device allocation again. Returns `None` if the reboot may be requested.
    async fn check_before_request(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        match self.check_reboot(stop).await? {
            None => self.disable_devices_again(stop).await,
            ended => Ok(ended),
        }
    }

    /// Requests the reboot once and waits for it. Returns why the machine still runs, and whether the service
    /// manager had accepted the request; `None` on a stop, which is also how systemd ends this process during a
    /// reboot.
    async fn request_reboot(
        &self,
        services: &S,
        kind: RebootKind,
        method: RebootMethod,
        stop: &CancellationToken,
    ) -> Option<(ServiceError, bool)> {
        let why = format!("machinist is applying {}", self.config_name());
        tokio::select! {
            // The request is in the journal: the next start repeats it or detects a new boot.
            () = stop.cancelled() => return None,
            requested = self.run_responsive(services.reboot(kind, method, &why)) => {
                if let Err(error) = requested {
                    return Some((error, false));
                }
            }
        }
        tracing::info!("{kind} accepted");
        tokio::select! {
            // Expected: systemd stops this process during the shutdown.
            () = stop.cancelled() => None,
            error = self.run_responsive(services.reboot_over(self.options.current().reboot_timeout)) => {
                Some((error, true))
            }
        }
    }

    /// Locks the deployment, and returns the delay before the next attempt; `None` for no delay. An attempt that did
    /// not reach the service manager, or that an inhibitor lock blocked, is not counted.
    async fn delay_after(
        &mut self,
        attempt: RebootAttempt,
        boot: &str,
        unreachable: &mut u32,
    ) -> Result<Option<Duration>, UpdateError> {
        self.lock_deployment().await?;
        match attempt.reason {
            Reason::RebootInhibited => {
                self.record_attempts(boot, attempt.kind, attempt.earlier)
                    .await?;
                Ok(Some(INHIBITED_RETRY_DELAY))
            }
            Reason::RebootCancelled => Ok(Some(CANCELLED_RETRY_DELAY)),
            Reason::ManagerUnreachable if attempt.accepted => Ok(Some(UNREACHABLE_RETRY_DELAY)),
            Reason::ManagerUnreachable => {
                *unreachable += 1;
                let attempts = attempt.earlier + 1;
                if RebootMethod::of_attempt(attempts).is_some() {
                    // Without a bus, as in emergency mode, another method may work.
                    return Ok(Some(OTHER_METHOD_DELAY));
                }
                self.record_attempts(boot, attempt.kind, attempts - *unreachable)
                    .await?;
                *unreachable = 0;
                Ok(Some(UNREACHABLE_RETRY_DELAY))
            }
            _ => Ok(None),
        }
    }

    /// Logs that an operator has to act.
    pub(super) fn log_pending_reboot(&self) {
        let trial = self.journal.os_trial.as_ref();
        let is_staged = trial.is_some_and(|trial| trial.state == OsTrialState::Staged);
        match (is_staged, self.options.current().reboot) {
            (false, _) => tracing::warn!("reboot required; reboot manually (update.reboot)"),
            (true, RebootPolicy::Never) => tracing::warn!(
                "reboot required, which machinist must request: another reboot does not try the new kernel arguments or \
                 OS image; set update.reboot to ask or auto"
            ),
            (true, _) => tracing::warn!(
                "reboot required, which machinist must request: another reboot does not try the new kernel arguments or \
                 OS image; run machinist apply"
            ),
        }
    }

    async fn record_userspace(&self) -> bool {
        let Some(services) = self.services.clone() else {
            return false;
        };
        self.run_responsive(boot_id::record_userspace(self.state.root(), &*services))
            .await
    }

    /// Detects that the needed reboot has already happened, if the running userspace was unknown at the start of
    /// this process and was therefore taken for the one in `boot_at_start`. Then another reboot must not be requested.
    async fn detect_past_reboot(
        &mut self,
        boot_at_start: Option<String>,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let now = self.boot_id();
        let Some(now) = now.filter(|now| boot_at_start.as_ref() != Some(now)) else {
            return Ok(None);
        };
        crash_recovery::count_boot(&mut self.journal, &now);
        self.save().await?;
        let top = self.journal.top().filter(|tx| tx.rebooted_since(&now));
        Ok(top.map(|top| match top.direction {
            Direction::Undo => PhaseEvent::Withdrawn,
            Direction::Forward => PhaseEvent::BootSeen,
        }))
    }

    /// Returns the kind of reboot: soft if the update needs no more and its success can be detected, and at most
    /// once. The boot after an unhealthy boot and the boot after an undo are full, so that no kernel state is left
    /// over.
    fn reboot_kind(&self, boot: &str, userspace_known: bool) -> RebootKind {
        let open = &self.journal.transactions;
        let requested = open.last().is_some_and(Transaction::wants_reboot);
        let enough = open.iter().all(|tx| {
            let forward = tx.direction == Direction::Forward;
            forward && !tx.restarted_since(boot) && !tx.wants_full_reboot()
        });
        let enough = enough && self.journal.os_trial.is_none();
        match requested && enough && userspace_known && !self.has_next_root() {
            true => RebootKind::Soft,
            false => RebootKind::Full,
        }
    }

    /// Returns whether a soft reboot would enter another tree.
    fn has_next_root(&self) -> bool {
        let next = AbsPath::new(NEXT_ROOT_PATH).map(|next| self.state.root().stat(&next));
        !matches!(next, Ok(Ok(None)))
    }

    /// Returns the number of attempts so far. A soft reboot that another program requested does not reset the
    /// attempts at a full one.
    fn attempts(&self, boot: &str, kind: RebootKind) -> u32 {
        let record = self.journal.top().and_then(|tx| tx.reboot.as_ref());
        record
            .filter(|record| record.soft == (kind == RebootKind::Soft))
            .filter(|record| kernel_of(&record.boot) == kernel_of(boot))
            .map_or(0, |record| record.attempts)
    }

    /// Counts the attempt before it is made, so that a crash does not lose the count.
    async fn record_attempts(
        &mut self,
        boot: &str,
        kind: RebootKind,
        attempts: u32,
    ) -> Result<(), UpdateError> {
        if let Some(tx) = self.journal.top_mut() {
            let boot = boot.to_owned();
            tx.reboot = Some(RebootRecord {
                boot,
                attempts,
                ordered: Timestamp::now(),
                soft: kind == RebootKind::Soft,
            });
        }
        self.save().await
    }

    /// Unlocks the staged deployment and counts the attempt. Returns an event if the deployment cannot be unlocked, which
    /// is no attempt.
    async fn prepare_request(
        &mut self,
        boot: &str,
        kind: RebootKind,
        attempts: u32,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if let event @ Some(_) = self.arm_deployment().await? {
            return Ok(event);
        }
        if let Err(error) = self.record_attempts(boot, kind, attempts).await {
            // Its own error would be the same.
            let _ = self.lock_deployment().await;
            return Err(error);
        }
        Ok(None)
    }

    /// Begins a new count of attempts, after an operator has asked for another one.
    pub(super) fn reset_attempts(&mut self) {
        let failure = self.journal.failure.as_ref();
        if failure.is_none_or(|failure| failure.code != Reason::RebootTimeout) {
            return;
        }
        if let Some(record) = self.journal.top_mut().and_then(|tx| tx.reboot.as_mut()) {
            record.attempts = 0;
        }
    }

    /// Returns whether a needed reboot may be requested now.
    fn may_reboot(&self) -> bool {
        match self.options.current().reboot {
            RebootPolicy::Auto => true,
            RebootPolicy::Ask => self.desired.has_approval(),
            RebootPolicy::Never => false,
        }
    }

    fn report_error(&mut self, error: &ServiceError) {
        let message = chain(error);
        tracing::warn!(reason = %error.reason, "{message}");
        self.journal.failure = Some(UpdateFailure {
            code: error.reason,
            message,
            retryable: true,
            digest: None,
            refusals: Vec::new(),
        });
        self.publish();
    }

    /// Waits for `time`, unless a stop or another desired config comes first.
    pub(super) async fn pause(
        &mut self,
        time: Duration,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let deadline = tokio::time::Instant::now() + time;
        self.remove_trial_copy().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(Some(None)),
                // Safe to drop: the deadline is absolute.
                () = tokio::time::sleep_until(deadline) => return Ok(None),
                // Safe to drop: a change that is missed here is still marked unseen.
                Ok(()) = self.desired.changed() => {
                    return Ok(self.event_for_desired().map(Some));
                }
                // Safe to drop: what inotify has queued is read by the next call.
                () = self.staging.changed() => self.remove_trial_copy().await,
            }
        }
    }
}
