//! Implements `machinist release-grant`: declares the slot of a grant free whose node cannot end it.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    change::{PoolChangeOutput, PoolWriteArgs, change, patch_of},
    grants::{GrantState, NodeGrant, listed},
};
use crate::cli::{Exit, Global, node_selection::log, selector, short, start_logging_beside_a_page};
use machinist_base::{clock::Clock, error_chain::chain};
use machinist_cluster::{Cluster, fleet_queries, json_patch::JsonPatch};
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};
use machinist_pool::{AGENT_SILENCE_LIMIT, PoolGrants, age, open_grant};

/// Flags of `release-grant`.
#[derive(Debug, Args)]
#[command(after_help = "\
A grant holds a slot of maxUnavailable until the node's agent ends it. This command frees the slot if no agent will: \
the Node of a control plane machine is gone for good, or the agent was uninstalled. Refused while the agent reports, \
because the node may be draining or rebooting, so that one node too many could become unavailable.

Examples:
  machinist release-grant control-plane-2
  machinist release-grant worker-3 --dry-run")]
pub struct ReleaseGrantArgs {
    /// The node
    #[arg(value_name = "NODE", value_parser = selector::node)]
    pub node: String,
    /// Release it although the agent of the node reports
    #[arg(long)]
    pub force: bool,
    /// The write.
    #[command(flatten)]
    pub write: PoolWriteArgs,
}

/// Why a grant is not released.
#[derive(Debug, thiserror::Error)]
enum ReleaseError {
    #[error("no pool lists a grant of node {node}{unlisted}")]
    NoGrant { node: String, unlisted: String },
    #[error(
        "grant {id} of node {node} is {state}, and its agent reported {heard} ago: the agent ends it; to free the slot \
         although the node may be draining or rebooting: --force"
    )]
    AgentReports {
        id: String,
        node: String,
        state: &'static str,
        heard: String,
    },
}

/// The released grants, for the output document.
#[derive(Debug, Serialize)]
struct ReleasedGrants {
    node: String,
    grants: Vec<NodeGrant>,
}

pub(in crate::cli) fn run(global: &Global, args: &ReleaseGrantArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let now = Clock::system().now();
    short()?.block_on(release(args, now))?;
    Ok(Exit::Done)
}

async fn release(args: &ReleaseGrantArgs, now: Timestamp) -> anyhow::Result<()> {
    let cluster = args.write.reach.cluster().await?;
    let pools = fleet_queries::pools(&cluster).await?;
    let node = existing_node(&cluster, &args.node).await?;
    let mut found = Vec::new();
    for pool in &pools {
        let grants = grants_of(pool, &args.node, node.as_ref())?;
        if !grants.is_empty() {
            found.push((pool.name.as_str(), grants));
        }
    }
    if found.is_empty() {
        return Err(no_grant(&args.node, node.as_ref()).into());
    }
    if !args.force {
        for grant in found.iter().flat_map(|(_, grants)| grants) {
            check_agent(grant, node.as_ref(), now)?;
        }
    }
    for (pool, grants) in found {
        let decide = |pool: &PoolView| Ok(release_patch(pool, &grants));
        let before = change(&cluster, pool, &args.write, decide).await?;
        let changed = release_patch(&before, &grants).is_some();
        let done = (changed, message(args, &grants, changed, node.as_ref()));
        let details = ReleasedGrants {
            node: args.node.clone(),
            grants,
        };
        PoolChangeOutput::new("ReleaseGrant", &args.write, pool, done, details)
            .print(&args.write)?;
    }
    Ok(())
}

/// The Node; none if it does not exist.
async fn existing_node(cluster: &Cluster, name: &str) -> anyhow::Result<Option<NodeView>> {
    match fleet_queries::node(cluster, name).await {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The grants of a node that a pool lists.
fn grants_of(
    pool: &PoolView,
    node: &str,
    view: Option<&NodeView>,
) -> anyhow::Result<Vec<NodeGrant>> {
    let text = pool.annotations.get(pool_annotation::GRANTS);
    let all = PoolGrants::parse(&pool.name, text.map(String::as_str))?;
    let grants = all.unwrap_or_default().grants.into_iter();
    let own = grants.filter(|grant| grant.node == node);
    Ok(own.map(|grant| listed(&grant, &pool.name, view)).collect())
}

fn no_grant(name: &str, node: Option<&NodeView>) -> ReleaseError {
    let unlisted = match node.map(open_grant) {
        None => "; the Node does not exist".to_owned(),
        Some(Ok(None)) => String::new(),
        Some(Ok(Some(grant))) => format!("; the Node has grant {}, which no pool lists", grant.id),
        Some(Err(error)) => format!("; {}", chain(&error)),
    };
    ReleaseError::NoGrant {
        node: name.to_owned(),
        unlisted,
    }
}

/// An agent that reports ends the grant itself. One of a Node that was created again inherits it.
fn check_agent(
    grant: &NodeGrant,
    node: Option<&NodeView>,
    now: Timestamp,
) -> Result<(), ReleaseError> {
    let heard = node.and_then(NodeView::agent_heartbeat);
    let Some(heard) = heard.filter(|it| now.duration_since(*it) < AGENT_SILENCE_LIMIT) else {
        return Ok(());
    };
    Err(ReleaseError::AgentReports {
        id: grant.id.clone(),
        node: grant.node.clone(),
        state: grant.state.as_str(),
        heard: age(heard, now),
    })
}

/// The patch that adds the IDs to those of earlier releases; `None` if they are among them.
fn release_patch(pool: &PoolView, grants: &[NodeGrant]) -> Option<JsonPatch> {
    let known = pool.annotation(pool_annotation::RELEASED_GRANTS);
    let known = known.unwrap_or_default().split(',').map(str::trim);
    let known: Vec<&str> = known.filter(|id| !id.is_empty()).collect();
    let new = grants.iter().map(|grant| grant.id.as_str());
    let new: Vec<&str> = new.filter(|id| !known.contains(id)).collect();
    if new.is_empty() {
        return None;
    }
    let all = [known, new].concat().join(",");
    let mut patch = patch_of(pool);
    let change = (pool_annotation::RELEASED_GRANTS, Some(all.as_str()));
    patch.annotations(pool.has_annotations, [change]);
    Some(patch)
}

fn message(
    args: &ReleaseGrantArgs,
    grants: &[NodeGrant],
    changed: bool,
    node: Option<&NodeView>,
) -> String {
    let ids: Vec<&str> = grants.iter().map(|grant| grant.id.as_str()).collect();
    let ids = ids.join(", ");
    let done = match changed {
        true => format!("released grant {ids} of node {}", args.node),
        false => format!("grant {ids} of node {} was released before", args.node),
    };
    let has_grant = node.is_some() && grants.iter().any(|it| it.state != GrantState::Recorded);
    let keeps = node.is_some_and(|node| open_grant(node).ok().flatten().is_some());
    match has_grant && keeps {
        true => {
            format!("{done}; the Node still has it and counts as unavailable until it is removed")
        }
        false => done,
    }
}
