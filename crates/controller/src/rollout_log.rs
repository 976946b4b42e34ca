//! Logs what the leader writes.

use std::collections::BTreeSet;

use machinist_kube_api::keys::pool_annotation;
use machinist_pool::{Grant, NodeChange, NodePatchRequest, PoolGrants, PoolWrite};

/// The grants of a write that the pool did not list before.
pub(crate) fn new_grants<'w>(
    write: &'w PoolWrite,
    known: Option<&str>,
) -> impl Iterator<Item = &'w Grant> {
    let known = PoolGrants::parse(&write.pool, known).ok().flatten();
    let known = known.into_iter().flat_map(|it| it.grants);
    let known: BTreeSet<String> = known.map(|grant| grant.id).collect();
    let grants = write.grants.grants.iter();
    grants.filter(move |grant| !known.contains(&grant.id))
}

/// Logs the grants that a write adds and frees.
pub(crate) fn log_write(write: &PoolWrite, known: Option<&str>, is_kept: bool) {
    for grant in new_grants(write, known) {
        tracing::info!(
            "granted: node {} to {} (pool {}, grant {})",
            grant.node,
            grant.target,
            grant.pool,
            grant.id
        );
    }
    for (grant, end) in &write.freed {
        let outcome = match end {
            Some(end) => String::from(end.outcome.clone()),
            None => "Released".to_owned(),
        };
        let (node, id) = (&grant.node, &grant.id);
        tracing::info!(
            "ended: node {node}, {outcome} (pool {}, grant {id})",
            grant.pool
        );
    }
    for edge in &write.ends {
        let (pool, target, result) = (&edge.pool, &edge.target, &edge.result);
        tracing::info!("pool {pool}: the rollout of {target} has ended: {result}");
    }
    if !is_kept {
        tracing::error!(
            "the API server did not return annotation {} of MachineConfigPool {}; nothing is granted",
            pool_annotation::GRANTS,
            write.pool
        );
    }
}

/// Logs the patch of a Node.
pub(crate) fn log_patch(request: &NodePatchRequest) {
    let node = &request.node;
    match &request.change {
        NodeChange::PlaceGrant { desired, .. } => {
            tracing::info!("node {node}: grant placed, desired config {desired}");
        }
        NodeChange::WithdrawGrant { id, .. } => {
            tracing::info!("node {node}: grant {id} withdrawn, it was not acknowledged");
        }
        NodeChange::RequestCancel { target } => {
            tracing::info!("node {node}: asked to cancel the update to {target}");
        }
        NodeChange::ResetDesired { .. } => tracing::info!("node {node}: desired config set back"),
        NodeChange::AddTaint => tracing::debug!("node {node}: taint added"),
        NodeChange::RemoveTaint => tracing::debug!("node {node}: taint removed"),
    }
}
