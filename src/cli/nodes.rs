//! What the commands about nodes share: which nodes, in which cluster, and whether for real.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Global, output::complain, selector};
use crate::{
    cluster::{
        Access, Cluster, Surroundings,
        by_hand::{self, DryRun},
    },
    config::{Log, LogLevel},
    telemetry::chain,
};

/// Which nodes, where, and whether for real.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Names of nodes, one after the other
    #[arg(
        value_name = "NODE",
        required_unless_present = "selector",
        conflicts_with = "selector",
        value_parser = selector::node
    )]
    pub nodes: Vec<String>,
    /// Nodes by their labels, instead of names
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector::labels)]
    pub selector: Option<String>,
    /// Say what would be done: client sends nothing that writes, server asks without effect
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
    pub dry_run: Rehearse,
    /// Which cluster.
    #[command(flatten)]
    pub reach: Reach,
}

/// Whether for real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rehearse {
    /// For real.
    #[default]
    #[value(alias = "false")]
    None,
    /// Nothing is sent that writes.
    #[value(alias = "true")]
    Client,
    /// The server is asked what it would do.
    Server,
}

impl Rehearse {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// What is added to sentences about what was done.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

impl From<Rehearse> for DryRun {
    fn from(rehearse: Rehearse) -> Self {
        match rehearse {
            Rehearse::None => Self::None,
            Rehearse::Client => Self::Client,
            Rehearse::Server => Self::Server,
        }
    }
}

/// Which cluster a person means.
#[derive(Clone, Debug, Default, Args)]
pub struct Reach {
    /// The cluster, as kubectl has it [default: KUBECONFIG, the pod, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Reach {
    /// The cluster.
    pub(super) async fn cluster(&self) -> anyhow::Result<Cluster> {
        let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
        let listed = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
        let surroundings = Surroundings {
            flag: self.kubeconfig.clone(),
            context: self.context.clone(),
            kubeconfig: listed.collect(),
            pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            home: std::env::var_os("HOME").map(PathBuf::from),
        };
        let access = Access::of_person(&surroundings).ok_or(NoCluster)?;
        Ok(Cluster::connect(access).await?)
    }

    /// Nothing was said about a cluster.
    pub(super) fn is_silent(&self) -> bool {
        self.kubeconfig.is_none() && self.context.is_none()
    }
}

/// There is no cluster to ask.
#[derive(Debug, thiserror::Error)]
#[error("there is no cluster to ask: give --kubeconfig or set KUBECONFIG")]
struct NoCluster;

/// Of several nodes some cannot be had: none is touched.
#[derive(Debug, thiserror::Error)]
#[error("no node is touched: {}", .0.join("; "))]
struct NotAll(Vec<String>);

impl Nodes {
    /// The cluster.
    pub(super) async fn cluster(&self) -> anyhow::Result<Cluster> {
        self.reach.cluster().await
    }

    /// The names of the nodes that are meant. A selector may mean nobody, which is said; of several names
    /// each must be a node's before anything is done to the first.
    pub(super) async fn names(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let Some(selector) = &self.selector else {
            return self.all_there(cluster).await;
        };
        let names = by_hand::selected(cluster, selector).await?;
        if names.is_empty() {
            complain(&format!("no node has the labels {selector}"));
        }
        Ok(names)
    }

    async fn all_there(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let mut wrong = Vec::new();
        // The first request about a single one says as much.
        for name in self.nodes.iter().filter(|_| self.nodes.len() > 1) {
            if let Err(error) = by_hand::find(cluster, name).await {
                wrong.push(chain(&error));
            }
        }
        match wrong.is_empty() {
            true => Ok(self.nodes.clone()),
            false => Err(NotAll(wrong).into()),
        }
    }
}

/// What a command about nodes logs: it needs no settings of the machine that it is called on.
pub(super) fn log(global: &Global) -> Log {
    Log {
        level: match global.verbose {
            0 => LogLevel::Info,
            1 => LogLevel::Debug,
            _ => LogLevel::Trace,
        },
        format: global.log_format.unwrap_or(crate::config::LogFormat::Auto),
    }
}
