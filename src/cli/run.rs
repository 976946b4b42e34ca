//! Implements `machinist run`, which runs the agent.

use std::{io::IsTerminal as _, net::SocketAddr};

use clap::Args;

use super::{
    Exit, Global,
    args::{owners_flag, role_flag, source_flag},
    config_context::ConfigContext,
    daemon, print, start_logging,
};
use machinist_agent::{AgentSetup, ConfigOrigin};
use machinist_plan::Plan;
use machinist_status::settings::{Fragment, Owners, SourceSetting};

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Probes and metrics: /livez, /readyz, /readyz/agent and /metrics on the port above. \
SIGTERM and ^C end it within a second, a second signal at once; SIGHUP reloads the settings.

Examples:
  machinist run
  machinist run --root ./sandbox --source dir:examples/machine")]
pub struct RunArgs {
    /// Source of configs: dir:PATH, cluster or auto [default: source of the settings, auto]
    #[arg(long, value_name = "SOURCE", value_parser = SourceSetting::from_flag)]
    pub source: Option<SourceSetting>,
    /// The roles of the machine, such as worker,infra; MachineConfigs of other roles in the
    /// directory are skipped [default: source.role of the settings]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<String>,
    /// Kubeconfig for the API server [default: cluster.kubeconfig of the settings, the pod's
    /// account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// The name of this machine's Node [default: cluster.node of the settings, the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// The UID of the pod that this process runs in, which is never evicted
    #[arg(long, value_name = "UID", env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// How to handle file owners: auto, set or record [default: owners of the settings, auto]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub owners: Option<Owners>,
    /// Address of probes and metrics [default: 127.0.0.1:10480, or the next free port]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
}

impl RunArgs {
    /// The settings that the flags set.
    pub fn flags(&self) -> Fragment {
        let flags = source_flag(Fragment::default(), self.source.as_ref());
        let flags = role_flag(flags, &self.role);
        let flags = owners_flag(flags, self.owners);
        let flags = given(
            flags,
            "--kubeconfig",
            "cluster.kubeconfig",
            &self.kubeconfig,
        );
        let flags = given(flags, "--node-name", "cluster.node", &self.node_name);
        match self.admin {
            Some(listen) => flags.with_flag("--admin", "admin.listen", listen.to_string()),
            None => flags,
        }
    }
}

fn given(flags: Fragment, flag: &str, key: &str, value: &Option<String>) -> Fragment {
    match value {
        Some(value) => flags.with_flag(flag, key, value),
        None => flags,
    }
}

pub(super) fn run(global: &Global, args: &RunArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, args.flags(), true)?;
    start_logging(context.settings.log)?;
    let source = context.origin(args.pod_uid.clone())?;
    let ConfigContext {
        root,
        mut place,
        mut settings,
    } = context;
    if matches!(source, ConfigOrigin::Directory(_)) && place.pool.take().is_some() {
        // A machine whose source is a directory is no longer in a pool.
        machinist_agent::pool_settings::remove_stored_pool(&root)?;
        settings = place.read()?;
    }
    let show = if root.is_live() && !std::io::stdout().is_terminal() {
        keep_quiet
    } else {
        show
    };
    let setup = AgentSetup {
        root,
        place,
        settings,
        source,
    };
    let runtime = daemon()?;
    let ended = runtime.block_on(machinist_agent::run(setup, show));
    // Do not wait for tasks that block in the kernel or on a pipe without a reader.
    runtime.shutdown_background();
    ended?;
    Ok(Exit::Done)
}

fn show(plan: &Plan) {
    // stdout is closed: the plan is carried out anyway.
    let _ = print(&plan.to_text(true));
}

/// Prints no plan: under systemd the log records the update, and `machinist plan` shows the plan.
fn keep_quiet(_: &Plan) {}
