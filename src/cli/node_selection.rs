//! Provides what the commands on nodes share: the nodes, the cluster, and the dry-run mode.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Global, output::print_error, selector};
use machinist_base::error_chain::chain;
use machinist_cluster::{
    Cluster, ClusterAccess, ClusterEnv,
    node_commands::{self, DryRun},
};
use machinist_status::settings::{LogLevel, LogSettings};

/// The nodes, the cluster, and the dry-run mode.
#[derive(Debug, Args)]
pub struct SelectedNodes {
    /// Names of nodes
    #[arg(
        value_name = "NODE",
        required_unless_present = "selector",
        conflicts_with = "selector",
        value_parser = selector::node
    )]
    pub nodes: Vec<String>,
    /// Label selector of nodes, instead of names
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector::labels)]
    pub selector: Option<String>,
    /// The dry-run mode.
    #[command(flatten)]
    pub mode: DryRunMode,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
}

/// The flag for the dry-run mode.
#[derive(Clone, Copy, Debug, Args)]
pub struct DryRunMode {
    /// Show what would be done: client sends no writes, server sends dry-run requests
    #[arg(
        long,
        value_name = "WHERE",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "client",
        hide_possible_values = true
    )]
    pub dry_run: DryRunArg,
}

/// The dry-run mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRunArg {
    /// No dry run.
    #[default]
    #[value(alias = "false")]
    None,
    /// No writing requests are sent.
    #[value(alias = "true")]
    Client,
    /// Writing requests are sent as server-side dry runs.
    Server,
}

impl DryRunArg {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The suffix for messages about what was done.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

impl From<DryRunArg> for DryRun {
    fn from(rehearse: DryRunArg) -> Self {
        match rehearse {
            DryRunArg::None => Self::None,
            DryRunArg::Client => Self::Client,
            DryRunArg::Server => Self::Server,
        }
    }
}

/// The cluster to connect to.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig, as for kubectl [default: KUBECONFIG, the pod, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// The cluster.
    pub(super) async fn cluster(&self) -> anyhow::Result<Cluster> {
        let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
        let listed = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
        let surroundings = ClusterEnv {
            flag: self.kubeconfig.clone(),
            context: self.context.clone(),
            kubeconfig: listed.collect(),
            pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            home: std::env::var_os("HOME").map(PathBuf::from),
        };
        let access = ClusterAccess::of_person(&surroundings).ok_or(NoClusterError)?;
        Ok(Cluster::connect(access).await?)
    }

    /// Whether no flag selects a cluster.
    pub(super) fn is_silent(&self) -> bool {
        self.kubeconfig.is_none() && self.context.is_none()
    }
}

/// There is no cluster to connect to.
#[derive(Debug, thiserror::Error)]
#[error("no cluster configured: use --kubeconfig or set KUBECONFIG")]
struct NoClusterError;

/// Some of several nodes are not available: none is changed.
#[derive(Debug, thiserror::Error)]
#[error("no node was changed: {}", .0.join("; "))]
struct UnavailableNodes(Vec<String>);

impl SelectedNodes {
    /// The cluster.
    pub(super) async fn cluster(&self) -> anyhow::Result<Cluster> {
        self.reach.cluster().await
    }

    /// The names of the selected nodes. A selector without matches prints a message; if there are
    /// several names, each must exist before the first node is changed.
    pub(super) async fn names(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let Some(selector) = &self.selector else {
            return self.all_there(cluster).await;
        };
        let names = node_commands::selected(cluster, selector).await?;
        if names.is_empty() {
            print_error(&format!("no node has the labels {selector}"));
        }
        Ok(names)
    }

    async fn all_there(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let mut wrong = Vec::new();
        // For a single name, the first request reports the same error.
        for name in self.nodes.iter().filter(|_| self.nodes.len() > 1) {
            if let Err(error) = node_commands::check_node_exists(cluster, name).await {
                wrong.push(chain(&error));
            }
        }
        match wrong.is_empty() {
            true => Ok(self.nodes.clone()),
            false => Err(UnavailableNodes(wrong).into()),
        }
    }
}

/// The log settings of commands on nodes, which do not read the local machine's settings.
pub(super) fn log(global: &Global) -> LogSettings {
    LogSettings {
        level: match global.verbose {
            0 => LogLevel::Info,
            1 => LogLevel::Debug,
            _ => LogLevel::Trace,
        },
        format: global
            .log_format
            .unwrap_or(machinist_status::settings::LogFormat::Auto),
    }
}
