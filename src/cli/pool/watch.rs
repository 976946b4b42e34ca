//! Prints pools, and again after each change.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    render,
    report::{PoolObjects, PoolProgress},
};
use crate::cli::{OutputFormatArg, print_data};
use machinist_base::clock::Clock;
use machinist_cluster::{Cluster, FleetWatch};

/// How long changes are collected before the page is printed.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(500);

/// How often the controller's Lease and the start time of a managed upgrade are read, which are not watched: the Lease
/// changes every few seconds.
const LEASE_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Prints the pools, and with `repeat` again after each change until ^C.
///
/// # Errors
/// Those of the API server for the first page. Later only a watch that was refused and a pool that was deleted: an
/// unreachable server is tried again.
pub(super) async fn show(
    cluster: &Cluster,
    name: Option<&str>,
    printed: OutputFormatArg,
    repeat: bool,
) -> anyhow::Result<()> {
    let mut objects = PoolObjects::read(cluster, name).await?;
    let mut shown = print(&objects, name, printed, None)?;
    if !repeat {
        return Ok(());
    }
    let watch = FleetWatch::start(cluster, objects.fleet());
    // One future for all turns: ^C is not lost while changes are collected.
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut next_read = Instant::now() + LEASE_POLL_INTERVAL;
    loop {
        tokio::select! {
            ended = &mut interrupted => return Ok(ended?),
            // Cancel-safe by its contract.
            () = watch.changed() => sleep(CHANGE_DEBOUNCE).await,
            // Nothing is lost if it is dropped.
            () = sleep_until(next_read) => {
                objects.read_start(cluster).await;
                next_read = Instant::now() + LEASE_POLL_INTERVAL;
            }
        }
        objects.put_fleet(watch.fleet()?, name)?;
        shown = print(&objects, name, printed, Some(shown))?;
    }
}

/// Prints the pools, unless they are as `before`.
fn print(
    objects: &PoolObjects,
    name: Option<&str>,
    printed: OutputFormatArg,
    before: Option<PoolProgress>,
) -> anyhow::Result<PoolProgress> {
    let now = Clock::system().now();
    let report = PoolProgress::of(objects, name, now);
    let is_same = |before: &PoolProgress| before.without_times() == report.without_times();
    if before.as_ref().is_some_and(is_same) {
        return Ok(report);
    }
    let separator = if before.is_some() { "\n" } else { "" };
    print_data(printed.output, &report, |report| {
        let page = match name {
            Some(_) => render::one(report, now),
            None => render::list(report, now),
        };
        format!("{separator}{page}")
    })?;
    Ok(report)
}
