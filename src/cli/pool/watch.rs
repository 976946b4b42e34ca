//! Prints pools, and again after each change.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    render,
    report::{PoolObjects, PoolProgress},
};
use crate::cli::{OutputFormatArg, print_data};
use machinist_base::clock::Clock;
use machinist_cluster::Cluster;

/// The shortest time between two reads of `--watch`.
const POOL_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How many times longer than a read the pause after it is, so that a watch of thousands of nodes takes a small part of
/// the API server's time.
const POLL_PAUSE_FACTOR: u32 = 10;

/// Prints the pools again after each change. Ends with ^C, or with an error of the API server.
pub(super) async fn watch(
    cluster: &Cluster,
    name: Option<&str>,
    printed: OutputFormatArg,
    mut shown: PoolProgress,
) -> anyhow::Result<()> {
    let mut took = Duration::ZERO;
    loop {
        let pause = POOL_POLL_INTERVAL.max(took.saturating_mul(POLL_PAUSE_FACTOR));
        tokio::select! {
            // Both may be dropped: nothing has been read yet.
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                return Ok(());
            }
            () = sleep(pause) => {}
        }
        let began = Instant::now();
        shown = show(cluster, name, printed, Some(shown)).await?;
        took = began.elapsed();
    }
}

/// Reads the pools and prints them, unless they are as `before`.
pub(super) async fn show(
    cluster: &Cluster,
    name: Option<&str>,
    printed: OutputFormatArg,
    before: Option<PoolProgress>,
) -> anyhow::Result<PoolProgress> {
    let objects = PoolObjects::read(cluster, name).await?;
    let now = Clock::system().now();
    let report = PoolProgress::of(&objects, name, now);
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
