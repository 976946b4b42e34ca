//! What the API server's audit log says about rollouts, whatever controller and agents report.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::NODES;
use crate::chaos::checks::{AgentAction, agent_actions};
use crate::support::Cluster;

const CONTROLLER: &str = "system:serviceaccount:machinist-system:machinist-controller";

/// The node, the begin, and the end if there was one.
type Update = (&'static str, Timestamp, Option<Timestamp>);

/// The updates of nodes, from the request that cordons to the one that uncordons.
#[derive(Debug)]
pub struct Updates {
    all: Vec<Update>,
}

fn is_patch_of_node(event: &Value) -> bool {
    let object = &event["objectRef"];
    event["stage"] == "ResponseComplete"
        && event["verb"] == "patch"
        && object["resource"] == "nodes"
        && object["subresource"].is_null()
}

fn user(event: &Value) -> &str {
    event["user"]["username"].as_str().unwrap_or_default()
}

fn name(event: &Value) -> String {
    event["objectRef"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The names of nodes that the controller has patched since the log had `from` lines.
pub fn controllers_node_patches(cluster: &Cluster, from: usize) -> Vec<String> {
    let log = cluster.audit().split_off(from);
    let patches = log
        .iter()
        .filter(|it| is_patch_of_node(it) && user(it) == CONTROLLER);
    patches.map(name).collect()
}

/// Requests of the controller that its role or the API server forbade, each once. An API server that has just started
/// does not know its roles yet, and refuses what it permits later.
pub fn refused(cluster: &Cluster) -> Vec<String> {
    let log = cluster.audit();
    let refused = log.iter().filter(|event| {
        let status = &event["responseStatus"];
        let code = status["code"].as_u64();
        // A patch whose test of the version failed; an invalid object is named.
        let is_old_version = code == Some(422) && status["details"]["name"].is_null();
        user(event) == CONTROLLER
            && !is_old_version
            && matches!(code, Some(400 | 401 | 403 | 405 | 415 | 422))
    });
    let mut all: Vec<String> = refused
        .map(|event| {
            format!(
                "{} {} {}",
                event["verb"], event["requestURI"], event["responseStatus"]
            )
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

impl Updates {
    /// The updates since the log had `from` lines. The last action of an API server that is killed may be missing in its
    /// log, so an update without an end has ended at the first of the `outages` after its begin.
    pub fn of(cluster: &Cluster, from: usize, outages: &[Timestamp]) -> Self {
        let log = cluster.audit();
        let mut all: Vec<Update> = Vec::new();
        for node in NODES {
            for (span, action) in agent_actions(&log, from, node, "") {
                let time = span.begun();
                match action {
                    AgentAction::Cordon => {
                        let outage = outages.iter().find(|outage| **outage > time);
                        all.push((node, time, outage.copied()));
                    }
                    AgentAction::Uncordon => {
                        if let Some(open) = all.iter_mut().rfind(|it| it.0 == node) {
                            open.2 = Some(time);
                        }
                    }
                    AgentAction::Evict(_) | AgentAction::Reports { .. } => {}
                }
            }
        }
        all.sort_by_key(|(_, begun, _)| *begun);
        Self { all }
    }

    /// The nodes in the order in which they began.
    pub fn order(&self) -> Vec<&str> {
        self.all.iter().map(|(node, ..)| *node).collect()
    }

    /// Whether no node began before a time, in seconds since 1970.
    pub fn begun_after(&self, second: i64) -> bool {
        let mut begins = self.all.iter().map(|(_, begun, _)| begun.as_second());
        begins.all(|begun| begun >= second)
    }

    /// The largest number of nodes that were cordoned for an update at one time.
    pub fn most_at_once(&self) -> usize {
        self.most_of(&NODES)
    }

    /// The same of these nodes.
    pub fn most_of(&self, nodes: &[&str]) -> usize {
        let mut changes: BTreeMap<Timestamp, isize> = BTreeMap::new();
        let those = self.all.iter().filter(|it| nodes.contains(&it.0));
        for (_, begun, ended) in those {
            *changes.entry(*begun).or_default() += 1;
            if let Some(ended) = ended {
                *changes.entry(*ended).or_default() -= 1;
            }
        }
        let mut now = 0;
        let counts = changes.values().map(|change| {
            now += change;
            now
        });
        counts.max().unwrap_or(0).try_into().unwrap()
    }
}
