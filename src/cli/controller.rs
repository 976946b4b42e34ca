//! Implements `machinist controller`, which renders MachineConfigPools and rolls them out.

use std::time::Duration;

use clap::Args;

use super::{
    Exit, Global, daemon,
    node_selection::{self, ClusterArgs},
    start_logging,
};
use machinist_base::{
    clock::Clock,
    shutdown::{ProcessSignals, Tasks},
};
use machinist_controller::ControllerOptions;
use machinist_ignition::ConfigRules;

/// How long the release of the Lease may delay the end.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Flags of `controller`.
#[derive(Debug, Args)]
#[command(after_help = "\
Several processes may run; the one that holds the Lease machinist-system/machinist-controller acts. SIGTERM and ^C release the Lease \
and end the process, a second signal ends it at once.

Examples:
  machinist controller
  machinist controller --kubeconfig ~/.kube/config")]
pub struct ControllerArgs {
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// Name of this process in the Lease
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAME",
        default_value = "machinist-controller"
    )]
    pub identity: String,
    /// The Node that this process runs on, which is updated last
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// A user that configs may manage; may be repeated [default: core, as in OpenShift]
    #[arg(long = "user", value_name = "NAME")]
    pub users: Vec<String>,
    /// A group that configs may create, change or remove; may be repeated [default: none]
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,
}

impl ControllerArgs {
    fn options(&self) -> ControllerOptions {
        let mut rules = ConfigRules::default();
        if !self.users.is_empty() {
            rules.users = self.users.iter().cloned().collect();
        }
        rules.groups = self.groups.iter().cloned().collect();
        ControllerOptions {
            identity: self.identity.clone(),
            node: self.node_name.clone(),
            rules,
        }
    }
}

pub(super) fn run(global: &Global, args: &ControllerArgs) -> anyhow::Result<Exit> {
    start_logging(node_selection::log(global))?;
    let runtime = daemon()?;
    let ended = runtime.block_on(serve(args));
    runtime.shutdown_background();
    ended?;
    Ok(Exit::Done)
}

async fn serve(args: &ControllerArgs) -> anyhow::Result<()> {
    let signals = ProcessSignals::listen()?;
    let cluster = args.reach.cluster().await?;
    let tasks = Tasks::new();
    let acting = machinist_controller::run(cluster, args.options(), Clock::system(), tasks.token());
    tasks.spawn("controller", acting);
    tokio::select! {
        // Both may be dropped: the tasks are ended below.
        () = signals.handle_requests(&tasks, || {}) => return Ok(()),
        () = tasks.stopping() => {}
    }
    tasks.finish(LEASE_RELEASE_TIMEOUT).await?;
    Ok(())
}
