//! A cluster with a pool that machinist rolls out, in the API server that checks versions.

use std::{collections::BTreeMap, process::Output};

use jiff::{SignedDuration, Timestamp};
use machinist_cluster::fleet_queries;
use machinist_kube_api::{NodeView, PoolView};
use machinist_pool::{
    Decision, Grant, GrantKind, GrantOutcome, NodeUpdate, PoolGrants, PoolRead, RolloutHistory,
    RolloutInputs, RolloutState, RolloutStates, decide,
};
use serde_json::{Value, json};

use crate::{
    cluster::server::Server,
    fleet::{
        called,
        cluster::{GROUP, NEW, OLD, ago},
    },
};

pub(crate) const OLDER: &str = "rendered-worker-2c2c2c2c2c2c2c2c2c2c2c2c2c2c2c2c";
pub(crate) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/machinist-system/leases/machinist-controller";

pub(crate) async fn machinist(server: &Server, arguments: &[&str]) -> Output {
    let config = server.kubeconfig();
    called("machinist", arguments, &[("KUBECONFIG", &config)]).await
}

pub(crate) fn pool_path(name: &str) -> String {
    format!("/apis/{GROUP}/v1/machineconfigpools/{name}")
}

pub(crate) fn config_path(name: &str) -> String {
    format!("/apis/{GROUP}/v1/machineconfigs/{name}")
}

pub(crate) fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Three workers: one on the new config, two on the old one. All configs exist, and a controller acts.
pub(crate) async fn world() -> Server {
    let server = Server::start().await;
    for (name, config) in [("w1", NEW), ("w2", OLD), ("w3", OLD)] {
        server.put(&node_path(name), node(name, "worker", config));
    }
    for config in [OLDER, OLD, NEW] {
        let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfig",
            "metadata": {"name": config}, "spec": {}});
        server.put(&config_path(config), object);
    }
    server.put(&pool_path("worker"), pool("worker", NEW));
    put_lease(&server, Timestamp::now());
    server
}

pub(crate) fn put_lease(server: &Server, renewed: Timestamp) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "machinist-controller", "namespace": "machinist-system"},
        "spec": {"holderIdentity": "controller-1", "leaseDurationSeconds": 15,
            "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()},
    });
    server.put(LEASE, lease);
}

pub(crate) fn pool(role: &str, target: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfigPool",
        "metadata": {"name": role, "uid": format!("uid-of-{role}"), "creationTimestamp": ago(40, 0)},
        "spec": {"nodeSelector": {"matchLabels": {format!("node-role.kubernetes.io/{role}"): ""}},
            "configuration": {"name": target}, "paused": false},
    })
}

pub(crate) fn node(name: &str, role: &str, config: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "uid": format!("uid-of-{name}"),
            "labels": {format!("node-role.kubernetes.io/{role}"): ""},
            "annotations": {
                format!("{GROUP}/currentConfig"): config,
                format!("{GROUP}/desiredConfig"): config,
                format!("{GROUP}/state"): "Done",
            }},
        "spec": {},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "machinist.dev/Ready", "status": "True", "reason": "Ok", "message": "ready",
                "lastHeartbeatTime": ago(0, 2), "lastTransitionTime": ago(22, 0)},
        ]},
    })
}

pub(crate) fn grant(id: &str, pool: &str, node: &str) -> Grant {
    Grant {
        id: id.to_owned(),
        kind: GrantKind::Config,
        pool: pool.to_owned(),
        node: node.to_owned(),
        uid: format!("uid-of-{node}"),
        target: NEW.to_owned(),
        time: ago(0, 28),
        acknowledged: false,
        failed: false,
        rollback: false,
        rest: BTreeMap::new(),
    }
}

pub(crate) fn annotate(server: &Server, path: &str, name: &str, value: &str) {
    server.edit(path, |object| {
        object["metadata"]["annotations"][name] = json!(value);
    });
}

pub(crate) fn annotation(server: &Server, path: &str, name: &str) -> Value {
    server.object(path)["metadata"]["annotations"][name].clone()
}

/// The pool lists these grants.
pub(crate) fn record(server: &Server, pool: &str, grants: &[Grant]) {
    let grants = PoolGrants {
        grants: grants.to_vec(),
        rest: BTreeMap::new(),
    };
    let text = grants.to_annotation();
    annotate(server, &pool_path(pool), "machinist.dev/grants", &text);
}

/// The pool has rolled out these configs, newest first; each node took as many minutes.
pub(crate) fn has_run(server: &Server, pool: &str, configs: &[&str], minutes: i64) {
    let mut history = RolloutHistory::default();
    for config in configs.iter().rev() {
        history.begin(config, ago(30, 0));
        history.record(
            config,
            &NodeUpdate {
                node: "w1".to_owned(),
                outcome: GrantOutcome::Done,
                code: String::new(),
                total: SignedDuration::from_mins(minutes),
                blocked: SignedDuration::ZERO,
                phases: vec![
                    ("Draining".to_owned(), SignedDuration::from_secs(41)),
                    ("RebootPending".to_owned(), SignedDuration::from_secs(71)),
                    ("Committing".to_owned(), SignedDuration::ZERO),
                ],
            },
        );
        history.end(config, "Completed", &[], ago(29, 0));
    }
    let text = history.to_annotation();
    annotate(
        server,
        &pool_path(pool),
        "machinist.dev/rollout-history",
        &text,
    );
}

/// The rollout of a pool is in this state.
pub(crate) fn rollout(server: &Server, pool: &str, change: impl FnOnce(&mut RolloutState)) {
    let mut state = RolloutState::new(NEW, ago(2, 0));
    state.resume = Some("earlier".to_owned());
    state.resumed = Some(ago(2, 0));
    change(&mut state);
    let states = RolloutStates {
        rollouts: BTreeMap::from([(pool.to_owned(), state)]),
        rest: BTreeMap::new(),
    };
    let path = pool_path(pool);
    annotate(
        server,
        &path,
        "machinist.dev/rollout",
        &states.to_annotation(),
    );
    annotate(server, &path, "machinist.dev/resume", "earlier");
}

/// What the controller decides about the objects as they are stored.
pub(crate) async fn decision(server: &Server) -> Decision {
    let cluster = server.cluster().await;
    let pools: Vec<PoolView> = fleet_queries::pools(&cluster).await.unwrap();
    let nodes: Vec<NodeView> = fleet_queries::nodes(&cluster).await.unwrap();
    let mut inputs = RolloutInputs::new(&pools, &nodes, Timestamp::now());
    let live = PoolRead {
        is_confirmed: true,
        is_rebuilt: true,
        is_listed: true,
        is_not_kept: false,
    };
    inputs.reads = pools.iter().map(|it| (it.name.as_str(), live)).collect();
    decide(&inputs)
}

/// The codes of what holds the pool.
pub(crate) async fn holds(server: &Server, pool: &str) -> Vec<&'static str> {
    let decision = decision(server).await;
    let decided = decision.pools.iter().find(|it| it.pool == pool).unwrap();
    decided
        .holds
        .iter()
        .map(|hold| hold.reason.as_str())
        .collect()
}
