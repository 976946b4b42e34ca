//! Methods to reboot the machine, each of which confirms that the reboot was accepted.

use std::time::Duration;

use machinist_update::service_port::RebootMethod;
use tokio::time::Instant;

use super::{
    Inhibitor, Logind, RebootFlags, ShutdownSignals, SystemState, Systemd, SystemdError,
    SystemdErrorKind, connection::within, manager::has_job,
};

/// The confirmation that the machine will shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootProof {
    /// Our request was accepted.
    Accepted,
    /// A shutdown requested by another process is already in progress.
    InProgress,
}

/// Poll interval where no signal announces a change: four calls a second cost nothing in the
/// seconds that a machine needs to shut down.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long logind may take to notice that we have closed our own lock. From systemd 257 on it
/// refuses a reboot until then, with the error for a lock of another program.
const OWN_LOCK_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// On a system without merged directories it is only here; elsewhere `/bin` is a link.
const SYSTEMCTL_PATH: &str = "/bin/systemctl";

/// The names used by the methods without logind: our transient unit, the verb of `systemctl` and
/// the target.
struct RebootNames {
    transient: &'static str,
    verb: &'static str,
    target: &'static str,
}

const FULL_REBOOT: RebootNames = RebootNames {
    transient: "machinist-reboot.service",
    verb: "reboot",
    target: "reboot.target",
};

const SOFT_REBOOT: RebootNames = RebootNames {
    transient: "machinist-soft-reboot.service",
    verb: "soft-reboot",
    target: "soft-reboot.target",
};

impl Systemd {
    /// Requests a reboot by one method and waits at most `receipt_within` for the confirmation.
    /// Methods other than [`RebootMethod::Logind`] support only the flag [`RebootFlags::SOFT`].
    ///
    /// Locks of others are respected by every method; without logind there are none.
    pub async fn reboot_by(
        &self,
        method: RebootMethod,
        flags: RebootFlags,
        receipt_within: Duration,
    ) -> Result<RebootProof, SystemdError> {
        if method == RebootMethod::Logind {
            return self.login().reboot_with_proof(flags, receipt_within).await;
        }
        match self.login().blockers().await {
            Ok(holders) => none_of(holders)?,
            Err(error) if matches!(error.trouble(), SystemdErrorKind::NoManager(_)) => {}
            Err(error) => return Err(error),
        }
        let names = match flags {
            RebootFlags::SOFT => SOFT_REBOOT,
            _ => FULL_REBOOT,
        };
        if method == RebootMethod::TransientUnit {
            let argv = [SYSTEMCTL_PATH, names.verb];
            self.start_transient(names.transient, &argv, "Reboot for machinist")
                .await?;
        } else {
            self.start_shutdown_target(names.target).await?;
        }
        self.wait_for_shutdown(receipt_within).await
    }

    /// Whether the machine is shutting down: a shutdown is announced or in progress.
    pub async fn is_shutting_down(&self) -> Result<bool, SystemdError> {
        let ask = async {
            if self.query_system_state().await? == SystemState::Stopping {
                return Ok(true);
            }
            let live = self.link.to_manager().await?;
            Ok(has_job(&live, FULL_REBOOT.target).await?
                || has_job(&live, SOFT_REBOOT.target).await?)
        };
        let failed = SystemdError::during("check for a pending shutdown");
        if ask.await.map_err(failed)? {
            return Ok(true);
        }
        match self.login().preparing_for_shutdown().await {
            Err(error) if matches!(error.trouble(), SystemdErrorKind::NoManager(_)) => Ok(false),
            answer => answer,
        }
    }

    async fn start_shutdown_target(&self, target: &'static str) -> Result<(), SystemdError> {
        let start = async {
            let manager = self.link.to_manager().await?.manager().await?;
            // As logind does it: later jobs must not cancel the shutdown.
            within(manager.start_unit(target, "replace-irreversibly")).await
        };
        let failed = SystemdError::during(format!("start {target}"));
        start.await.map(drop).map_err(failed)
    }

    async fn wait_for_shutdown(&self, within: Duration) -> Result<RebootProof, SystemdError> {
        let until = Instant::now() + within;
        loop {
            match self.is_shutting_down().await {
                Ok(true) => return Ok(RebootProof::Accepted),
                Ok(false) => {}
                // The bus disappears during a shutdown, but may also just be restarting.
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
            if Instant::now() + POLL_INTERVAL > until {
                return Err(no_receipt(within));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Logind {
    /// Requests a reboot from logind and waits at most `receipt_within` for its announcement. If
    /// others hold `block` locks, returns an error with their names and requests nothing.
    pub async fn reboot_with_proof(
        &self,
        flags: RebootFlags,
        receipt_within: Duration,
    ) -> Result<RebootProof, SystemdError> {
        none_of(self.blockers().await?)?;
        let mut signals = self.prepare_for_shutdown().await?;
        let started = Instant::now();
        while let Err(error) = self.reboot(flags).await {
            match error.trouble() {
                SystemdErrorKind::OperationInProgress => return Ok(RebootProof::InProgress),
                // Taken since we checked, or our own; logind does not report by whom.
                SystemdErrorKind::BlockedByInhibitor { .. } => {
                    let holders = self.blockers().await.unwrap_or_default();
                    if !holders.is_empty() || started.elapsed() >= OWN_LOCK_RELEASE_TIMEOUT {
                        return Err(blocked(holders));
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                _ => return Err(error),
            }
        }
        let receipt = self.announced(&mut signals);
        match tokio::time::timeout(receipt_within, receipt).await {
            Ok(announced) => announced,
            // The signal may have been lost with a connection.
            Err(_) => match self.preparing_for_shutdown().await {
                Ok(true) => Ok(RebootProof::Accepted),
                _ => Err(no_receipt(receipt_within)),
            },
        }
    }

    async fn announced(&self, signals: &mut ShutdownSignals) -> Result<RebootProof, SystemdError> {
        loop {
            match signals.next().await {
                Some(true) => return Ok(RebootProof::Accepted),
                Some(false) => {
                    return Err(SystemdError::new("reboot", SystemdErrorKind::Cancelled));
                }
                None => {
                    *signals = self.prepare_for_shutdown().await?;
                    if self.preparing_for_shutdown().await? {
                        return Ok(RebootProof::Accepted);
                    }
                }
            }
        }
    }

    async fn blockers(&self) -> Result<Vec<Inhibitor>, SystemdError> {
        let mut locks = self.inhibitors().await?;
        locks.retain(Inhibitor::holds_off_shutdown);
        Ok(locks)
    }
}

fn none_of(holders: Vec<Inhibitor>) -> Result<(), SystemdError> {
    if holders.is_empty() {
        Ok(())
    } else {
        Err(blocked(holders))
    }
}

fn blocked(holders: Vec<Inhibitor>) -> SystemdError {
    SystemdError::new("reboot", SystemdErrorKind::BlockedByInhibitor { holders })
}

fn no_receipt(within: Duration) -> SystemdError {
    SystemdError::new("reboot", SystemdErrorKind::NoReceipt { within })
}
