//! Logs what the leader writes.

use std::collections::BTreeSet;

use machinist_base::text::counted;
use machinist_kube_api::keys::pool_annotation;
use machinist_pool::{Grant, NodeChange, NodePatchRequest, PoolGrants, PoolWrite};

/// The grants that a write gives. Those that were found again on Nodes are not among them.
pub(crate) fn new_grants<'w>(
    write: &'w PoolWrite,
    known: Option<&str>,
) -> impl Iterator<Item = &'w Grant> {
    unlisted_grants(write, known).filter(|grant| !write.found.contains(&grant.id))
}

/// The grants of a write that the pool did not list before.
fn unlisted_grants<'w>(
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
    for grant in unlisted_grants(write, known) {
        tracing::info!("{}", added_text(write, grant));
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
        let skipped = match edge.skipped.len() {
            0 => String::new(),
            count => format!(", without {}", counted(count, "skipped node")),
        };
        tracing::info!("pool {pool}: the rollout of {target} has ended: {result}{skipped}");
    }
    if !is_kept {
        tracing::error!(
            "the API server did not return annotation {} of MachineConfigPool {}; nothing is granted",
            pool_annotation::GRANTS,
            write.pool
        );
    }
}

/// Describes a grant that the pool did not list before.
fn added_text(write: &PoolWrite, grant: &Grant) -> String {
    let Grant {
        node,
        target,
        pool,
        id,
        ..
    } = grant;
    match write.found.contains(id) {
        true => format!("found the grant of node {node} again: {target} (pool {pool}, grant {id})"),
        false => format!("granted: node {node} to {target} (pool {pool}, grant {id})"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_was_found_on_its_node_is_not_reported_as_granted() {
        let grant = |id: &str, node: &str| Grant {
            id: id.to_owned(),
            kind: machinist_pool::GrantKind::Config,
            pool: "worker".to_owned(),
            node: node.to_owned(),
            uid: "u".to_owned(),
            target: "new".to_owned(),
            time: jiff::Timestamp::UNIX_EPOCH,
            acknowledged: false,
            failed: false,
            rollback: false,
            rest: std::collections::BTreeMap::new(),
        };
        let grants = vec![grant("g1", "a"), grant("g2", "b")];
        let write = PoolWrite {
            pool: "worker".to_owned(),
            uid: String::new(),
            resource_version: String::new(),
            grants: PoolGrants {
                grants: grants.clone(),
                rest: std::collections::BTreeMap::new(),
            },
            rollouts: None,
            freed: Vec::new(),
            found: vec!["g1".to_owned()],
            is_rebuild: true,
            begins: Vec::new(),
            ends: Vec::new(),
        };
        let texts: Vec<_> = grants.iter().map(|it| added_text(&write, it)).collect();
        assert_eq!(
            texts,
            [
                "found the grant of node a again: new (pool worker, grant g1)",
                "granted: node b to new (pool worker, grant g2)",
            ]
        );
        let new: Vec<_> = new_grants(&write, None).map(|it| it.id.as_str()).collect();
        assert_eq!(new, ["g2"]);
    }
}
