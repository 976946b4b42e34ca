//! Commands on MachineConfigPools: their rollouts are shown, explained, estimated, paused, resumed and rolled back.
//!
//! They run on any machine with a kubeconfig. What they show beyond the published state is the result of
//! `machinist_pool::decide`, the function that the controller acts on.

mod change;
mod controller_report;
mod decision;
mod drain_blockers;
mod estimate;
mod explain;
mod findings;
mod grants;
mod hold_advice;
mod manifests;
mod pause;
mod phase_times;
mod plan;
mod plan_policies;
mod release_grant;
mod render;
mod report;
mod rollback;
mod rollback_plan;
mod rollout_estimate;
mod rollout_plan;
mod rollout_plan_page;
mod skip;
mod watch;

use clap::Args;

pub use change::PoolWriteArgs;
pub use estimate::EstimateArgs;
pub use pause::{PauseArgs, ResumeArgs};
pub use release_grant::ReleaseGrantArgs;
pub use skip::SkipArgs;

pub(super) use estimate::run as estimate;
pub(super) use explain::run as explain;
pub(super) use pause::{pause, resume};
pub(super) use plan::{PoolPlanRequest, run as plan};
pub(super) use release_grant::run as release_grant;
pub(super) use rollback::run as roll_back;
pub(super) use rollback_plan::PoolRollback;
pub(super) use skip::run as skip;

use super::{
    Exit, Global, OutputFormatArg,
    node_selection::{ClusterArgs, log},
    selector, short, start_logging_beside_a_page,
};

/// Flags of `pool`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the target of a pool, how many nodes are on it, and each node with its state, grant and blockers; all pools \
if no name is given. With --watch, prints the page again after each change until ^C.

Examples:
  machinist pool
  machinist pool worker
  machinist pool worker --watch
  machinist pool worker -o json")]
pub struct PoolArgs {
    /// The pool [default: all, one line each]
    #[arg(value_name = "NAME", value_parser = selector::pool)]
    pub name: Option<String>,
    /// Print the page again after each change
    #[arg(short, long)]
    pub watch: bool,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &PoolArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    short()?.block_on(async {
        let cluster = args.reach.cluster().await?;
        let name = args.name.as_deref();
        watch::show(&cluster, name, args.printed, args.watch).await?;
        Ok(Exit::Done)
    })
}
