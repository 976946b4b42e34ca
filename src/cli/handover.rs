//! What `adopt` and `release` share: the Node of this machine, and what stands in the way.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use tokio::runtime::Runtime;

use super::{config::Context, output::warn, short};
use crate::{
    agent::{self, HandedNode},
    cluster::{Access, ClusterError, Surroundings, cancel::Standing},
    reason::Reason,
    telemetry::chain,
    update::handover::HandoverError,
};

/// The cluster of the machine, and whether a person is asked.
#[derive(Debug, Args)]
pub struct Handover {
    /// Reaches the machine's cluster [default: cluster.kubeconfig of the settings, KUBECONFIG, the pod; none: only this machine is asked]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Go on though the disk is not as the config asks
    #[arg(long)]
    pub force: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// What the cluster says of this machine's Node; none where there is no cluster, or nobody answers.
pub(super) struct Told {
    /// A connection lives as long as the runtime that it was made in.
    runtime: Runtime,
    pub(super) node: HandedNode,
    pub(super) standing: Standing,
}

impl Handover {
    /// Asks the cluster. One that does not answer keeps nobody from handing over: the machine knows what it
    /// is on, and the Node is told when somebody can.
    pub(super) fn ask(&self, context: &Context) -> anyhow::Result<Option<Told>> {
        let surroundings = Surroundings {
            flag: self.kubeconfig.clone(),
            ..super::config::surroundings(true)
        };
        // The flag precedes the settings, as everywhere.
        let access = match &self.kubeconfig {
            Some(_) => Access::of_agent(&surroundings),
            None => agent::access(&context.root, &context.settings, &surroundings),
        };
        let Some(access) = access else {
            return Ok(None);
        };
        let runtime = short()?;
        let node = runtime.block_on(HandedNode::of(access, &context.settings))?;
        match runtime.block_on(node.standing()) {
            Ok(standing) => Ok(Some(Told {
                runtime,
                node,
                standing,
            })),
            Err(error) if is_away(&error) => {
                let name = node.name();
                warn(&format!(
                    "{}; what Node {name} says is neither compared nor changed",
                    chain(&error)
                ));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Told {
    /// Waits for what is asked of the cluster.
    pub(super) fn wait<T>(&self, asked: impl Future<Output = T>) -> T {
        self.runtime.block_on(asked)
    }

    /// Refuses while the node is to be on another config than `config`.
    pub(super) fn wants_no_other(&self, config: &str) -> anyhow::Result<()> {
        let (name, standing) = (self.node.name(), &self.standing);
        match standing.desired.as_deref() {
            Some(desired) if desired != config => bail!(
                "Node {name} is to be on {desired} and the disk is on {config}: let that update end, or set desiredConfig to {config}, first"
            ),
            _ => Ok(()),
        }
    }

    /// Refuses while the Node says that it is on another config than `config`: its daemon would begin an
    /// update.
    pub(super) fn says_no_other(&self, config: &str) -> anyhow::Result<()> {
        let (name, standing) = (self.node.name(), &self.standing);
        match standing.current.as_deref() {
            Some(current) if current != config => bail!(
                "Node {name} says that it is on {current}, and the disk is on {config}: let its daemon settle that first"
            ),
            _ => Ok(()),
        }
    }

    /// Refuses while machine-config-daemon is on the node.
    pub(super) fn has_no_other_daemon(&self) -> anyhow::Result<()> {
        match self.wait(self.node.other_daemon()) {
            Ok(Some(pod)) => {
                bail!("machine-config-daemon is on this node as pod {pod}: take it off first")
            }
            Ok(None) => Ok(()),
            Err(error) => {
                warn(&format!(
                    "{}; only the processes of this machine are looked at",
                    chain(&error)
                ));
                Ok(())
            }
        }
    }
}

/// Refuses while machine-config-daemon runs on this machine.
pub(super) fn runs_no_other_daemon(context: &Context) -> anyhow::Result<()> {
    match agent::other_daemon(&context.root)? {
        Some(seen) => bail!("{seen}: take it off this node first"),
        None => Ok(()),
    }
}

/// The state cannot be had while an agent has it.
pub(super) fn unlocked<T>(done: Result<T, HandoverError>) -> anyhow::Result<T> {
    match done {
        Err(HandoverError::Store(error @ crate::update::store::StoreError::Locked { .. })) => {
            let how = "stop the agent of this machine meanwhile";
            Err(anyhow::Error::new(error).context(how))
        }
        done => Ok(done?),
    }
}

fn is_away(error: &ClusterError) -> bool {
    error.reason() == Reason::ApiServerUnreachable
}
