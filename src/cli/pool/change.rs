//! What the commands that change a pool share: their flags, the write, and the line that they print.

use clap::Args;
use serde::Serialize;

use crate::cli::{
    Format, OutputFormatArg,
    fleet::PoolNotFound,
    node_selection::{ClusterArgs, DryRunArg, DryRunMode},
    print_data,
};
use machinist_cluster::{Cluster, fleet_queries, json_patch::JsonPatch, pool_commands};
use machinist_kube_api::PoolView;
use machinist_plan::escape_line;

/// Where a change of a pool is carried out, and how it is printed.
#[derive(Clone, Debug, Args)]
pub struct PoolWriteArgs {
    /// The dry-run mode.
    #[command(flatten)]
    pub mode: DryRunMode,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

impl PoolWriteArgs {
    /// Whether no flag is given.
    pub(in crate::cli) fn is_default(&self) -> bool {
        let is_text = self.printed.output == Format::Text;
        self.mode.dry_run == DryRunArg::None && self.reach.is_silent() && is_text
    }
}

/// The output document of a change.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolChangeOutput<D: Serialize> {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) dry_run: &'static str,
    pub(super) pool: String,
    /// Whether the pool was changed, or would be.
    pub(super) changed: bool,
    /// What was changed, in one line.
    pub(super) message: String,
    #[serde(flatten)]
    pub(super) details: D,
}

/// A document without details.
#[derive(Debug, Serialize)]
pub(super) struct NoDetails {}

impl<D: Serialize> PoolChangeOutput<D> {
    pub(super) fn new(
        kind: &'static str,
        args: &PoolWriteArgs,
        pool: &str,
        (changed, message): (bool, String),
        details: D,
    ) -> Self {
        Self {
            api_version: "machinist.dev/v1",
            kind,
            dry_run: args.mode.dry_run.as_str(),
            pool: pool.to_owned(),
            changed,
            message,
            details,
        }
    }

    /// Prints the line that names the change.
    pub(super) fn print(&self, args: &PoolWriteArgs) -> anyhow::Result<()> {
        let suffix = args.mode.dry_run.suffix();
        print_data(args.printed.output, self, |it| {
            let line = format!("machineconfigpool/{} {}{suffix}", it.pool, it.message);
            escape_line(&line) + "\n"
        })
    }
}

/// Changes a pool as `decide` requests, and returns the version that was decided on.
pub(super) async fn change(
    cluster: &Cluster,
    name: &str,
    args: &PoolWriteArgs,
    decide: impl Fn(&PoolView) -> anyhow::Result<Option<JsonPatch>>,
) -> anyhow::Result<PoolView> {
    let dry_run = args.mode.dry_run.into();
    match pool_commands::change_pool(cluster, name, dry_run, decide).await? {
        Some(pool) => Ok(pool),
        None => Err(PoolNotFound::new(name, fleet_queries::pools(cluster).await?).into()),
    }
}

/// A patch of the version of the pool that was read.
pub(super) fn patch_of(pool: &PoolView) -> JsonPatch {
    JsonPatch::of_version(&pool.uid, &pool.resource_version)
}
