//! Implements `machinist cancel`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    Exit, Global, Printed, args::duration, nodes::Nodes, nodes::log, output::complain, print_data,
    short, start_logging_beside_a_page,
};
use crate::{
    cluster::{
        Cluster, ClusterError,
        cancel::{Standing, ask, standing},
    },
    error_chain::chain,
    reason::Reason,
};

/// The interval for polling the Node while waiting for the agent's answer.
const STEP: Duration = Duration::from_millis(500);

/// Flags of `cancel`.
#[derive(Debug, Args)]
#[command(after_help = "\
Cancels the update of a node that is waiting or being drained: the node is uncordoned, its devices are \
allocatable again, and the same config is not started again until the node's desired config changes, or --undo. \
Refused once the update has changed the disk.

Examples:
  machinist cancel worker-1
  machinist cancel --no-wait worker-1 worker-2
  machinist cancel --undo worker-1")]
pub struct CancelArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: Nodes,
    /// Revoke the cancellation, so that the update can start
    #[arg(long)]
    pub undo: bool,
    /// Do not wait for the agent's answer
    #[arg(long)]
    pub no_wait: bool,
    /// Timeout for the agent's answer; 0 waits forever
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, conflicts_with = "no_wait")]
    pub timeout: Duration,
    /// The output format.
    #[command(flatten)]
    pub printed: Printed,
}

/// The result for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeCancelled {
    node: String,
    config: Option<String>,
    outcome: Outcome,
    message: Option<String>,
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Outcome {
    /// The update is cancelled; the machine was not changed.
    Cancelled,
    /// The agent has not answered yet, or the command did not wait; the request remains on the
    /// Node.
    Asked,
    /// There is no update to cancel.
    Nothing,
    /// The cancellation is revoked.
    Undone,
    /// The update has already changed the disk.
    Refused,
    /// The request to the cluster failed.
    Failed,
}

/// The output document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: &'static str,
    kind: &'static str,
    dry_run: &'static str,
    nodes: Vec<NodeCancelled>,
}

pub(super) fn run(global: &Global, args: &CancelArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let nodes = short()?.block_on(all(args))?;
    let went_wrong = |node: &&NodeCancelled| {
        let asked = node.outcome == Outcome::Asked && node.message.is_some();
        asked || matches!(node.outcome, Outcome::Refused | Outcome::Failed)
    };
    for node in nodes.iter().filter(went_wrong) {
        complain(node.message.as_deref().unwrap_or_default());
    }
    let failed = nodes.iter().any(|node| went_wrong(&node));
    let answer = Answer {
        api_version: "machinist.dev/v1",
        kind: "Cancel",
        dry_run: args.nodes.dry_run.as_str(),
        nodes,
    };
    let suffix = args.nodes.dry_run.suffix();
    print_data(args.printed.output, &answer, |answer| page(answer, suffix))?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn page(answer: &Answer, suffix: &str) -> String {
    let lines = answer.nodes.iter().filter_map(|node| {
        let config = node.config.as_deref().unwrap_or_default();
        let what = match node.outcome {
            Outcome::Cancelled => format!("update to {config} cancelled"),
            Outcome::Asked if node.message.is_none() => {
                format!("requested cancellation of the update to {config}")
            }
            Outcome::Undone => format!("cancellation of the update to {config} revoked"),
            Outcome::Nothing => "has no update to cancel".to_owned(),
            Outcome::Asked | Outcome::Refused | Outcome::Failed => return None,
        };
        Some(format!("node/{} {what}{suffix}\n", node.node))
    });
    lines.collect()
}

/// Sends all requests first, then waits for each answer.
async fn all(args: &CancelArgs) -> anyhow::Result<Vec<NodeCancelled>> {
    let cluster = args.nodes.cluster().await?;
    let names = args.nodes.names(&cluster).await?;
    let begun = Instant::now();
    let mut asked = Vec::new();
    for node in names {
        let seen = ask(&cluster, &node, args.nodes.dry_run.into(), |seen| {
            wish(seen, args.undo)
        });
        asked.push((seen.await, node));
    }
    let mut nodes = Vec::new();
    for (seen, node) in asked {
        let ended = match seen {
            Ok(seen) => follow(&cluster, &node, seen, args, begun).await,
            Err(error) => Err(error),
        };
        nodes.push(ended.unwrap_or_else(|error| failed(&node, &error)));
    }
    Ok(nodes)
}

/// The annotation value to write; none if the Node has it already.
fn wish(seen: &Standing, undo: bool) -> Option<Option<String>> {
    match (undo, &seen.asked, seen.pending()) {
        (true, Some(_), _) => Some(None),
        (false, asked, Some(pending)) if asked.as_deref() != Some(pending) => {
            Some(Some(pending.to_owned()))
        }
        _ => None,
    }
}

async fn follow(
    cluster: &Cluster,
    node: &str,
    seen: Standing,
    args: &CancelArgs,
    begun: Instant,
) -> Result<NodeCancelled, ClusterError> {
    let ended = |config: Option<&str>, outcome, message: Option<String>| NodeCancelled {
        node: node.to_owned(),
        config: config.map(str::to_owned),
        outcome,
        reason: (outcome == Outcome::Refused).then_some(Reason::UpdateInProgress),
        message: message.map(|message| format!("node/{node}: {message}")),
    };
    if args.undo {
        let outcome = match seen.asked {
            Some(_) => Outcome::Undone,
            None => Outcome::Nothing,
        };
        return Ok(ended(seen.asked.as_deref(), outcome, None));
    }
    let Some(config) = seen.pending() else {
        return Ok(ended(None, Outcome::Nothing, None));
    };
    if args.no_wait || args.nodes.dry_run != super::nodes::Rehearse::None {
        return Ok(ended(Some(config), Outcome::Asked, None));
    }
    loop {
        let missed = match standing(cluster, node).await {
            Ok(now) => match answer(&now, config) {
                Some((outcome, why)) => return Ok(ended(Some(config), outcome, why)),
                None => None,
            },
            // The request is stored on the Node, so an API server that is temporarily unreachable
            // does not revoke it.
            Err(error) if error.again() && error.code() != 404 => Some(error),
            Err(error) => return Err(error),
        };
        if !args.timeout.is_zero() && begun.elapsed() >= args.timeout {
            let why = overdue(config, args.timeout, missed.as_ref());
            return Ok(ended(Some(config), Outcome::Asked, Some(why)));
        }
        sleep(STEP).await;
    }
}

/// The answer in the Node's annotations, once there is one.
fn answer(now: &Standing, config: &str) -> Option<(Outcome, Option<String>)> {
    if now.cancelled.as_deref() == Some(config) {
        return Some((Outcome::Cancelled, None));
    }
    if let Some(why) = now.refusal(config) {
        let why = format!("cannot cancel the update to {config}: {why}");
        return Some((Outcome::Refused, Some(why)));
    }
    let other = "the request was replaced by another one";
    (now.asked.as_deref() != Some(config)).then(|| (Outcome::Refused, Some(other.to_owned())))
}

/// `missed`: why the last poll failed.
fn overdue(config: &str, timeout: Duration, missed: Option<&ClusterError>) -> String {
    let within = format!("within {timeout:?}");
    match missed {
        None => format!(
            "the agent did not cancel the update to {config} {within}; the request remains on the Node"
        ),
        Some(error) => format!(
            "could not check {within} whether the agent cancelled the update to {config}; the request remains on the Node: {}",
            chain(error)
        ),
    }
}

fn failed(node: &str, error: &ClusterError) -> NodeCancelled {
    NodeCancelled {
        node: node.to_owned(),
        config: None,
        outcome: Outcome::Failed,
        message: Some(chain(error)),
        reason: Some(error.reason()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_already_is_not_asked_again_and_an_old_question_is_no_answer_to_a_new_config() {
        let standing = |asked: Option<&str>, current: &str| {
            let mut standing = Standing::default();
            standing.desired = Some("new".to_owned());
            standing.current = Some(current.to_owned());
            standing.asked = asked.map(str::to_owned);
            standing
        };
        let new = || Some(Some("new".to_owned()));
        assert_eq!(wish(&standing(None, "old"), false), new());
        assert_eq!(wish(&standing(Some("older"), "old"), false), new());
        assert_eq!(wish(&standing(Some("new"), "old"), false), None);
        assert_eq!(wish(&standing(None, "new"), false), None);
        assert_eq!(wish(&standing(Some("new"), "old"), true), Some(None));
        assert_eq!(wish(&standing(None, "old"), true), None);
    }
}
