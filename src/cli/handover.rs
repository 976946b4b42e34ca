//! Provides what `adopt` and `release` share: the Node of this machine, and the checks before a
//! handover.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use tokio::runtime::Runtime;

use super::{config_context::ConfigContext, output::warn, short};
use machinist_agent::HandoverNode;
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::{
    ClusterAccess, ClusterEnv, ClusterError, update_cancel::UpdateAnnotations,
};
use machinist_update::handover::HandoverError;

/// The cluster of the machine, and whether the user is asked for confirmation.
#[derive(Debug, Args)]
pub struct Handover {
    /// Kubeconfig of the machine's cluster [default: cluster.kubeconfig of the settings, KUBECONFIG,
    /// the pod; without any only this machine is checked]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Continue although the disk differs from the config
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// The state of this machine's Node; none if there is no cluster, or if it does not respond.
pub(super) struct NodeStanding {
    /// A connection lives only as long as the runtime it was created in.
    runtime: Runtime,
    pub(super) node: HandoverNode,
    pub(super) standing: UpdateAnnotations,
}

impl Handover {
    /// Queries the cluster. An unreachable cluster does not block a handover: the machine knows its
    /// own config, and the Node is updated later.
    pub(super) fn query_cluster(
        &self,
        context: &ConfigContext,
    ) -> anyhow::Result<Option<NodeStanding>> {
        let surroundings = ClusterEnv {
            flag: self.kubeconfig.clone(),
            ..super::config_context::cluster_env(true)
        };
        // The flag takes precedence over the settings, as everywhere.
        let access = match &self.kubeconfig {
            Some(_) => ClusterAccess::of_agent(&surroundings),
            None => machinist_agent::access(&context.root, &context.settings, &surroundings),
        };
        let Some(access) = access else {
            return Ok(None);
        };
        let runtime = short()?;
        let node = runtime.block_on(HandoverNode::of(access, &context.settings))?;
        match runtime.block_on(node.update_annotations()) {
            Ok(standing) => Ok(Some(NodeStanding {
                runtime,
                node,
                standing,
            })),
            Err(error) if is_unreachable(&error) => {
                let name = node.name();
                warn(&format!(
                    "{}; the annotations of Node {name} are neither compared nor changed",
                    chain(&error)
                ));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl NodeStanding {
    /// Runs a request to the cluster to completion.
    pub(super) fn wait<T>(&self, asked: impl Future<Output = T>) -> T {
        self.runtime.block_on(asked)
    }

    /// Refuses if the node's desired config is not `config`.
    pub(super) fn check_desired_config(&self, config: &str) -> anyhow::Result<()> {
        let (name, standing) = (self.node.name(), &self.standing);
        match standing.desired.as_deref() {
            Some(desired) if desired != config => bail!(
                "Node {name} has desired config {desired}, but the disk has {config}: wait for that update, or set desiredConfig to {config}"
            ),
            _ => Ok(()),
        }
    }

    /// Refuses if the Node's current config is not `config`: machine-config-daemon would start an
    /// update.
    pub(super) fn check_current_config(&self, config: &str) -> anyhow::Result<()> {
        let (name, standing) = (self.node.name(), &self.standing);
        match standing.current.as_deref() {
            Some(current) if current != config => bail!(
                "Node {name} has current config {current}, but the disk has {config}: wait until machine-config-daemon has corrected it"
            ),
            _ => Ok(()),
        }
    }

    /// Refuses if machine-config-daemon has a pod on the node.
    pub(super) fn has_no_other_daemon(&self) -> anyhow::Result<()> {
        match self.wait(self.node.other_daemon()) {
            Ok(Some(pod)) => {
                bail!("machine-config-daemon is running on this node (pod {pod}): remove it first")
            }
            Ok(None) => Ok(()),
            Err(error) => {
                warn(&format!(
                    "{}; checking only the processes of this machine",
                    chain(&error)
                ));
                Ok(())
            }
        }
    }
}

/// Refuses if machine-config-daemon runs on this machine.
pub(super) fn check_no_mcd(context: &ConfigContext) -> anyhow::Result<()> {
    match machinist_agent::other_daemon(&context.root)? {
        Some(seen) => bail!("{seen}: remove it from this node first"),
        None => Ok(()),
    }
}

/// Explains the error if an agent holds the lock of the state.
pub(super) fn explain_lock_error<T>(done: Result<T, HandoverError>) -> anyhow::Result<T> {
    match done {
        Err(HandoverError::Store(error @ machinist_update::store::StoreError::Locked { .. })) => {
            let how = "stop the agent of this machine first";
            Err(anyhow::Error::new(error).context(how))
        }
        done => Ok(done?),
    }
}

fn is_unreachable(error: &ClusterError) -> bool {
    error.reason() == Reason::ApiServerUnreachable
}
