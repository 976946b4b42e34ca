//! Simulates the agents of many nodes for `pools::scale`: creates the Nodes, acknowledges each grant, and ends it after
//! a second as a successful update with a drain.
//!
//!     simulated_agents KUBECONFIG COUNT
//!
//! It prints `created` once all Nodes exist, and `at once: N` whenever more nodes than before are cordoned.
#![allow(clippy::print_stdout, reason = "the lab's test reads the output")]

use std::{collections::HashSet, env, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _, pin_mut, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use machinist_cluster::node::NodeObject;
use machinist_kube_api::{
    NodeView,
    keys::{annotation, protocol},
};
use machinist_pool::{
    DRAIN_PHASE, Grant, GrantEnd, GrantOutcome, UpdateTimes, grant_ends, with_end,
};

/// How long each simulated update takes.
const UPDATE_TIME: Duration = Duration::from_secs(1);

/// Requests that run at the same time while Nodes are created.
const MAX_CONCURRENT_CREATIONS: usize = 32;

/// With it a Node has about 15 KiB, as with a kubelet's images and a cloud's annotations.
const FILLER_BYTES: usize = 11_000;

/// The config that every node has at first.
const FIRST_CONFIG: &str = "rendered-scale-00000000000000000000000000000000";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let kubeconfig = arguments.next().context("KUBECONFIG is missing")?;
    let count: usize = arguments.next().context("COUNT is missing")?.parse()?;
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let nodes = Api::all(client.clone());
    stream::iter((0..count).map(Ok))
        .try_for_each_concurrent(MAX_CONCURRENT_CREATIONS, |number| create(&nodes, number))
        .await?;
    println!("created");
    let fleet = Fleet {
        nodes: Api::all(client),
        cordoned: Mutex::default(),
    };
    Arc::new(fleet).act().await
}

async fn create(nodes: &Api<Node>, number: usize) -> kube::Result<()> {
    let name = format!("scale-{number:05}.cluster.example.com");
    let object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "node-role.kubernetes.io/scale": "",
                "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
            },
            "annotations": {
                (protocol::CURRENT_CONFIG): FIRST_CONFIG, (protocol::DESIRED_CONFIG): FIRST_CONFIG,
                (protocol::STATE): "Done", "example.com/filler": "x".repeat(FILLER_BYTES),
            },
        },
    });
    let object: Node = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    nodes.create(&PostParams::default(), &object).await?;
    let now = Timestamp::now().strftime("%FT%TZ").to_string();
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Lab", "message": "ok",
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let image = |number: usize| json!({"names": [format!("registry.example.com/app-{number}@sha256:{}", "0".repeat(64))], "sizeBytes": 1});
    let status = json!({"status": {
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [condition("Ready"), condition("machinist.dev/Ready")],
        "images": (0..20).map(image).collect::<Vec<_>>(),
    }});
    let params = PatchParams::default();
    nodes
        .patch_status(&name, &params, &Patch::Merge(&status))
        .await?;
    Ok(())
}

struct Fleet {
    nodes: Api<NodeObject>,
    /// The nodes between acknowledgement and end.
    cordoned: Mutex<HashSet<String>>,
}

impl Fleet {
    async fn act(self: Arc<Self>) -> anyhow::Result<()> {
        // The patches of a grant that were sent.
        let mut acted = HashSet::new();
        loop {
            let list = self.nodes.list(&ListParams::default()).await?;
            let version = list.metadata.resource_version.clone();
            for object in list.items {
                self.take(object.into(), &mut acted);
            }
            let version = version.context("a list without a version")?;
            let params = WatchParams::default();
            let events = self.nodes.watch(&params, &version).await?;
            pin_mut!(events);
            // The watch ends now and then; the list above then follows.
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        self.take(object.into(), &mut acted);
                    }
                    WatchEvent::Error(_) => break,
                    WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                }
            }
        }
    }

    /// Does the next step of a node's grant, once.
    fn take(self: &Arc<Self>, node: NodeView, acted: &mut HashSet<(String, bool)>) {
        let Ok(Some(grant)) = Grant::of_node(&node) else {
            return;
        };
        let is_acknowledged =
            node.annotation(annotation::GRANT_ACKNOWLEDGED) == Some(grant.id.as_str());
        if acted.insert((grant.id.clone(), is_acknowledged)) {
            let fleet = Arc::clone(self);
            tokio::spawn(async move {
                let done = match is_acknowledged {
                    false => fleet.acknowledge(&node, &grant).await,
                    true => fleet.end(&node, &grant).await,
                };
                if let Err(error) = done {
                    println!("{}: {error}", node.name);
                }
            });
        }
    }

    async fn acknowledge(&self, node: &NodeView, grant: &Grant) -> anyhow::Result<()> {
        let mut cordoned = self.cordoned.lock().await;
        let before = cordoned.len();
        cordoned.insert(node.name.clone());
        println!("at once: {}", before + 1);
        drop(cordoned);
        let annotations = [
            (annotation::GRANT_ACKNOWLEDGED, grant.id.as_str()),
            (protocol::STATE, "Working"),
        ];
        let mut operations = added(&annotations);
        operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
        self.patch(node, operations).await
    }

    async fn end(&self, node: &NodeView, grant: &Grant) -> anyhow::Result<()> {
        tokio::time::sleep(UPDATE_TIME).await;
        let times = UpdateTimes {
            phases: [(DRAIN_PHASE.to_owned(), UPDATE_TIME.as_secs())].into(),
            blocked: 0,
        };
        let mark = GrantEnd {
            times: Some(times),
            ..grant.end(GrantOutcome::Done, "", Timestamp::now())
        };
        let ends = with_end(&grant_ends(node)?, mark);
        let annotations = [
            (annotation::GRANT_ENDS, ends.as_str()),
            (protocol::CURRENT_CONFIG, grant.target.as_str()),
            (protocol::STATE, "Done"),
        ];
        let mut operations = added(&annotations);
        for name in [annotation::GRANT, annotation::GRANT_ACKNOWLEDGED] {
            operations.push(json!({"op": "remove", "path": path(name)}));
        }
        operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
        self.cordoned.lock().await.remove(&node.name);
        self.patch(node, operations).await
    }

    async fn patch(&self, node: &NodeView, operations: Vec<Value>) -> anyhow::Result<()> {
        let patch = Patch::<()>::Json(serde_json::from_value(Value::Array(operations))?);
        let params = PatchParams::default();
        self.nodes.patch(&node.name, &params, &patch).await?;
        Ok(())
    }
}

fn added(annotations: &[(&str, &str)]) -> Vec<Value> {
    let add =
        |(name, value): &(&str, &str)| json!({"op": "add", "path": path(name), "value": value});
    annotations.iter().map(add).collect()
}

fn path(annotation: &str) -> String {
    let escaped = annotation.replace('~', "~0").replace('/', "~1");
    format!("/metadata/annotations/{escaped}")
}
