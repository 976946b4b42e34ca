//! Methods to reboot the machine, each of which confirms that the reboot was accepted.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Inhibitor, Login, RebootFlags, ShutdownSignals, SystemState, Systemd, SystemdError, Trouble,
    link::within, manager::has_job,
};

/// Methods to request a reboot, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// logind, which respects inhibitor locks and announces the reboot.
    Logind,
    /// `systemctl reboot` in a transient unit, which outlives this process.
    TransientUnit,
    /// Starting `reboot.target`: inhibitor locks are ignored, services are stopped in order.
    RebootTarget,
}

impl Method {
    /// All methods, the gentlest first.
    pub const ALL: [Self; 3] = [Self::Logind, Self::TransientUnit, Self::RebootTarget];
}

/// The confirmation that the machine will shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// Our request was accepted.
    Accepted,
    /// A shutdown requested by another process is already in progress.
    InProgress,
}

/// Poll interval where no signal announces a change: four calls a second cost nothing in the
/// seconds that a machine needs to shut down.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// On a system without merged directories it is only here; elsewhere `/bin` is a link.
const SYSTEMCTL: &str = "/bin/systemctl";

/// The names used by the methods without logind: our transient unit, the verb of `systemctl` and
/// the target.
struct Names {
    transient: &'static str,
    verb: &'static str,
    target: &'static str,
}

const FULL: Names = Names {
    transient: "machinist-reboot.service",
    verb: "reboot",
    target: "reboot.target",
};

const SOFT: Names = Names {
    transient: "machinist-soft-reboot.service",
    verb: "soft-reboot",
    target: "soft-reboot.target",
};

impl Systemd {
    /// Requests a reboot by one method and waits at most `receipt_within` for the confirmation.
    /// Methods other than [`Method::Logind`] support only the flag [`RebootFlags::SOFT`].
    ///
    /// Locks of others are respected by every method; without logind there are none.
    pub async fn reboot_by(
        &self,
        method: Method,
        flags: RebootFlags,
        receipt_within: Duration,
    ) -> Result<Receipt, SystemdError> {
        if method == Method::Logind {
            return self
                .login()
                .reboot_with_receipt(flags, receipt_within)
                .await;
        }
        match self.login().blockers().await {
            Ok(holders) => none_of(holders)?,
            Err(error) if matches!(error.trouble(), Trouble::NoManager(_)) => {}
            Err(error) => return Err(error),
        }
        let names = match flags {
            RebootFlags::SOFT => SOFT,
            _ => FULL,
        };
        if method == Method::TransientUnit {
            let argv = [SYSTEMCTL, names.verb];
            self.start_transient(names.transient, &argv, "Reboot for machinist")
                .await?;
        } else {
            self.start_shutdown_target(names.target).await?;
        }
        self.goes_down(receipt_within).await
    }

    /// Whether the machine is shutting down: a shutdown is announced or in progress.
    pub async fn going_down(&self) -> Result<bool, SystemdError> {
        let ask = async {
            if self.look_at_system().await? == SystemState::Stopping {
                return Ok(true);
            }
            let live = self.link.to_manager().await?;
            Ok(has_job(&live, FULL.target).await? || has_job(&live, SOFT.target).await?)
        };
        let failed = SystemdError::during("check for a pending shutdown");
        if ask.await.map_err(failed)? {
            return Ok(true);
        }
        match self.login().preparing_for_shutdown().await {
            Err(error) if matches!(error.trouble(), Trouble::NoManager(_)) => Ok(false),
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

    async fn goes_down(&self, within: Duration) -> Result<Receipt, SystemdError> {
        let until = Instant::now() + within;
        loop {
            match self.going_down().await {
                Ok(true) => return Ok(Receipt::Accepted),
                Ok(false) => {}
                // The bus disappears during a shutdown, but may also just be restarting.
                Err(error) if error.again() => {}
                Err(error) => return Err(error),
            }
            if Instant::now() + LOOK_AGAIN > until {
                return Err(no_receipt(within));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Login {
    /// Requests a reboot from logind and waits at most `receipt_within` for its announcement. If
    /// others hold `block` locks, returns an error with their names and requests nothing.
    pub async fn reboot_with_receipt(
        &self,
        flags: RebootFlags,
        receipt_within: Duration,
    ) -> Result<Receipt, SystemdError> {
        none_of(self.blockers().await?)?;
        let mut signals = self.prepare_for_shutdown().await?;
        match self.reboot(flags).await {
            Ok(()) => {}
            Err(error) => match error.trouble() {
                Trouble::OperationInProgress => return Ok(Receipt::InProgress),
                // Taken since we checked; logind does not report by whom.
                Trouble::BlockedByInhibitor { .. } => {
                    return Err(blocked(self.blockers().await.unwrap_or_default()));
                }
                _ => return Err(error),
            },
        }
        let receipt = self.announced(&mut signals);
        match tokio::time::timeout(receipt_within, receipt).await {
            Ok(announced) => announced,
            // The signal may have been lost with a connection.
            Err(_) => match self.preparing_for_shutdown().await {
                Ok(true) => Ok(Receipt::Accepted),
                _ => Err(no_receipt(receipt_within)),
            },
        }
    }

    async fn announced(&self, signals: &mut ShutdownSignals) -> Result<Receipt, SystemdError> {
        loop {
            match signals.next().await {
                Some(true) => return Ok(Receipt::Accepted),
                Some(false) => return Err(SystemdError::new("reboot", Trouble::Cancelled)),
                None => {
                    *signals = self.prepare_for_shutdown().await?;
                    if self.preparing_for_shutdown().await? {
                        return Ok(Receipt::Accepted);
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
    SystemdError::new("reboot", Trouble::BlockedByInhibitor { holders })
}

fn no_receipt(within: Duration) -> SystemdError {
    SystemdError::new("reboot", Trouble::NoReceipt { within })
}
