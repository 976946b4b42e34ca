//! Implements `machinist controller`, which renders MachineConfigPools and rolls them out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use clap::Args;

use super::{
    Exit, Global, daemon,
    node_selection::{self, ClusterArgs},
    notify_args::NotifyArgs,
    plan, start_logging,
};
use machinist_agent::admin::{self, ProcessProbes};
use machinist_base::{
    clock::Clock,
    shutdown::{ProcessSignals, Tasks},
};
use machinist_controller::{ControllerMonitor, ControllerOptions};
use machinist_status::settings::AdminSettings;

/// How long the release of the Lease may delay the end.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The default of `--listen`: the port after the agent's.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10481);

/// Flags of `controller`.
#[derive(Debug, Args)]
#[command(after_help = "\
Several processes may run; the one that holds the Lease machinist-system/machinist-controller acts. SIGTERM and ^C release the Lease \
and end the process, a second signal ends it at once.

Examples:
  machinist controller
  machinist controller --listen [::]:10481
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
    /// The OperatorCondition in the pod's namespace whose condition Upgradeable is kept; set by OLM
    #[arg(long, value_name = "NAME", env = "OPERATOR_CONDITION_NAME")]
    pub operator_condition: Option<String>,
    /// Address of /healthz, /readyz and /metrics [default: 127.0.0.1:10481, or the next free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// A user that configs may manage; may be repeated [default: core, as in OpenShift]
    #[arg(long = "user", value_name = "NAME")]
    pub users: Vec<String>,
    /// A group that configs may create, change or remove; may be repeated [default: none]
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,
    /// Notifications of rollouts.
    #[command(flatten)]
    pub notify: NotifyArgs,
}

impl ControllerArgs {
    fn options(&self) -> anyhow::Result<ControllerOptions> {
        Ok(ControllerOptions {
            identity: self.identity.clone(),
            node: self.node_name.clone(),
            rules: plan::rules(&self.users, &self.groups),
            operator_condition: self.operator_condition.clone(),
            webhook: self.notify.webhook()?,
        })
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
    let options = args.options()?;
    let signals = ProcessSignals::listen()?;
    let cluster = args.reach.cluster().await?;
    let tasks = Tasks::new();
    let monitor = ControllerMonitor::new();
    let address = AdminSettings {
        listen: args.listen.unwrap_or(DEFAULT_ADDRESS),
        chosen: args.listen.is_some(),
    };
    let listener = admin::bind_named(address, "--listen")?;
    tracing::info!(
        "serving probes and metrics at http://{}",
        listener.local_addr()?
    );
    let routes = admin::process_routes(Arc::new(Probes(monitor.clone())));
    tasks.spawn("port", admin::serve(listener, routes, tasks.token()));
    let clock = Clock::system();
    let acting = machinist_controller::run(cluster, options, monitor, clock, tasks.token());
    tasks.spawn("controller", acting);
    tokio::select! {
        // Both may be dropped: the tasks are ended below.
        () = signals.handle_requests(&tasks, || {}) => return Ok(()),
        () = tasks.stopping() => {}
    }
    tasks.finish(LEASE_RELEASE_TIMEOUT).await?;
    Ok(())
}

/// The state of this process for its port.
#[derive(Debug)]
struct Probes(ControllerMonitor);

impl ProcessProbes for Probes {
    fn healthy(&self) -> Result<String, String> {
        self.0.healthy()
    }

    fn ready(&self) -> Result<String, String> {
        self.0.ready()
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.0.metrics()
    }
}
