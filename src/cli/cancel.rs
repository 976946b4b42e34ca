//! Implements `machinist cancel`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    Exit, Global, OutputFormatArg, args::duration, node_selection::SelectedNodes,
    node_selection::log, output::print_error, print_data, short, start_logging_beside_a_page,
};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::{
    Cluster, ClusterError,
    update_cancel::{UpdateAnnotations, read_annotations, request_cancel},
};

/// The interval for polling the Node while waiting for the agent's answer.
const NODE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Flags of `cancel`.
#[derive(Debug, Args)]
#[command(after_help = "\
Cancels the update of a node that is waiting or being drained: the node is uncordoned, its devices are \
allocatable again, and the same config is not started again until the node's desired config changes, or --undo. \
Refused once the update has changed the disk. A controller grants the update again after ten minutes; machinist skip \
leaves the node out of the rollout.

Examples:
  machinist cancel worker-1
  machinist cancel --no-wait worker-1 worker-2
  machinist cancel --undo worker-1")]
pub struct CancelArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: SelectedNodes,
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
    pub printed: OutputFormatArg,
}

/// The result for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeCancelResult {
    node: String,
    config: Option<String>,
    outcome: CancelOutcome,
    message: Option<String>,
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum CancelOutcome {
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
struct CancelOutput {
    api_version: &'static str,
    kind: &'static str,
    dry_run: &'static str,
    nodes: Vec<NodeCancelResult>,
}

pub(super) fn run(global: &Global, args: &CancelArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let nodes = short()?.block_on(all(args))?;
    let went_wrong = |node: &&NodeCancelResult| {
        let asked = node.outcome == CancelOutcome::Asked && node.message.is_some();
        asked || matches!(node.outcome, CancelOutcome::Refused | CancelOutcome::Failed)
    };
    for node in nodes.iter().filter(went_wrong) {
        print_error(node.message.as_deref().unwrap_or_default());
    }
    let failed = nodes.iter().any(|node| went_wrong(&node));
    let answer = CancelOutput {
        api_version: "machinist.dev/v1",
        kind: "Cancel",
        dry_run: args.nodes.mode.dry_run.as_str(),
        nodes,
    };
    let suffix = args.nodes.mode.dry_run.suffix();
    print_data(args.printed.output, &answer, |answer| page(answer, suffix))?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn page(answer: &CancelOutput, suffix: &str) -> String {
    let lines = answer.nodes.iter().filter_map(|node| {
        let config = node.config.as_deref().unwrap_or_default();
        let what = match node.outcome {
            CancelOutcome::Cancelled => format!("update to {config} cancelled"),
            CancelOutcome::Asked if node.message.is_none() => {
                format!("requested cancellation of the update to {config}")
            }
            CancelOutcome::Undone => format!("cancellation of the update to {config} revoked"),
            CancelOutcome::Nothing => "has no update to cancel".to_owned(),
            CancelOutcome::Asked | CancelOutcome::Refused | CancelOutcome::Failed => return None,
        };
        Some(format!("node/{} {what}{suffix}\n", node.node))
    });
    lines.collect()
}

/// Sends all requests first, then waits for each answer.
async fn all(args: &CancelArgs) -> anyhow::Result<Vec<NodeCancelResult>> {
    let cluster = args.nodes.cluster().await?;
    let names = args.nodes.names(&cluster).await?;
    let begun = Instant::now();
    let mut asked = Vec::new();
    for node in names {
        let seen = request_cancel(&cluster, &node, args.nodes.mode.dry_run.into(), |seen| {
            annotation_value(seen, args.undo)
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
fn annotation_value(seen: &UpdateAnnotations, undo: bool) -> Option<Option<String>> {
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
    seen: UpdateAnnotations,
    args: &CancelArgs,
    begun: Instant,
) -> Result<NodeCancelResult, ClusterError> {
    let ended = |config: Option<&str>, outcome, message: Option<String>| NodeCancelResult {
        node: node.to_owned(),
        config: config.map(str::to_owned),
        outcome,
        reason: (outcome == CancelOutcome::Refused).then_some(Reason::UpdateInProgress),
        message: message.map(|message| format!("node/{node}: {message}")),
    };
    if args.undo {
        let outcome = match seen.asked {
            Some(_) => CancelOutcome::Undone,
            None => CancelOutcome::Nothing,
        };
        return Ok(ended(seen.asked.as_deref(), outcome, None));
    }
    let Some(config) = seen.pending() else {
        return Ok(ended(None, CancelOutcome::Nothing, None));
    };
    if args.no_wait || args.nodes.mode.dry_run != super::node_selection::DryRunArg::None {
        return Ok(ended(Some(config), CancelOutcome::Asked, None));
    }
    loop {
        let missed = match read_annotations(cluster, node).await {
            Ok(now) => match answer(&now, config) {
                Some((outcome, why)) => return Ok(ended(Some(config), outcome, why)),
                None => None,
            },
            // The request is stored on the Node, so an API server that is temporarily unreachable
            // does not revoke it.
            Err(error) if error.is_retryable() && error.code() != 404 => Some(error),
            Err(error) => return Err(error),
        };
        if !args.timeout.is_zero() && begun.elapsed() >= args.timeout {
            let why = overdue(config, args.timeout, missed.as_ref());
            return Ok(ended(Some(config), CancelOutcome::Asked, Some(why)));
        }
        sleep(NODE_POLL_INTERVAL).await;
    }
}

/// The answer in the Node's annotations, once there is one.
fn answer(now: &UpdateAnnotations, config: &str) -> Option<(CancelOutcome, Option<String>)> {
    if now.cancelled.as_deref() == Some(config) {
        return Some((CancelOutcome::Cancelled, None));
    }
    if let Some(why) = now.refusal(config) {
        let why = format!("cannot cancel the update to {config}: {why}");
        return Some((CancelOutcome::Refused, Some(why)));
    }
    let other = "the request was replaced by another one";
    (now.asked.as_deref() != Some(config)).then(|| (CancelOutcome::Refused, Some(other.to_owned())))
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

fn failed(node: &str, error: &ClusterError) -> NodeCancelResult {
    NodeCancelResult {
        node: node.to_owned(),
        config: None,
        outcome: CancelOutcome::Failed,
        message: Some(chain(error)),
        reason: Some(error.reason()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_request_is_not_repeated_and_is_replaced_for_a_new_config() {
        let standing = |asked: Option<&str>, current: &str| {
            let mut standing = UpdateAnnotations::default();
            standing.desired = Some("new".to_owned());
            standing.current = Some(current.to_owned());
            standing.asked = asked.map(str::to_owned);
            standing
        };
        let new = || Some(Some("new".to_owned()));
        assert_eq!(annotation_value(&standing(None, "old"), false), new());
        assert_eq!(
            annotation_value(&standing(Some("older"), "old"), false),
            new()
        );
        assert_eq!(annotation_value(&standing(Some("new"), "old"), false), None);
        assert_eq!(annotation_value(&standing(None, "new"), false), None);
        assert_eq!(
            annotation_value(&standing(Some("new"), "old"), true),
            Some(None)
        );
        assert_eq!(annotation_value(&standing(None, "old"), true), None);
    }
}
