//! The disruption policies of the agents, as far as the cluster has them.

use serde::Serialize;

use machinist_base::error_chain::chain;
use machinist_cluster::{Cluster, ClusterError, cluster_policies};
use machinist_ignition::Refusal;
use machinist_plan::Policies;

/// The policies that a plan of a pool uses.
#[derive(Clone, Debug)]
pub(super) struct PlanPolicies {
    pub(super) source: PolicySource,
    /// Or why agents refuse every config.
    pub(super) rules: Result<Policies, Vec<Refusal>>,
}

/// Where the policies come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) enum PolicySource {
    /// The cluster has no policies of its own.
    #[default]
    BuiltIn,
    /// MachineConfiguration `cluster`, beside the built-in ones.
    Cluster,
    /// The built-in ones, because those of the cluster must not be read.
    Unreadable,
}

impl PolicySource {
    /// What the plans of nodes are made of.
    pub(super) fn basis(self) -> String {
        let (policies, changes) = match self {
            Self::BuiltIn => ("the built-in policies", "Policies of an agent, units"),
            Self::Cluster => (
                "the policies of MachineConfiguration cluster with the built-in ones",
                "Units",
            ),
            Self::Unreadable => (
                "the built-in policies, because those of the cluster cannot be read",
                "Policies of the cluster or an agent, units",
            ),
        };
        format!(
            "The nodes were not asked: this follows from their current configs and {policies}. {changes} and files of a \
             machine can change it; units that no config contains are assumed to run."
        )
    }
}

impl PlanPolicies {
    /// Reads the policies as the agents do. A forbidden read becomes a warning.
    pub(super) async fn read(
        cluster: &Cluster,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ClusterError> {
        let (source, rules) = match cluster_policies::read(cluster).await {
            Ok(Ok(Some(policies))) => (PolicySource::Cluster, Ok(policies)),
            Ok(Ok(None)) => (PolicySource::BuiltIn, Ok(Policies::default())),
            Ok(Err(refusals)) => (PolicySource::Cluster, Err(refusals)),
            Err(error) if error.code() == 403 => {
                warnings.push(chain(&error));
                (PolicySource::Unreadable, Ok(Policies::default()))
            }
            Err(error) => return Err(error),
        };
        Ok(Self { source, rules })
    }
}
