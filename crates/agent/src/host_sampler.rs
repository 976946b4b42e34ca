//! Measures the host for the gates: pressure, free space, failed units, clock synchronisation.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::host::metrics::{self, HostMetrics};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;
use machinist_status::readiness::{FreeInodes, FreeSpace, MemorySettings, Pressure};
use machinist_systemd::Systemd;

/// Interval of measurements. Pressure is an average over a minute and disks fill over minutes, so
/// two minutes detect every lasting problem. Failed units are reported by systemd signals.
const MEASURE_INTERVAL: Duration = Duration::from_secs(120);

/// Delay after the first unit change of a group: it covers most of the group, and limits a machine
/// that starts a unit every second to two measurements per second.
const UNIT_CHANGE_DEBOUNCE: Duration = Duration::from_millis(500);

/// The clock is queried every this many rounds. Each query activates a service that exits after
/// half a minute, and a synchronised clock stays so for hours.
const CLOCK_EVERY_ROUNDS: u32 = 15;

/// Maximum size in bytes. The mount table of a node with a thousand pods is about 200 KiB.
const MAX_FACT_BYTES: u64 = 4 << 20;

/// One measurement. A signal that this host does not provide is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSignals {
    /// Names of failed units; none without a service manager.
    pub failed_units: Option<BTreeSet<String>>,
    /// Pressure stall information; none if the kernel does not provide it.
    pub pressure: Option<Pressure>,
    /// The watched file systems.
    pub disk: Vec<FreeSpace>,
    /// Whether the clock is synchronised; none if unknown.
    pub synchronised: Option<bool>,
    /// Whether `/` is read-only; none if the mounts cannot be read.
    pub root_read_only: Option<bool>,
    /// The kernel's memory settings; none if they cannot be read.
    pub memory: Option<MemorySettings>,
}

/// Measures now, every two minutes, and shortly after each notification in `units`, until `stop`.
pub async fn measure(
    root: Root,
    systemd: Option<Systemd>,
    disks: Vec<AbsPath>,
    units: Arc<Notify>,
    to: watch::Sender<Arc<HostSignals>>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = stop.cancelled() => {}
        // Cancel-safe: it only reads. A response may take as long as a service takes to start.
        () = rounds(&root, systemd.as_ref(), &disks, &units, &to) => {}
    }
}

async fn rounds(
    root: &Root,
    systemd: Option<&Systemd>,
    disks: &[AbsPath],
    units: &Notify,
    to: &watch::Sender<Arc<HostSignals>>,
) {
    let mut round = 0_u32;
    let mut synchronised = None;
    loop {
        // Only once per round: the query starts a unit, so querying at each notification would
        // trigger the next one.
        if let Some(systemd) = systemd
            && (round.is_multiple_of(CLOCK_EVERY_ROUNDS) || synchronised != Some(true))
        {
            synchronised = systemd.timedate().ntp_synchronized().await.ok().flatten();
        }
        round = round.wrapping_add(1);
        let next = Instant::now() + MEASURE_INTERVAL;
        while Instant::now() < next {
            let signals = sample(root, systemd, disks, synchronised).await;
            to.send_if_modified(|known| {
                let differs = **known != signals;
                if differs {
                    *known = Arc::new(signals);
                }
                differs
            });
            tokio::select! {
                // Cancel-safe: the deadline is absolute.
                () = tokio::time::sleep_until(next) => {}
                // Cancel-safe: a pending notification is kept.
                () = units.notified() => tokio::time::sleep(UNIT_CHANGE_DEBOUNCE).await,
            }
        }
    }
}

async fn sample(
    root: &Root,
    systemd: Option<&Systemd>,
    disks: &[AbsPath],
    synchronised: Option<bool>,
) -> HostSignals {
    let failed_units = match systemd {
        Some(systemd) => systemd.failed_units().await.ok(),
        None => None,
    };
    let (root, disks) = (root.clone(), disks.to_vec());
    // statfs on an unresponsive network file system may block for a long time or forever.
    let host = tokio::task::spawn_blocking(move || {
        let disk = disks.iter().filter_map(|path| free_space(&root, path));
        let disk = disk.collect();
        let facts = HostMetrics::read(|path| root.read_text(path, MAX_FACT_BYTES).ok());
        HostSignals {
            disk,
            ..of_the_kernel(&facts)
        }
    });
    HostSignals {
        failed_units: failed_units.map(|units| units.into_iter().collect()),
        synchronised,
        ..host.await.unwrap_or_default()
    }
}

/// Signals that the kernel provides.
fn of_the_kernel(facts: &HostMetrics) -> HostSignals {
    let memory = facts.overcommit_memory.zip(facts.panic_on_oom);
    HostSignals {
        pressure: pressure(facts),
        root_read_only: facts.root_read_only(),
        memory: memory.map(|(overcommit, panic_on_oom)| MemorySettings {
            overcommit,
            panic_on_oom,
        }),
        ..HostSignals::default()
    }
}

/// Notifies `units` for every unit that started, stopped or failed, until `stop`; it reconnects
/// when the connection is lost.
pub async fn follow_units(systemd: Systemd, units: Arc<Notify>, stop: CancellationToken) {
    loop {
        let broken = systemd.follow_units(|| units.notify_one());
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: the connection is shared, and only this subscription ends.
            ended = broken => if let Err(error) = ended {
                tracing::debug!("{}", machinist_base::error_chain::chain(&error));
            },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: it only waits.
            () = tokio::time::sleep(MEASURE_INTERVAL) => units.notify_one(),
        }
    }
}

fn free_space(root: &Root, path: &AbsPath) -> Option<FreeSpace> {
    let mount = root.mount(path).ok()?;
    Some(FreeSpace {
        path: path.to_string(),
        free: mount.free_bytes,
        size: mount.size_bytes,
        inodes: (mount.free_inodes.zip(mount.all_inodes))
            .map(|(free, all)| FreeInodes { free, all }),
    })
}

/// The share of the last minute lost to waiting, in percent. None if one of the three is missing,
/// since a kernel provides all or none.
fn pressure(facts: &HostMetrics) -> Option<Pressure> {
    let some = |of: Option<metrics::Pressure>| of.map(|pressure| pressure.some.avg60);
    Some(Pressure {
        cpu: some(facts.pressure.cpu)?,
        memory: some(facts.pressure.memory)?,
        io: some(facts.pressure.io)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_settings_are_reported_only_if_both_are_readable() {
        let sampler = |panics: bool| {
            let facts = HostMetrics::read(|path| match path.as_str().rsplit('/').next() {
                Some("overcommit_memory") => Some("2\n".to_owned()),
                Some("panic_on_oom") => panics.then(|| "1\n".to_owned()),
                _ => None,
            });
            of_the_kernel(&facts).memory
        };
        let both = MemorySettings {
            overcommit: 2,
            panic_on_oom: 1,
        };
        assert_eq!((sampler(true), sampler(false)), (Some(both), None));
    }
}
