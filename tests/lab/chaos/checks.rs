//! Checks a node's update in the API server's audit log against the properties of every update. The
//! agent's own reports are not used.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

/// An action on a node or its pods that the API server accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// The agent cordons the node.
    Cordon,
    /// The agent uncordons the node.
    Uncordon,
    /// The agent evicts one of the node's pods.
    Evict(String),
    /// The kubelet reports this boot.
    Reports {
        /// The boot id.
        boot: String,
    },
}

/// From the arrival of a request to the end of its response. A watcher can observe a change and act
/// on it before the request that made it has ended, so two actions are ordered only if their spans
/// do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    begun: Timestamp,
    ended: Timestamp,
}

impl Span {
    fn is_before(self, other: Self) -> bool {
        self.ended < other.begun
    }

    /// From the end of an earlier span to the begin of this one.
    pub fn since(self, earlier: Self) -> Duration {
        let time = self.begun.duration_since(earlier.ended);
        time.try_into().unwrap_or_default()
    }
}

/// What the harness itself knows about a round.
#[derive(Debug)]
pub struct Known {
    /// The boot ids at its begin and at its end.
    pub boots: (String, String),
    /// When the machine went down for a reboot that it had requested.
    pub reboots: Vec<Timestamp>,
    /// Whether the machine lost power during the round.
    pub lost_power: bool,
    /// Whether the API server was killed during the round: its last actions may be missing in its
    /// audit log.
    pub lost_api: bool,
    /// Whether an operator had cordoned the node before.
    pub person: bool,
    /// Whether pods may be scheduled to the node now.
    pub schedulable: bool,
}

/// The actions in the log from line `from` on that concern a node whose pods' names begin with
/// `pods`, with their time spans.
pub fn agent_actions(
    log: &[Value],
    from: usize,
    node: &str,
    pods: &str,
) -> Vec<(Span, AgentAction)> {
    log[from..]
        .iter()
        .filter(|event| {
            event["stage"] == "ResponseComplete"
                && event["responseStatus"]["code"].as_u64() < Some(300)
        })
        .filter_map(|event| {
            let time = |name: &str| event[name].as_str()?.parse().ok();
            let span = Span {
                begun: time("requestReceivedTimestamp")?,
                ended: time("stageTimestamp")?,
            };
            Some((span, agent_action(event, node, pods)?))
        })
        .collect()
}

/// What a request asks of the node; `None` for requests of others.
pub fn agent_action(event: &Value, node: &str, pods: &str) -> Option<AgentAction> {
    let object = &event["objectRef"];
    let name = object["name"].as_str()?;
    let user = event["user"]["username"].as_str()?;
    let agent = user.starts_with("system:serviceaccount:machinist-system:");
    let part = object["subresource"].as_str().unwrap_or_default();
    match (event["verb"].as_str()?, object["resource"].as_str()?, part) {
        ("patch", "nodes", "") if agent && name == node => {
            let patch = event["requestObject"].as_array()?;
            let cordon = patch
                .iter()
                .find(|op| op["path"] == "/spec/unschedulable" && op["op"] != "test")?;
            let on = cordon["value"] == true;
            Some(if on {
                AgentAction::Cordon
            } else {
                AgentAction::Uncordon
            })
        }
        ("patch", "nodes", "status") if user == format!("system:node:{node}") && name == node => {
            let boot = event["requestObject"]["status"]["nodeInfo"]["bootID"].as_str()?;
            Some(AgentAction::Reports {
                boot: boot.to_owned(),
            })
        }
        ("create", "pods", "eviction") if agent && name.starts_with(pods) => {
            Some(AgentAction::Evict(name.to_owned()))
        }
        ("delete", "pods", "") if agent && name.starts_with(pods) => {
            Some(AgentAction::Evict(name.to_owned()))
        }
        _ => None,
    }
}

/// The violated properties of a round whose update drained and rebooted; empty when there are none.
pub fn judge(deeds: &[(Span, AgentAction)], known: &Known) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    let times = |of: &AgentAction| -> Vec<Span> {
        let those = deeds.iter().filter(|(_, deed)| deed == of);
        those.map(|(time, _)| *time).collect()
    };
    let (cordons, uncordons) = (times(&AgentAction::Cordon), times(&AgentAction::Uncordon));
    let wanted = usize::from(!known.person);
    // The last action of a killed API server may be missing in its log.
    let fits = |n: usize| n == wanted || known.lost_api && n <= wanted;
    for (what, n) in [("cordons", cordons.len()), ("uncordons", uncordons.len())] {
        must(
            fits(n),
            &format!("{n} {what} by the agent, {wanted} wanted"),
        );
    }
    must(
        known.schedulable != known.person,
        "the node is cordoned, or is not, against what a person asked for",
    );

    let (cordon, uncordon) = (cordons.first(), uncordons.last());
    for (time, deed) in deeds {
        if matches!(deed, AgentAction::Evict(_)) {
            let before = cordon.is_some_and(|cordon| time.is_before(*cordon));
            let after = uncordon.is_some_and(|uncordon| uncordon.is_before(*time));
            must(!before, &format!("{deed:?} before the cordon"));
            must(!after, &format!("{deed:?} after the uncordon"));
        }
    }

    let (before, after) = &known.boots;
    let reboots = known.reboots.len();
    must(before != after, "it has not rebooted");
    must(
        reboots <= 1,
        &format!("it rebooted {reboots} times for one config"),
    );
    must(
        reboots == 1 || known.lost_power,
        "the reboot was not requested",
    );
    // The agent reports an update as verified; the kubelet's reports show whether the node had
    // really come back from the reboot.
    let down = known.reboots.first();
    let came_back = |(time, deed): &(Span, AgentAction)| {
        matches!(deed, AgentAction::Reports { boot } if boot != before)
            && down.is_none_or(|down| time.begun > *down)
            && uncordon.is_none_or(|uncordon| !uncordon.is_before(*time))
    };
    must(
        deeds.iter().any(came_back),
        "uncordoned before the boot with the new config had a kubelet",
    );
    wrong
}

/// The same actions with the uncordon moved before the first report of the new boot: a check must
/// reject them.
pub fn uncordoned_too_early(deeds: &[(Span, AgentAction)]) -> Option<Vec<(Span, AgentAction)>> {
    let cordoned = deeds
        .iter()
        .find(|(_, deed)| *deed == AgentAction::Cordon)?
        .0;
    let mut moved = deeds.to_vec();
    let uncordon = moved
        .iter_mut()
        .rfind(|(_, deed)| *deed == AgentAction::Uncordon)?;
    uncordon.0 = cordoned;
    Some(moved)
}
