//! Runs actions before the machine shuts down, whichever process requested the shutdown.
//!
//! logind waits for the holders of `delay` locks before it stops anything, at most for
//! `InhibitDelayMaxSec=` (5 s unless an administrator or the kubelet raised it).

use std::{future::Future, time::Duration};

use tokio::sync::watch;
use tokio_stream::StreamExt as _;

use super::{
    InhibitLock, InhibitMode, Logind, ShutdownSignals, SystemdError, dbus_proxies::LOGIND_BUS_NAME,
};
use machinist_base::backoff::{Backoff, jitter};

/// logind ignores a lock after the maximum delay, so the actions get this much less time.
const INHIBIT_MARGIN: Duration = Duration::from_millis(500);

/// Retry delays for a logind that does not answer.
const LOGIND_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Actions around a shutdown.
pub trait ShutdownHooks: Send {
    /// Called when the machine shuts down; the shutdown waits for it, at most `within`.
    fn before(&mut self, within: Duration) -> impl Future<Output = ()> + Send;

    /// Called when the shutdown was cancelled, or after the machine started again.
    fn after(&mut self) -> impl Future<Output = ()> + Send;
}

/// Why a lock is no longer valid.
enum LockEnd {
    /// The machine shuts down.
    Begins,
    /// A shutdown was cancelled whose beginning was missed.
    Cancelled,
    /// The bus or logind was restarted.
    Lost,
    /// The lock is no longer wanted.
    Unneeded,
}

/// Holds a `delay` lock while it is `wanted`, and runs the actions around shutdowns. Ends when the
/// sender of `wanted` is dropped.
pub async fn around_shutdowns(
    login: &Logind,
    why: &str,
    mut wanted: watch::Receiver<bool>,
    mut around: impl ShutdownHooks,
) {
    let mut failures = 0;
    let mut down = false;
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        match turn(login, why, &mut wanted, &mut around, &mut down).await {
            Ok(()) => failures = 0,
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(
                        "failed to delay shutdowns for the units that use devices: {}",
                        machinist_base::error_chain::chain(&error)
                    );
                }
                tokio::time::sleep(LOGIND_BACKOFF.wait(failures, jitter())).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// One cycle of a lock, from taking it to its end.
async fn turn(
    login: &Logind,
    why: &str,
    wanted: &mut watch::Receiver<bool>,
    around: &mut impl ShutdownHooks,
    down: &mut bool,
) -> Result<(), SystemdError> {
    // Subscribe first, so that no announcement is missed between the check and the lock.
    let mut signals = login.prepare_for_shutdown().await?;
    let mut restarts = login.owners().await?;
    let mut lock: Option<InhibitLock> = None;
    if !login.preparing_for_shutdown().await? {
        if std::mem::take(down) {
            around.after().await;
        }
        lock = Some(login.inhibit("shutdown", why, InhibitMode::Delay).await?);
    } else if !*down {
        // Too late for a lock, but not for the actions.
        *down = true;
        around.before(time(login).await).await;
    }
    let over = tokio::select! {
        // Safe to drop, all of them: the next cycle checks for missed announcements.
        over = announced(&mut signals) => over,
        _ = restarts.next() => LockEnd::Lost,
        _ = wanted.wait_for(|wanted| !*wanted) => LockEnd::Unneeded,
    };
    match over {
        LockEnd::Begins if !*down => {
            *down = true;
            around.before(time(login).await).await;
            drop(lock.take());
            // Until the shutdown is cancelled there is nothing to hold.
            while !matches!(
                announced(&mut signals).await,
                LockEnd::Cancelled | LockEnd::Lost
            ) {}
            Ok(())
        }
        LockEnd::Begins | LockEnd::Cancelled | LockEnd::Lost | LockEnd::Unneeded => Ok(()),
    }
}

async fn announced(signals: &mut ShutdownSignals) -> LockEnd {
    match signals.next().await {
        Some(true) => LockEnd::Begins,
        Some(false) => LockEnd::Cancelled,
        None => LockEnd::Lost,
    }
}

async fn time(login: &Logind) -> Duration {
    let most = login.inhibit_delay_max().await.unwrap_or_default();
    most.saturating_sub(INHIBIT_MARGIN).max(INHIBIT_MARGIN)
}

impl Logind {
    /// Signals each start and stop of logind.
    async fn owners(&self) -> Result<zbus::fdo::NameOwnerChangedStream, SystemdError> {
        let listen = async {
            let bus = self.bus().await?;
            let changes = bus.receive_name_owner_changed_with_args(&[(0, LOGIND_BUS_NAME)]);
            Ok(changes.await?)
        };
        let failed = SystemdError::during("listen for restarts of logind");
        listen.await.map_err(failed)
    }
}
