//! Derives the cluster view for status and gates from the observed Node.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reporter::ClusterView;
use machinist_base::{clock::Clock, reason::Reason};
use machinist_cluster::{machine_config_source::ConfigReadError, node::NodeSnapshot};
use machinist_kube_api::keys::condition;
use machinist_status::{Blocker, readiness};
use machinist_update::reconciler::DesiredConfig;

/// Inputs of the cluster view.
pub(super) struct NodeViewTask {
    pub(super) snapshots: watch::Receiver<NodeSnapshot>,
    pub(super) troubles: watch::Receiver<Option<ConfigReadError>>,
    pub(super) desired: watch::Sender<DesiredConfig>,
    /// Boot ID of the running boot, in the kubelet's format.
    pub(super) boot: String,
}

impl NodeViewTask {
    pub(super) async fn publish_view(
        mut self,
        to: watch::Sender<ClusterView>,
        stop: CancellationToken,
    ) {
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            let trouble = self.troubles.borrow_and_update().clone();
            self.publish_no_desired_config(&snapshot);
            to.send_if_modified(|known| {
                let now = ClusterView {
                    node: known.node.clone(),
                    node_uid: snapshot
                        .node
                        .as_ref()
                        .map_or_else(String::new, |node| node.uid.clone()),
                    kubelet: kubelet(&snapshot, &self.boot),
                    taints: taints(&snapshot),
                    zeros: zeros(&snapshot),
                    trouble: trouble
                        .map(|trouble| ("MachineConfig", trouble))
                        .or_else(|| Some(("Node", read_error_of(&snapshot)?)))
                        .map(|(kind, trouble)| blocker(kind, trouble, known.trouble.as_ref())),
                };
                let differs = *known != now;
                *known = now;
                differs
            });
            tokio::select! {
                () = stop.cancelled() => return,
                // Both are cancel-safe: a change stays marked as unseen.
                changed = self.snapshots.changed() => if changed.is_err() { return },
                Ok(()) = self.troubles.changed() => {}
            }
        }
    }

    /// Publishes that no config is desired if the Node exists without naming one, or does not
    /// exist.
    fn publish_no_desired_config(&self, snapshot: &NodeSnapshot) {
        let named = snapshot
            .node
            .as_ref()
            .and_then(|node| node.desired_config());
        if !snapshot.asked || named.is_some() {
            return;
        }
        self.desired.send_if_modified(|desired| {
            let first = matches!(desired, DesiredConfig::Unknown);
            if first {
                *desired = DesiredConfig::Nothing;
            }
            first
        });
    }
}

fn kubelet(snapshot: &NodeSnapshot, boot: &str) -> readiness::KubeletReadiness {
    use readiness::KubeletReadiness;
    let node = match &snapshot.node {
        None if snapshot.asked => return KubeletReadiness::NoNode,
        None => return KubeletReadiness::Unknown,
        Some(_) if snapshot.away.is_some() => return KubeletReadiness::Unknown,
        Some(node) => node,
    };
    let ready = node.condition(condition::KUBELET_READY);
    match ready {
        _ if node.status.node_info.boot_id != boot => KubeletReadiness::OldBoot,
        Some(ready) if ready.status == "True" => KubeletReadiness::Ready,
        Some(ready) => KubeletReadiness::NotReady(ready.message.clone()),
        None => KubeletReadiness::OldBoot,
    }
}

/// None while the API server is unreachable, because a taint may have been removed in the meantime.
fn taints(snapshot: &NodeSnapshot) -> Option<BTreeSet<String>> {
    let node = snapshot.node.as_ref().filter(|_| snapshot.away.is_none())?;
    let taints = node.spec.taints.iter();
    Some(
        taints
            .map(|it| format!("{}:{}", it.key, it.effect))
            .collect(),
    )
}

/// Extended resources with a capacity of zero on the last observed Node. Only device plugins of its
/// kubelet change these.
fn zeros(snapshot: &NodeSnapshot) -> Vec<String> {
    let node = snapshot.node.as_ref();
    node.map_or_else(Vec::new, |node| node.zeros().map(str::to_owned).collect())
}

/// The problem to report while the Node, and so the desired config, cannot be read.
fn read_error_of(snapshot: &NodeSnapshot) -> Option<ConfigReadError> {
    let reason = snapshot.refused.unwrap_or(Reason::ApiServerUnreachable);
    let what = match reason {
        Reason::ApiServerUnauthorized => "API server rejected the agent's credentials",
        Reason::ApiServerForbidden => "not permitted to get the Node",
        Reason::ApiServerRefused => "API server rejected the request for the Node",
        Reason::ClusterAccessInvalid => "the agent's credentials are unusable",
        _ => "API server unreachable",
    };
    snapshot.away.map(|_| ConfigReadError {
        reason,
        message: format!("{what}; the desired config is unknown"),
    })
}

fn blocker(kind: &str, trouble: ConfigReadError, known: Option<&Blocker>) -> Blocker {
    let same = known.filter(|known| known.reason == trouble.reason);
    Blocker {
        kind: kind.to_owned(),
        namespace: String::new(),
        name: String::new(),
        reason: trouble.reason,
        message: trouble.message,
        since: same.map_or_else(|| Clock::system().now(), |known| known.since),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use machinist_kube_api::{Condition, NodeView, Taint};
    use machinist_status::readiness::KubeletReadiness;

    fn snapshot(boot: &str, ready: &str) -> NodeSnapshot {
        let mut node = NodeView::default();
        node.status.node_info.boot_id = boot.to_owned();
        node.status.conditions.push(Condition {
            kind: condition::KUBELET_READY.to_owned(),
            status: ready.to_owned(),
            reason: String::new(),
            message: "the kubelet's message".to_owned(),
            last_heartbeat_time: None,
            last_transition_time: None,
        });
        node.spec.taints.push(Taint {
            key: "example.com/a".to_owned(),
            effect: "NoExecute".to_owned(),
            rest: std::collections::BTreeMap::new(),
        });
        NodeSnapshot {
            node: Some(Arc::new(node)),
            asked: true,
            ..NodeSnapshot::default()
        }
    }

    #[test]
    fn kubelet_ready_of_the_previous_boot_or_during_an_outage_does_not_count() {
        assert_eq!(
            kubelet(&snapshot("new", "True"), "new"),
            KubeletReadiness::Ready
        );
        assert_eq!(
            kubelet(&snapshot("old", "True"), "new"),
            KubeletReadiness::OldBoot
        );
        let ill = kubelet(&snapshot("new", "False"), "new");
        assert_eq!(
            ill,
            KubeletReadiness::NotReady("the kubelet's message".to_owned())
        );
        let mut away = snapshot("new", "True");
        away.away = Some(Instant::now());
        assert_eq!(kubelet(&away, "new"), KubeletReadiness::Unknown);
        assert_eq!(taints(&away), None);
        assert_eq!(
            kubelet(&NodeSnapshot::default(), "new"),
            KubeletReadiness::Unknown
        );
    }

    #[test]
    fn refused_credentials_are_reported_as_unauthorized_not_unreachable() {
        let mut away = snapshot("new", "True");
        away.away = Some(Instant::now());
        let silent = super::read_error_of(&away).unwrap();
        assert_eq!(silent.reason, Reason::ApiServerUnreachable);
        away.refused = Some(Reason::ApiServerUnauthorized);
        let refused = super::read_error_of(&away).unwrap();
        assert_eq!(refused.reason, Reason::ApiServerUnauthorized);
        assert!(
            !refused.message.contains("unreachable"),
            "{}",
            refused.message
        );
        assert!(
            refused.message.contains("credentials"),
            "{}",
            refused.message
        );
    }

    #[tokio::test]
    async fn extended_resources_with_zero_capacity_are_reported() {
        let mut node = NodeView::default();
        let counts = [
            ("acme.dev/gone", "0"),
            ("acme.dev/here", "2"),
            ("hugepages-1Gi", "0"),
            ("storage.kubernetes.io/x", "0"),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count.to_owned()));
        node.status.capacity = counts.into();
        let snapshot = NodeSnapshot {
            node: Some(Arc::new(node)),
            ..NodeSnapshot::default()
        };
        assert_eq!(zeros(&snapshot), ["acme.dev/gone"]);
        assert!(zeros(&NodeSnapshot::default()).is_empty());
        // Ends after one round, because the senders are dropped.
        let seen = NodeViewTask {
            snapshots: watch::channel(snapshot).1,
            troubles: watch::channel(None).1,
            desired: watch::Sender::default(),
            boot: String::new(),
        };
        let (to, told) = watch::channel(ClusterView::default());
        seen.publish_view(to, CancellationToken::new()).await;
        assert_eq!(told.borrow().zeros, ["acme.dev/gone"]);
    }

    #[test]
    fn taints_are_reported_with_their_effects() {
        let told = taints(&snapshot("new", "True")).unwrap();
        assert_eq!(told, ["example.com/a:NoExecute".to_owned()].into());
    }
}
