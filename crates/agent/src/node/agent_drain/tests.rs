//! Tests of which pods a drain spares, and of what uncordoning waits for.
#![allow(
    clippy::disallowed_methods,
    reason = "the test makes a kubeconfig and a root"
)]

use std::path::Path;

use jiff::Timestamp;
use tokio::{sync::Notify, time::timeout};

use super::{
    super::{
        super::{grant_gate::GrantGate, mcd_detect::McdDetector, pinned_images::UpdateWait},
        ControllerDrain,
    },
    *,
};
use machinist_cluster::{Cluster, ClusterAccess, events::Events, node::OwnNode, pods::NodePods};
use machinist_rootfs::Root;
use machinist_status::{
    Mode, Status,
    readiness::{Gate, GateEffect, GateName, Gates},
};

fn settings() -> Arc<Settings> {
    Arc::new(settings::load(settings::SettingsInputs::default()).unwrap())
}

#[test]
fn the_agents_own_pod_is_never_drained_by_the_agent() {
    let own = Some("uid-machinist".to_owned());
    let options = options(&settings().drain, None, own.clone());
    assert_eq!(options.rules.own, own);
}

/// A cluster whose API server is unreachable: no process listens on port 1.
async fn cluster(dir: &Path) -> Cluster {
    let path = dir.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
        contexts: [{name: c, context: {cluster: c, user: u}}]\n\
        users: [{name: u, user: {token: t}}]\n";
    std::fs::write(&path, text).unwrap();
    let access = ClusterAccess::Kubeconfig(vec![path]);
    Cluster::connect(access).await.unwrap()
}

pub(in crate::node) fn gates(devices: bool) -> Arc<Status> {
    let gate = |name: GateName, open, reason| Gate {
        name: name.into(),
        open,
        effect: GateEffect::Hold,
        since: Timestamp::UNIX_EPOCH,
        reason,
        message: String::new(),
    };
    let mut status = Status::starting("/", Mode::Cluster, Timestamp::UNIX_EPOCH);
    let why = [Reason::DevicesMissing, Reason::Ok][usize::from(devices)];
    let all = [
        gate(GateName::Kubelet, true, Reason::Ok),
        gate(GateName::Devices, devices, why),
    ];
    status.gates = all.into_iter().collect::<Gates>();
    Arc::new(status)
}

pub(in crate::node) async fn ours(
    dir: &Path,
    statuses: watch::Receiver<Arc<Status>>,
) -> (NodeContext, Cluster) {
    let cluster = cluster(dir).await;
    let node = OwnNode::new(cluster.clone(), "a");
    let ours = NodeContext {
        grants: GrantGate::new(node.clone()),
        node,
        devices: None,
        statuses,
        events: Events::new().0,
        lookout: McdDetector {
            root: Root::open(dir).unwrap(),
            cluster: None,
        },
        suspect: Arc::new(Notify::new()),
        settings: watch::channel(settings()).1,
        held: watch::channel(None).1,
        images: UpdateWait::new(watch::channel(None).1, watch::channel(settings()).1),
    };
    (ours, cluster)
}

/// Longer than any request may take.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn agent_uncordons_only_when_no_hold_gate_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, statuses) = watch::channel(gates(false));
    let (ours, cluster) = ours(dir.path(), statuses).await;
    let pods = NodePods::new(cluster, None);
    let node = AgentDrain::new(ours, pods, watch::channel(settings()).1, None);
    let mut given = node.uncordon("one".to_owned());
    assert!(timeout(LONG, &mut given).await.is_err(), "a gate holds");
    tell.send_replace(gates(true));
    // Now the API server is called, which is unreachable.
    let asked = timeout(LONG, given).await.unwrap();
    assert_eq!(asked.unwrap_err().reason, Reason::ApiServerUnreachable);
}

#[tokio::test(start_paused = true)]
async fn uncordon_is_requested_of_the_controller_only_when_no_hold_gate_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, statuses) = watch::channel(gates(false));
    let (ours, _) = ours(dir.path(), statuses).await;
    let (asks, mut asked) = watch::channel(None);
    let node = ControllerDrain::new(ours, asks);
    let mut given = node.uncordon("one".to_owned());
    assert!(timeout(LONG, &mut given).await.is_err(), "a gate holds");
    assert_eq!(*asked.borrow(), None);
    tell.send_replace(gates(true));
    let request = machinist_kube_api::DrainRequest::Uncordon("one".to_owned());
    tokio::select! {
        _ = given => panic!("not drained"),
        found = asked.wait_for(|asks| asks.as_ref() == Some(&request)) => drop(found.unwrap()),
    }
}
