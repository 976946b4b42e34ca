//! Shows nodes and pools from the cluster: `status --node`, `status --pool`, `explain --node`.
//!
//! These commands work on any machine with a kubeconfig and without the node's agent, because they
//! show the published state. The requests are here and in `cluster/fleet.rs`; the processing of the
//! responses does no I/O.

pub(super) mod annotations;
mod explain;
mod node;
mod pools;
mod render;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
pub(super) use pools::NodePart;
pub(super) use render::warnings;

use node::NodeReport;
use pools::PoolsReport;

use super::{Exit, OutputFormatArg, node_selection::ClusterArgs, print_data, short};
use machinist_base::{clock::Clock, error_chain::chain};
use machinist_cluster::{Cluster, ClusterError, fleet_queries, machine_config_node};
use machinist_kube_api::{MachineConfigNodeStatus, PoolView};
use machinist_status::Finding;

/// The number of events to show.
const MAX_EVENTS: usize = 8;

/// There is no pool of that name.
#[derive(Debug, thiserror::Error)]
#[error("MachineConfigPool {name} not found; {}", those(.others))]
pub(super) struct PoolNotFound {
    name: String,
    others: Vec<String>,
}

impl PoolNotFound {
    /// Names the pools that exist.
    pub(super) fn new(name: &str, pools: Vec<PoolView>) -> Self {
        Self {
            name: name.to_owned(),
            others: pools.into_iter().map(|pool| pool.name).collect(),
        }
    }
}

fn those(others: &[String]) -> String {
    match others {
        [] => "no pools exist".to_owned(),
        others => format!("existing: {}", others.join(", ")),
    }
}

/// `status --node NAME`: exits with 0 if the node is ready and its agent still reports.
pub(super) fn node(
    reach: &ClusterArgs,
    name: &str,
    printed: OutputFormatArg,
) -> anyhow::Result<Exit> {
    let now = Clock::system().now();
    let report = short()?.block_on(one(reach, name, now))?;
    print_data(printed.output, &report, |report| render::node(report, now))?;
    Ok(match (report.ready, report.stale) {
        (Some(true), false) => Exit::Done,
        _ => Exit::Failed,
    })
}

/// `status --pool [NAME]`: exits with 0 if none of the shown pools is degraded.
pub(super) fn pools(
    reach: &ClusterArgs,
    name: &str,
    printed: OutputFormatArg,
) -> anyhow::Result<Exit> {
    let report = short()?.block_on(several(reach, name))?;
    let now = Clock::system().now();
    print_data(printed.output, &report, |report| render::pools(report, now))?;
    let degraded = |pool: &pools::PoolReport| pool.observed.degraded == Some(true);
    Ok(match report.pools.iter().any(degraded) {
        true => Exit::Failed,
        false => Exit::Done,
    })
}

/// `explain --node NAME`, as findings.
pub(super) fn explain(reach: &ClusterArgs, name: &str) -> anyhow::Result<Vec<Finding>> {
    let now = Clock::system().now();
    let report = short()?.block_on(one(reach, name, now))?;
    Ok(explain::findings(&report, now))
}

/// The published state of one node.
async fn one(reach: &ClusterArgs, name: &str, now: Timestamp) -> anyhow::Result<NodeReport> {
    let cluster = reach.cluster().await?;
    let node = fleet_queries::node(&cluster, name).await?;
    let mut warnings = Vec::new();
    let pools = pools_of(&cluster, &mut warnings).await?;
    let progress = or_warn(
        machine_config_node::read(&cluster, name).await,
        &mut warnings,
    )?
    .flatten();
    let mut events =
        or_warn(fleet_queries::events(&cluster, name).await, &mut warnings)?.unwrap_or_default();
    events.truncate(MAX_EVENTS);
    let facts = node::NodeObjects {
        node,
        pools,
        progress,
        events,
        warnings,
    };
    Ok(NodeReport::of(facts, now))
}

/// The published state of one pool, or of all.
async fn several(reach: &ClusterArgs, name: &str) -> anyhow::Result<PoolsReport> {
    let cluster = reach.cluster().await?;
    let pools = fleet_queries::pools(&cluster).await?;
    if !name.is_empty() && !pools.iter().any(|pool| pool.name == name) {
        return Err(PoolNotFound::new(name, pools).into());
    }
    let nodes = fleet_queries::nodes(&cluster).await?;
    let mut warnings = Vec::new();
    let progress = progress(&cluster, &mut warnings).await?;
    let mut report = PoolsReport::of(&pools, &nodes, &progress);
    if !name.is_empty() {
        report.keep(name);
    }
    report.warnings.extend(warnings);
    Ok(report)
}

/// The pools; a cluster without the kind has none.
async fn pools_of(cluster: &Cluster, warnings: &mut Vec<String>) -> anyhow::Result<Vec<PoolView>> {
    Ok(or_warn(fleet_queries::pools(cluster).await, warnings)?.unwrap_or_default())
}

pub(super) async fn progress(
    cluster: &Cluster,
    warnings: &mut Vec<String>,
) -> anyhow::Result<BTreeMap<String, MachineConfigNodeStatus>> {
    Ok(or_warn(fleet_queries::progress(cluster).await, warnings)?.unwrap_or_default())
}

/// Turns an error into a warning if RBAC forbids the user to read the resource, or if the cluster does
/// not serve its kind.
pub(super) fn or_warn<T>(
    answer: Result<T, ClusterError>,
    warnings: &mut Vec<String>,
) -> Result<Option<T>, ClusterError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.code(), 403 | 404) => {
            warnings.push(chain(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
