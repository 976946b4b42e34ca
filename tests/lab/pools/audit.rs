//! What the API server's audit log says about rollouts, whatever controller and agents report.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::NODES;
use crate::chaos::checks::{AgentAction, agent_action};
use crate::support::Cluster;

const CONTROLLER: &str = "system:serviceaccount:machinist-system:machinist-controller";

/// The node, the begin, and the end if there was one.
type Update = (&'static str, Timestamp, Option<Timestamp>);

/// The updates of nodes, from the request that cordons to the one that uncordons.
#[derive(Debug)]
pub struct Updates {
    all: Vec<Update>,
    /// Every request for a cordon or an uncordon with its response code, for the message of a failed assertion.
    #[expect(dead_code, reason = "it is only printed")]
    requests: Vec<String>,
}

/// Describes a request that concerns whether a node is schedulable.
fn schedulable_request(event: &Value) -> Option<String> {
    let patch = event["requestObject"].as_array()?;
    let mut operations = patch.iter();
    let operation = operations.find(|it| it["path"] == "/spec/unschedulable")?;
    Some(format!(
        "{} {} {} of node {}: {operation}, response {}",
        event["requestReceivedTimestamp"],
        event["stage"],
        user(event),
        name(event),
        event["responseStatus"]
    ))
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
        let ended = log.iter().skip(from);
        let ended = ended.filter(|event| event["stage"] == "ResponseComplete");
        for (event, node) in ended.flat_map(|event| NODES.map(|node| (event, node))) {
            let Some(action) = agent_action(event, node, "") else {
                continue;
            };
            let code = event["responseStatus"]["code"].as_u64();
            let time = event["requestReceivedTimestamp"].as_str();
            let time: Timestamp = time.unwrap().parse().unwrap();
            match action {
                AgentAction::Cordon if code < Some(300) => {
                    let outage = outages.iter().find(|outage| **outage > time);
                    all.push((node, time, outage.copied()));
                }
                // A request that timed out may have been carried out; otherwise another one follows.
                AgentAction::Uncordon if code < Some(300) || code >= Some(500) => {
                    if let Some(open) = all.iter_mut().rfind(|it| it.0 == node) {
                        open.2 = Some(time);
                    }
                }
                _ => {}
            }
        }
        all.sort_by_key(|(_, begun, _)| *begun);
        let requests = log.iter().skip(from).filter_map(schedulable_request);
        Self {
            all,
            requests: requests.collect(),
        }
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
