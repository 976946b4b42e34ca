//! Implements `machinist skip`: leaves a node out of the present rollout of its pool.

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::{
    change::PoolWriteArgs,
    grants::{GrantState, NodeGrant, grants_by_node},
    rollback_plan::target_of,
};
use crate::cli::{
    Exit, Global, node_selection::log, print_data, selector, short, start_logging_beside_a_page,
};
use machinist_cluster::{Cluster, fleet_queries, json_patch::JsonPatch, node_changes::change_node};
use machinist_kube_api::{NodeView, PoolView, keys::annotation};
use machinist_plan::escape_line;
use machinist_pool::split;

/// Flags of `skip`.
#[derive(Debug, Args)]
#[command(after_help = "\
The node keeps its config, and the other nodes of its pool are updated without it. The skip is for the config that \
the pool rolls out now: the next one is rolled out to the node again. A grant is withdrawn, unless the agent has acknowledged it.

Examples:
  machinist skip worker-3
  machinist skip worker-3 --dry-run
  machinist skip worker-3 --undo")]
pub struct SkipArgs {
    /// The node
    #[arg(value_name = "NODE", value_parser = selector::node)]
    pub node: String,
    /// No longer skip the node: it is updated when its turn comes
    #[arg(long)]
    pub undo: bool,
    /// The write.
    #[command(flatten)]
    pub write: PoolWriteArgs,
}

/// The output document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeSkipOutput {
    api_version: &'static str,
    kind: &'static str,
    dry_run: &'static str,
    node: String,
    /// The pool of the node; none if it is in no pool.
    pool: Option<String>,
    /// The config that the pool rolls out; none if none has been rendered.
    target: Option<String>,
    /// Whether the Node was changed, or would be.
    changed: bool,
    /// The grant that the node has now.
    grant: Option<NodeGrant>,
    /// What was changed, in one line.
    message: String,
}

/// A node with what its skip depends on.
struct SkippedNode<'a> {
    node: &'a NodeView,
    pool: Option<String>,
    target: Option<String>,
}

pub(in crate::cli) fn run(global: &Global, args: &SkipArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let (pools, node) = short()?.block_on(async {
        let cluster = args.write.reach.cluster().await?;
        write(&cluster, args).await
    })?;
    let found = SkippedNode::of(&pools, &node);
    let changed = found.patch(args.undo)?.is_some();
    let grant = grants_by_node(&pools, std::slice::from_ref(&node));
    let grant = grant.by_node.get(&node.name).cloned();
    let output = NodeSkipOutput {
        api_version: "machinist.dev/v1",
        kind: "Skip",
        dry_run: args.write.mode.dry_run.as_str(),
        node: node.name.clone(),
        message: match args.undo {
            true => found.undo_message(),
            false => found.message(changed, grant.as_ref()),
        },
        pool: found.pool,
        target: found.target,
        changed,
        grant,
    };
    let suffix = args.write.mode.dry_run.suffix();
    print_data(args.write.printed.output, &output, |it| {
        escape_line(&format!("node/{} {}{suffix}", it.node, it.message)) + "\n"
    })?;
    Ok(Exit::Done)
}

/// Writes the annotation. Returns what the decision was made on.
async fn write(cluster: &Cluster, args: &SkipArgs) -> anyhow::Result<(Vec<PoolView>, NodeView)> {
    let pools = fleet_queries::pools(cluster).await?;
    let decide = |node: &NodeView| SkippedNode::of(&pools, node).patch(args.undo);
    let node = change_node(cluster, &args.node, args.write.mode.dry_run.into(), decide).await?;
    Ok((pools, node))
}

impl<'a> SkippedNode<'a> {
    fn of(pools: &[PoolView], node: &'a NodeView) -> Self {
        let split = split(pools, std::slice::from_ref(node));
        let mut members = split.pools.iter().filter(|it| !it.nodes.is_empty());
        let pool = members.next().map(|it| it.pool.name.clone());
        let target = pool.as_ref().and_then(|pool| target_of(pools, pool));
        Self { node, pool, target }
    }

    /// The config whose rollout skips the node.
    fn skips(&self) -> Option<&str> {
        self.node.annotation(annotation::SKIP_ROLLOUT)
    }

    fn is_on(&self, target: &str) -> bool {
        let on = [self.node.current_config(), self.node.desired_config()];
        on == [Some(target); 2]
    }

    /// The patch that skips the node or ends that; `None` if nothing is to be written.
    fn patch(&self, undo: bool) -> anyhow::Result<Option<JsonPatch>> {
        let node = self.node;
        let mut patch = JsonPatch::of_version(&node.uid, &node.resource_version);
        if undo {
            let known = node.annotations.contains_key(annotation::SKIP_ROLLOUT);
            patch.annotations(node.has_annotations, [(annotation::SKIP_ROLLOUT, None)]);
            return Ok(known.then_some(patch));
        }
        let Some(pool) = &self.pool else {
            bail!(
                "node {} is in no MachineConfigPool, so that no rollout includes it",
                node.name
            );
        };
        let Some(target) = self.target.as_deref() else {
            bail!(
                "MachineConfigPool {pool} has no rendered config yet, so that there is no rollout to skip"
            );
        };
        if self.skips() == Some(target) || self.is_on(target) {
            return Ok(None);
        }
        patch.annotations(
            node.has_annotations,
            [(annotation::SKIP_ROLLOUT, Some(target))],
        );
        Ok(Some(patch))
    }

    fn message(&self, changed: bool, grant: Option<&NodeGrant>) -> String {
        let pool = self.pool.as_deref().unwrap_or_default();
        let target = self.target.as_deref().unwrap_or_default();
        if !changed && self.skips() != Some(target) {
            return format!("not skipped: it is on {target} already");
        }
        let already = if changed { "" } else { "already " };
        let keeps = match self.node.current_config() {
            Some(config) => format!("keeps {config}"),
            None => "keeps its config".to_owned(),
        };
        let name = &self.node.name;
        let held = grant.and_then(|grant| grant_text(grant, name));
        let held = held.map_or_else(String::new, |text| format!("; {text}"));
        format!(
            "{already}skipped: it {keeps}, and pool {pool} rolls out {target} to its other nodes; ends with machinist \
             skip {name} --undo, or with the pool's next config{held}"
        )
    }

    fn undo_message(&self) -> String {
        let Some(skipped) = self.node.annotations.get(annotation::SKIP_ROLLOUT) else {
            return "was not skipped".to_owned();
        };
        let Some(target) = self.target.as_deref() else {
            return format!("no longer skipped in the rollout of {skipped}");
        };
        match skipped == target {
            true if self.is_on(target) => format!("no longer skipped: it is on {target}"),
            true => format!("no longer skipped: it updates to {target} when its turn comes"),
            false => format!(
                "no longer marked to skip {skipped}; that had no effect on the rollout of {target}"
            ),
        }
    }
}

/// What becomes of a grant that the node has; none if it no longer lets an update begin.
fn grant_text(grant: &NodeGrant, node: &str) -> Option<String> {
    let rest = match grant.state {
        GrantState::Acknowledged => format!(
            "which is not withdrawn: the agent completes this update, unless it can still be cancelled: \
             machinist cancel {node}"
        ),
        GrantState::Recorded | GrantState::Placed => {
            "which the controller withdraws, unless the agent acknowledges it before".to_owned()
        }
        GrantState::Unlisted | GrantState::Occupied | GrantState::Unreadable => format!(
            "which is not withdrawn: the agent may still begin this update, unless it is cancelled: \
             machinist cancel {node}"
        ),
        GrantState::Ended | GrantState::Recreated | GrantState::NodeMissing => return None,
    };
    let (id, state) = (&grant.id, grant.state.as_str());
    Some(format!("it has grant {id} ({state}), {rest}"))
}
