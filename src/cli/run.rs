//! `machinist run`.

use std::{io::IsTerminal as _, net::SocketAddr};

use clap::Args;

use super::{
    Exit, Global,
    args::{owners_flag, role_flag, source_flag},
    config::Context,
    daemon, print, start_logging,
};
use crate::{
    agent::{self, Origin, Setup},
    config::{Fragment, Owners, Source},
    plan::Plan,
};

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Probes and metrics: /livez, /readyz, /readyz/agent and /metrics on the port above. \
SIGTERM and ^C end it within a second, a second one at once; SIGHUP reads the settings anew.

Examples:
  machinist run
  machinist run --root ./sandbox --source dir:examples/machine")]
pub struct RunArgs {
    /// Where configs come from: dir:PATH, cluster or auto [default: source of the settings, auto]
    #[arg(long, value_name = "SOURCE", value_parser = Source::from_flag)]
    pub source: Option<Source>,
    /// The roles of the machine, such as worker,infra; MachineConfigs of others in the directory are left
    /// out [default: source.role of the settings]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<String>,
    /// How the API server is reached [default: cluster.kubeconfig of the settings, the pod's account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// The Node that this machine is [default: cluster.node of the settings, the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// The pod that this process runs in, which is never evicted
    #[arg(long, value_name = "UID", env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Whose files are made: auto, set or record [default: owners of the settings, auto]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub owners: Option<Owners>,
    /// Address of probes and metrics [default: 127.0.0.1:10480, or the next free port]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
}

impl RunArgs {
    /// What the flags say about settings.
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
    let context = Context::open(global, args.flags(), true)?;
    start_logging(context.settings.log)?;
    let source = context.origin(args.pod_uid.clone())?;
    let Context {
        root,
        mut place,
        mut settings,
    } = context;
    if matches!(source, Origin::Directory(_)) && place.pool.take().is_some() {
        // A machine that follows a directory is in no pool any more.
        agent::pool::forget(&root)?;
        settings = place.read()?;
    }
    let show = if root.is_live() && !std::io::stdout().is_terminal() {
        keep_quiet
    } else {
        show
    };
    let setup = Setup {
        root,
        place,
        settings,
        source,
    };
    let runtime = daemon()?;
    let ended = runtime.block_on(agent::run(setup, show));
    // What hangs in the kernel, or in a pipe that nobody reads, does not keep the process.
    runtime.shutdown_background();
    ended?;
    Ok(Exit::Done)
}

fn show(plan: &Plan) {
    // Nobody reads: the plan is carried out all the same.
    let _ = print(&plan.to_text(true));
}

/// In the journal of a machine the log tells the story; `machinist plan` shows the plan.
fn keep_quiet(_: &Plan) {}
