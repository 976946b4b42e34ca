//! logind: inhibitor locks of others and our own, and the announcement of a shutdown.

use std::time::Duration;

use tokio_stream::StreamExt as _;
use zbus::{OwnedFd, fdo::DBusProxy, proxy::CacheProperties};

use super::{
    INHIBITOR_NAME, Inhibitor, SystemdError,
    connection::{Reconnecting, within},
    dbus_proxies::{LoginProxy, PrepareForShutdownStream},
    error::SystemdErrorKind,
};

/// logind of one machine, over the bus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Logind {
    link: Reconnecting,
}

/// The strength of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InhibitMode {
    /// The operation is refused while the lock is held; from systemd 257 on also for root, the
    /// holder included.
    Block,
    /// The operation is delayed, at most for [`Logind::inhibit_delay_max`].
    Delay,
}

/// A lock held by us; released when dropped.
#[derive(Debug)]
pub struct InhibitLock(#[expect(dead_code, reason = "held open, never used")] OwnedFd);

/// Flags of `RebootWithFlags` (org.freedesktop.login1(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebootFlags(u64);

impl RebootFlags {
    /// A plain reboot.
    pub const NONE: Self = Self(0);
    /// With kexec, if a kernel is loaded for it; otherwise a plain reboot.
    pub const KEXEC: Self = Self(0x02);
    /// Userspace only (systemd 254 and newer).
    pub const SOFT: Self = Self(0x04);
}

impl Logind {
    pub(super) fn new(link: Reconnecting) -> Self {
        Self { link }
    }

    /// All held locks.
    pub async fn inhibitors(&self) -> Result<Vec<Inhibitor>, SystemdError> {
        let list = async { within(self.proxy().await?.list_inhibitors()).await };
        let rows = list
            .await
            .map_err(SystemdError::during("list inhibitor locks"))?;
        let locks = rows
            .into_iter()
            .map(|(what, who, why, mode, uid, pid)| Inhibitor {
                what,
                who,
                why,
                mode,
                uid,
                pid,
            });
        Ok(locks.collect())
    }

    /// Takes a lock against `what` (as in [`Inhibitor::what`]). From systemd 257 on a `block` lock
    /// against shutdown also blocks our own reboot: drop it first.
    pub async fn inhibit(
        &self,
        what: &str,
        why: &str,
        mode: InhibitMode,
    ) -> Result<InhibitLock, SystemdError> {
        let mode = match mode {
            InhibitMode::Block => "block",
            InhibitMode::Delay => "delay",
        };
        let take =
            async { within(self.proxy().await?.inhibit(what, INHIBITOR_NAME, why, mode)).await };
        let lock = take.await;
        let failed = SystemdError::during(format!("take a {mode} lock on {what}"));
        lock.map(InhibitLock).map_err(failed)
    }

    /// Requests a reboot. The answer arrives before the reboot is announced; see
    /// [`Logind::reboot_with_proof`]. If the machine shuts down before the answer, the request was
    /// accepted.
    pub async fn reboot(&self, flags: RebootFlags) -> Result<(), SystemdError> {
        let ask = async {
            let login = self.proxy().await?;
            match within(login.reboot_with_flags(flags.0)).await {
                // A logind older than the flags. It does not support soft reboots either, and must
                // not do a full one instead.
                Err(SystemdErrorKind::Unsupported(_)) if flags != RebootFlags::SOFT => {
                    within(login.reboot(false)).await
                }
                answer => answer,
            }
        };
        match ask.await {
            Ok(()) | Err(SystemdErrorKind::NoReply) => Ok(()),
            Err(trouble) => Err(SystemdError::new("reboot through logind", trouble)),
        }
    }

    /// Shutdown announcements from now on. Call this before requesting the reboot.
    pub async fn prepare_for_shutdown(&self) -> Result<ShutdownSignals, SystemdError> {
        let listen = async {
            let login = self.proxy().await?;
            Ok(login.receive_prepare_for_shutdown().await?)
        };
        let failed = SystemdError::during("listen for shutdowns");
        listen.await.map(ShutdownSignals).map_err(failed)
    }

    /// Whether a shutdown has been announced and not cancelled.
    pub async fn preparing_for_shutdown(&self) -> Result<bool, SystemdError> {
        let ask = async { within(self.proxy().await?.preparing_for_shutdown()).await };
        let failed = SystemdError::during("check for a pending shutdown");
        ask.await.map_err(failed)
    }

    /// Sets the message that terminals show when the machine shuts down.
    pub async fn set_wall_message(&self, text: &str) -> Result<(), SystemdError> {
        let set = async { within(self.proxy().await?.set_wall_message(text, true)).await };
        let failed = SystemdError::during("set the shutdown's message");
        set.await.map_err(failed)
    }

    /// How long `delay` locks can delay a shutdown.
    pub async fn inhibit_delay_max(&self) -> Result<Duration, SystemdError> {
        let ask = async { within(self.proxy().await?.inhibit_delay_max_usec()).await };
        let failed = SystemdError::during("read how long a shutdown may be delayed");
        ask.await.map(Duration::from_micros).map_err(failed)
    }

    pub(super) async fn bus(&self) -> Result<DBusProxy<'static>, SystemdErrorKind> {
        let live = self.link.to_bus().await?;
        let bus = DBusProxy::builder(live.connection())
            .cache_properties(CacheProperties::No)
            .build();
        Ok(bus.await?)
    }

    async fn proxy(&self) -> Result<LoginProxy<'static>, SystemdErrorKind> {
        let live = self.link.to_bus().await?;
        let proxy = LoginProxy::builder(live.connection())
            .cache_properties(CacheProperties::No)
            .build();
        Ok(proxy.await?)
    }
}

/// Announcements of shutdowns.
#[derive(Debug)]
pub struct ShutdownSignals(PrepareForShutdownStream);

impl ShutdownSignals {
    /// `true`: the machine shuts down. `false`: the shutdown was cancelled. `None`: the connection
    /// broke; subscribe again, and call [`Logind::preparing_for_shutdown`] for missed announcements.
    /// Safe to drop.
    pub async fn next(&mut self) -> Option<bool> {
        loop {
            if let Ok(signal) = self.0.next().await?.args() {
                return Some(signal.start);
            }
        }
    }
}
