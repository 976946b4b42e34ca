//! Implements `machinist cordon` and `machinist uncordon`.

use clap::Args;
use serde::Serialize;

use super::{
    Exit, Global, OutputFormatArg,
    node_selection::{DryRunArg, SelectedNodes, log},
    output::print_error,
    print_data, short, start_logging_beside_a_page,
};
use machinist_base::error_chain::chain;
use machinist_cluster::node_commands::{self, CordonRequest, PreviousCordon};

/// Flags of `cordon`.
#[derive(Debug, Args)]
#[command(after_help = "\
No agent lifts this cordon. A node that is already cordoned for an update is uncordoned when the update is \
complete, unless --keep is given.

Examples:
  machinist cordon worker-1
  machinist cordon --keep worker-1
  machinist cordon -l topology.kubernetes.io/zone=b --dry-run")]
pub struct CordonArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: SelectedNodes,
    /// Keep the node cordoned after a running update as well
    #[arg(long)]
    pub keep: bool,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// Flags of `uncordon`.
#[derive(Debug, Args)]
#[command(after_help = "\
Also reverts `cordon --keep`. A node that an update requires cordoned is cordoned again once.

Example:
  machinist uncordon worker-1")]
pub struct UncordonArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: SelectedNodes,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// The result for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeCordonResult {
    node: String,
    changed: bool,
    held_by_agent: bool,
    message: Option<String>,
    reason: Option<machinist_base::reason::Reason>,
}

/// The output document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CordonOutput {
    api_version: &'static str,
    kind: &'static str,
    dry_run: &'static str,
    nodes: Vec<NodeCordonResult>,
}

pub(super) fn cordon(global: &Global, args: &CordonArgs) -> anyhow::Result<Exit> {
    let wish = CordonRequest::Cordon { keep: args.keep };
    run(global, &args.nodes, wish, args.printed)
}

pub(super) fn uncordon(global: &Global, args: &UncordonArgs) -> anyhow::Result<Exit> {
    run(global, &args.nodes, CordonRequest::Uncordon, args.printed)
}

fn run(
    global: &Global,
    nodes: &SelectedNodes,
    wish: CordonRequest,
    printed: OutputFormatArg,
) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let set = short()?.block_on(set(nodes, wish))?;
    let failed = set.iter().any(|node| node.reason.is_some());
    for node in set.iter().filter(|node| node.reason.is_some()) {
        print_error(node.message.as_deref().unwrap_or_default());
    }
    let answer = CordonOutput {
        api_version: "machinist.dev/v1",
        kind: match wish {
            CordonRequest::Cordon { .. } => "Cordon",
            CordonRequest::Uncordon => "Uncordon",
        },
        dry_run: nodes.mode.dry_run.as_str(),
        nodes: set,
    };
    print_data(printed.output, &answer, |answer| {
        page(answer, wish, nodes.mode.dry_run)
    })?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Processes the nodes one after the other; a failure does not stop the others.
async fn set(nodes: &SelectedNodes, wish: CordonRequest) -> anyhow::Result<Vec<NodeCordonResult>> {
    let cluster = nodes.cluster().await?;
    let mut all = Vec::new();
    for node in nodes.names(&cluster).await? {
        let done =
            node_commands::apply_cordon(&cluster, &node, wish, nodes.mode.dry_run.into()).await;
        let before = done.as_ref().ok();
        all.push(NodeCordonResult {
            changed: before.is_some_and(|before| !before.settled),
            held_by_agent: before.is_some_and(|before| before.held_by_agent),
            message: match &done {
                Ok(before) => hint(*before, wish),
                Err(error) => Some(chain(error)),
            },
            reason: done
                .as_ref()
                .err()
                .map(machinist_cluster::ClusterError::reason),
            node,
        });
    }
    Ok(all)
}

/// A hint about an effect that the user might not expect.
fn hint(before: PreviousCordon, wish: CordonRequest) -> Option<String> {
    let hint = match wish {
        CordonRequest::Cordon { keep: false } if before.held_by_agent && !before.kept => {
            "cordoned for an update and uncordoned when it is complete; to keep it cordoned, use --keep"
        }
        CordonRequest::Uncordon if before.held_by_agent => {
            "cordoned for an update: the agent cordons it again once; if it is uncordoned again, the agent pauses its drain"
        }
        CordonRequest::Cordon { .. } | CordonRequest::Uncordon => return None,
    };
    Some(hint.to_owned())
}

fn page(answer: &CordonOutput, wish: CordonRequest, dry_run: DryRunArg) -> String {
    let done = match wish {
        CordonRequest::Cordon { .. } => "cordoned",
        CordonRequest::Uncordon => "uncordoned",
    };
    let nodes = answer.nodes.iter().filter(|node| node.reason.is_none());
    let lines = nodes.map(|node| {
        let already = if node.changed { "" } else { "already " };
        let hint = node.message.as_ref().map(|hint| format!(": {hint}"));
        let suffix = dry_run.suffix();
        let hint = hint.unwrap_or_default();
        format!("node/{} {already}{done}{suffix}{hint}\n", node.node)
    });
    lines.collect()
}
