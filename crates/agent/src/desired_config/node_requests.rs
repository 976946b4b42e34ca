//! Requests on the Node that decide whether an update may begin: cancellations and grants.

use machinist_cluster::node::{NodeSnapshot, update_grant};
use machinist_kube_api::NodeView;
use tokio::sync::watch;

/// The config whose update an operator cancels, according to the Node.
pub(super) fn cancel(snapshots: &watch::Receiver<NodeSnapshot>) -> Option<String> {
    let snapshot = snapshots.borrow();
    snapshot.node.as_ref()?.cancel().map(str::to_owned)
}

/// Waits until the cancellation on the Node differs from `known`.
pub(super) async fn cancels(
    snapshots: &mut Option<watch::Receiver<NodeSnapshot>>,
    known: &Option<String>,
) -> Option<String> {
    let Some(snapshots) = snapshots else {
        return std::future::pending().await;
    };
    let other = snapshots.wait_for(|snapshot| {
        let node = snapshot.node.as_ref();
        // While the Node is unknown, nothing changes.
        node.is_some_and(|node| node.cancel() != known.as_deref())
    });
    if other.await.is_err() {
        std::future::pending().await
    }
    cancel(snapshots)
}

/// The ID and the target of the grant on the Node.
pub(super) fn grant(node: &NodeView) -> Option<(String, String)> {
    update_grant(node).map(|grant| (grant.id, grant.target))
}

/// Waits until the grant on the Node differs from `known`.
pub(super) async fn grant_changes(
    snapshots: &mut Option<watch::Receiver<NodeSnapshot>>,
    known: Option<(String, String)>,
) {
    let Some(snapshots) = snapshots else {
        return std::future::pending().await;
    };
    let other = snapshots.wait_for(|snapshot| {
        let node = snapshot.node.as_ref();
        // While the Node is unknown, nothing changes.
        node.is_some_and(|node| grant(node) != known)
    });
    if other.await.is_err() {
        std::future::pending().await
    }
}
