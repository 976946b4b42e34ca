//! What the cluster shows of our Node, for status and gates.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    cluster::{configs::Trouble, node::Sight},
    crd::names::condition,
    readiness::{self, report::ClusterView},
    status::Blocker,
    update::run::Desired,
};

/// What the cluster's side is told from.
pub(super) struct Seen {
    pub(super) sights: watch::Receiver<Sight>,
    pub(super) troubles: watch::Receiver<Option<Trouble>>,
    pub(super) desired: watch::Sender<Desired>,
    /// The running boot, as kubelets name it.
    pub(super) boot: String,
}

impl Seen {
    pub(super) async fn show(mut self, to: watch::Sender<ClusterView>, stop: CancellationToken) {
        loop {
            let sight = self.sights.borrow_and_update().clone();
            let trouble = self.troubles.borrow_and_update().clone();
            self.say_nothing_is_asked(&sight);
            to.send_if_modified(|known| {
                let now = ClusterView {
                    node: known.node.clone(),
                    kubelet: kubelet(&sight, &self.boot),
                    trouble: trouble.map(|trouble| blocker(trouble, known.trouble.as_ref())),
                };
                let differs = *known != now;
                *known = now;
                differs
            });
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop, both: a change stays marked as unseen.
                changed = self.sights.changed() => if changed.is_err() { return },
                Ok(()) = self.troubles.changed() => {}
            }
        }
    }

    /// A Node that names no config is answer enough: nothing is waited for.
    fn say_nothing_is_asked(&self, sight: &Sight) {
        let named = sight.node.as_ref().and_then(|node| node.desired_config());
        if !sight.asked || named.is_some() {
            return;
        }
        self.desired.send_if_modified(|desired| {
            let first = matches!(desired, Desired::Unknown);
            if first {
                *desired = Desired::Nothing;
            }
            first
        });
    }
}

fn kubelet(sight: &Sight, boot: &str) -> readiness::Kubelet {
    use readiness::Kubelet;
    let node = match &sight.node {
        None if sight.asked => return Kubelet::NoNode,
        None => return Kubelet::Unknown,
        Some(_) if sight.away.is_some() => return Kubelet::Unknown,
        Some(node) => node,
    };
    let ready = node.condition(condition::KUBELET_READY);
    match ready {
        _ if node.status.node_info.boot_id != boot => Kubelet::OldBoot,
        Some(ready) if ready.status == "True" => Kubelet::Ready,
        Some(ready) => Kubelet::NotReady(ready.message.clone()),
        None => Kubelet::OldBoot,
    }
}

fn blocker(trouble: Trouble, known: Option<&Blocker>) -> Blocker {
    let same = known.filter(|known| known.reason == trouble.reason);
    Blocker {
        kind: "MachineConfig".to_owned(),
        namespace: String::new(),
        name: String::new(),
        reason: trouble.reason,
        message: trouble.message,
        since: same.map_or_else(|| Clock::system().now(), |known| known.since),
    }
}
