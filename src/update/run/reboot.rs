//! Ordering the reboot, at most three times, and waiting for it.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Audience, UpdateError, Updater};
use crate::{
    reason::Reason,
    update::{
        journal::{Failure, RebootRecord},
        phase::Event,
        ports::{RebootMethod, Services},
    },
};

/// How long somebody's inhibitor lock is left alone before it is looked at again. Locks are held by
/// package managers and backups, for minutes; half a minute costs neither much.
const INHIBITED: Duration = Duration::from_secs(30);

/// How long a manager that cannot be reached in any way is given to come back before it is asked again: a
/// bus that is updated or restarted is away for seconds, at times a minute.
const UNREACHABLE: Duration = Duration::from_secs(60);

/// How long a person who called a reboot off has to say more: to take the config back, or to set
/// `update.reboot`.
const CALLED_OFF: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
#[error("the reboot was asked for three times and did not happen")]
struct StillHere;

#[derive(Debug, thiserror::Error)]
#[error("there is no boot id below the root, so that nothing could prove a reboot")]
struct NoBootId;

#[derive(Debug, thiserror::Error)]
#[error("there is no service manager to order the reboot from")]
struct NoServices;

/// An attempt that came to nothing.
struct Tried {
    reason: Reason,
    /// The manager had taken it on.
    accepted: bool,
    /// Attempts before it.
    before: u32,
}

impl<S: Services, A: Audience> Updater<S, A> {
    /// Ends with the machine, with another desired config, with a failure, or (none) with a stop.
    pub(super) async fn reboot(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        self.publish();
        if let Some(event) = self.look_at_desired() {
            return Ok(Some(event));
        }
        self.know_boots();
        let Some(boot) = self.boot_id() else {
            self.failed(&NoBootId, Reason::BootUnverified, true);
            return Ok(Some(Event::StepFailed));
        };
        if !self.may_reboot() {
            tracing::warn!("a reboot is needed; it is left to a person (update.reboot)");
            return self.wait(stop).await;
        }
        let mut unreached = 0;
        loop {
            let before = self.attempts(&boot);
            let Some(method) = RebootMethod::of_attempt(before) else {
                self.failed(&StillHere, Reason::RebootDidNotHappen, false);
                return Ok(Some(Event::StepFailed));
            };
            let attempt = before + 1;
            self.order(&boot, attempt).await?;
            let Some(services) = self.services.clone() else {
                self.failed(&NoServices, Reason::ManagerUnreachable, false);
                return Ok(Some(Event::StepFailed));
            };
            let why = format!("machinist applies {}", self.config_name());
            tracing::info!("ordering the reboot: {method:?}, attempt {attempt}");
            let ordered = tokio::select! {
                // The order stands in the journal: the next start asks again or finds a new boot.
                () = stop.cancelled() => return Ok(None),
                ordered = self.while_turning(services.reboot(method, &why)) => ordered,
            };
            let accepted = ordered.is_ok();
            let error = match ordered {
                Ok(()) => {
                    tracing::info!("the reboot is accepted");
                    tokio::select! {
                        // What was hoped for: systemd stops us on its way down.
                        () = stop.cancelled() => return Ok(None),
                        error = self.while_turning(services.reboot_over(self.conduct.reboot_timeout)) => error,
                    }
                }
                Err(error) => error,
            };
            self.note(&error);
            let tried = Tried {
                reason: error.reason,
                accepted,
                before,
            };
            let Some(pause) = self.after(tried, &boot, &mut unreached).await? else {
                continue;
            };
            if let Some(event) = self.pause(pause, stop).await? {
                return Ok(event);
            }
        }
    }

    /// How long to wait before the next attempt, none for not at all. What nobody has heard of, or nobody
    /// would take on, is given back: it is no attempt.
    async fn after(
        &mut self,
        tried: Tried,
        boot: &str,
        unreached: &mut u32,
    ) -> Result<Option<Duration>, UpdateError> {
        match tried.reason {
            Reason::RebootInhibited => {
                self.order(boot, tried.before).await?;
                Ok(Some(INHIBITED))
            }
            Reason::RebootCancelled => Ok(Some(CALLED_OFF)),
            Reason::ManagerUnreachable if tried.accepted => Ok(Some(UNREACHABLE)),
            Reason::ManagerUnreachable => {
                *unreached += 1;
                let attempt = tried.before + 1;
                if RebootMethod::of_attempt(attempt).is_some() {
                    // Where there is no bus, as in emergency mode, another way may need none.
                    return Ok(None);
                }
                self.order(boot, attempt - *unreached).await?;
                *unreached = 0;
                Ok(Some(UNREACHABLE))
            }
            _ => Ok(None),
        }
    }

    fn attempts(&self, boot: &str) -> u32 {
        let record = self.journal.top().and_then(|tx| tx.reboot.as_ref());
        record
            .filter(|record| record.boot == boot)
            .map_or(0, |record| record.attempts)
    }

    /// Counts the attempt before it is made: a crash must not make it free.
    async fn order(&mut self, boot: &str, attempts: u32) -> Result<(), UpdateError> {
        if let Some(tx) = self.journal.top_mut() {
            let boot = boot.to_owned();
            tx.reboot = Some(RebootRecord {
                boot,
                attempts,
                ordered: Timestamp::now(),
            });
        }
        self.save().await
    }

    fn note(&mut self, error: &super::super::ports::ServiceError) {
        let message = crate::telemetry::chain(error);
        tracing::warn!(reason = %error.reason, "{message}");
        self.journal.failure = Some(Failure {
            code: error.reason,
            message,
            again: true,
            digest: None,
        });
        self.publish();
    }

    /// Waits, unless a stop or another desired config comes first.
    async fn pause(
        &mut self,
        time: Duration,
        stop: &CancellationToken,
    ) -> Result<Option<Option<Event>>, UpdateError> {
        let deadline = tokio::time::Instant::now() + time;
        tokio::select! {
            () = stop.cancelled() => Ok(Some(None)),
            // Safe to drop: the deadline is absolute.
            () = tokio::time::sleep_until(deadline) => Ok(None),
            // Safe to drop: a change that is missed here is still marked unseen.
            Ok(()) = self.desired.changed() => Ok(self.look_at_desired().map(Some)),
        }
    }
}
