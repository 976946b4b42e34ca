//! Reads the desired config: the MachineConfig that the Node's `desiredConfig` annotation names,
//! and the node disruption policies that apply to it.
//!
//! MachineConfigs are not watched and not cached: a rendered config does not change under its name,
//! so only the name is remembered. The text is never passed to a parser whose error messages quote
//! the input, because it contains file contents.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Cluster, ClusterError, cluster_policies,
    node::OwnNode,
    node_poll::{self, NodePoll},
    object_text::{fetch_text, without_lines},
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    reason::Reason,
};
use machinist_ignition::{
    ClusterBaseline, ConfigRules, MachineConfig, MergeOrder, OsConfig, Refusal, TextSource,
};
use machinist_kube_api::{NodeView, keys};
use machinist_plan::Policies;
use machinist_status::metrics::{Metrics, SourceReadResult};
use machinist_update::reconciler::DesiredConfig;

/// Backoff for a config that could not be read or does not exist.
const READ_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Backoff for a rejected config: it may be recreated under the same name, and no watch reports
/// that.
const REJECTED_CONFIG_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(30), Duration::from_secs(300));

/// Why the desired config cannot be read; the last accepted config stays in effect meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigReadError {
    /// The stable code.
    pub reason: Reason,
    /// One sentence with the full chain of causes.
    pub message: String,
}

/// Channels to which the results are published.
#[derive(Debug)]
pub struct ConfigSubscribers {
    /// The accepted config, or the reasons why it was rejected.
    pub desired: watch::Sender<DesiredConfig>,
    /// Policies of `MachineConfiguration/cluster`, published before the config that they apply to;
    /// none if the cluster has no such object.
    pub policies: watch::Sender<Option<Arc<Policies>>>,
    /// Why no newer config could be read; none after a successful read.
    pub trouble: watch::Sender<Option<ConfigReadError>>,
    /// Counts reads by result.
    pub metrics: Metrics,
}

/// The cluster as the source of a machine's desired config.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// The API server.
    pub cluster: Cluster,
    /// The Node whose annotations name the config.
    pub node: OwnNode,
    /// Users and groups that a config may manage.
    pub rules: ConfigRules,
    /// Whether the machine has no config applied by machinist yet; then the Node's `currentConfig`
    /// is used as the base.
    pub first: bool,
}

/// Result of one read.
enum ConfigRead {
    Accepted(
        Arc<MachineConfig>,
        machinist_base::digest::Digest,
        Option<Policies>,
    ),
    Refused(Vec<Refusal>),
    /// No MachineConfig of this name exists.
    Missing(Refusal),
    /// The request failed.
    Unread(ClusterError),
}

impl ConfigSource {
    /// Reads the config whenever the Node names another one, and retries failed reads, until
    /// `stop`. The watch on the Node itself runs in another task.
    pub async fn watch_config(self, told: ConfigSubscribers, stop: CancellationToken) {
        let node = self.node.clone();
        node_poll::poll(DesiredConfigPoll { source: self, told }, &node, stop).await;
    }

    async fn read(&self, name: &str) -> ConfigRead {
        if !keys::is_object_name(name) {
            let message = format!("MachineConfig {name:?} not found: invalid object name");
            let refusal = Refusal::new(Reason::ConfigNotFound, message);
            let expected = "lowercase letters, digits, '-' and '.' in desiredConfig, at most 253";
            return ConfigRead::Refused(vec![refusal.expected(expected)]);
        }
        let text = match self.machine_config(name).await {
            Ok(text) => text,
            Err(error) if error.is_not_found() => {
                let message = format!("MachineConfig {name} not found");
                let refusal = Refusal::new(Reason::ConfigNotFound, message);
                return ConfigRead::Missing(
                    refusal.expected("an existing MachineConfig in desiredConfig"),
                );
            }
            Err(error) => return ConfigRead::Unread(error),
        };
        let policies = match cluster_policies::read(&self.cluster).await {
            Ok(Ok(policies)) => policies,
            Ok(Err(refusals)) => return ConfigRead::Refused(refusals),
            Err(error) => return ConfigRead::Unread(error),
        };
        let before = match self.config_before().await {
            Ok(before) => ClusterBaseline::Node(before.map(Box::new)),
            Err(error) => return ConfigRead::Unread(error),
        };
        let (name, rules) = (name.to_owned(), self.rules.clone());
        let parsed = tokio::task::spawn_blocking(move || parse(&name, &text, &rules));
        match parsed.await {
            Ok(Ok((mut config, digest))) => {
                config.before = before;
                ConfigRead::Accepted(Arc::new(config), digest, policies)
            }
            Ok(Err(refusals)) => ConfigRead::Refused(refusals),
            Err(lost) => {
                let why = format!("failed to read: {lost}");
                ConfigRead::Refused(vec![Refusal::new(Reason::SourceUnreadable, why)])
            }
        }
    }

    /// The config that the Node names as current; none if it is not needed or not known.
    async fn config_before(&self) -> Result<Option<OsConfig>, ClusterError> {
        let snapshot = self.node.snapshots().borrow().clone();
        let current = snapshot.node.as_deref().and_then(NodeView::current_config);
        let Some(current) = current.filter(|_| self.first) else {
            return Ok(None);
        };
        if !keys::is_object_name(current) {
            return Ok(None);
        }
        match self.machine_config(current).await {
            Ok(text) => Ok(machinist_ignition::declared(text.as_bytes())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn machine_config(&self, name: &str) -> Result<String, ClusterError> {
        fetch_config_text(&self.cluster, name).await
    }
}

/// Reads the config again and again.
struct DesiredConfigPoll {
    source: ConfigSource,
    told: ConfigSubscribers,
}

impl NodePoll for DesiredConfigPoll {
    /// The name of the desired config; none if the Node names none.
    type Input = Option<String>;
    type Answer = Option<ConfigRead>;

    fn input(node: &NodeView) -> Self::Input {
        node.desired_config().map(str::to_owned)
    }

    async fn read(&self, name: &Self::Input) -> Self::Answer {
        Some(self.source.read(name.as_deref()?).await)
    }

    async fn handle(
        &mut self,
        _: &Self::Input,
        reading: Self::Answer,
        failures: &mut u32,
    ) -> Option<Duration> {
        let Some(reading) = reading else {
            self.told.clear_errors();
            return None;
        };
        let wait = self.told.of(reading, *failures);
        *failures = failures.saturating_add(1);
        wait
    }
}

/// The JSON text of a MachineConfig, as the server returns it.
pub async fn fetch_config_text(cluster: &Cluster, name: &str) -> Result<String, ClusterError> {
    let path = format!("/apis/{}/v1/machineconfigs", keys::GROUP);
    fetch_text(cluster, &path, name, format!("MachineConfig {name}")).await
}

impl ConfigSubscribers {
    /// Publishes the result of a read. Returns when to read again, if a retry may change the
    /// result.
    fn of(&self, reading: ConfigRead, failures: u32) -> Option<Duration> {
        let (desired, read, backoff) = match reading {
            ConfigRead::Accepted(config, digest, policies) => {
                self.policies.send_replace(policies.map(Arc::new));
                (
                    DesiredConfig::Config(config, digest),
                    SourceReadResult::Accepted,
                    None,
                )
            }
            ConfigRead::Refused(refusals) => {
                let refused = DesiredConfig::Refused(Arc::new(refusals));
                (
                    refused,
                    SourceReadResult::Refused,
                    Some(REJECTED_CONFIG_BACKOFF),
                )
            }
            ConfigRead::Missing(refusal) => {
                let refused = DesiredConfig::Refused(Arc::new(vec![refusal]));
                (refused, SourceReadResult::Refused, Some(READ_BACKOFF))
            }
            ConfigRead::Unread(error) => return Some(self.record_read_error(&error, failures)),
        };
        self.metrics.source_was_read(read);
        self.trouble
            .send_if_modified(|known| known.take().is_some());
        self.desired.send_if_modified(|known| {
            let differs = !known.is_equal_for_readers(&desired);
            if differs {
                *known = desired;
            }
            differs
        });
        backoff.map(|backoff| backoff.wait(failures, jitter()))
    }

    /// Clears a rejected config and the read error. An accepted config stays in effect.
    fn clear_errors(&self) {
        self.trouble
            .send_if_modified(|known| known.take().is_some());
        self.desired.send_if_modified(|known| {
            let refused = matches!(known, DesiredConfig::Refused(_));
            if refused {
                *known = DesiredConfig::Nothing;
            }
            refused
        });
    }

    /// Publishes a read error; the last accepted config stays in effect.
    fn record_read_error(&self, error: &ClusterError, failures: u32) -> Duration {
        let trouble = Some(ConfigReadError {
            reason: error.reason(),
            message: chain(error),
        });
        self.metrics.source_was_read(SourceReadResult::Unreadable);
        let news = self.trouble.send_if_modified(|known| {
            let news = *known != trouble;
            *known = trouble;
            news
        });
        if news {
            tracing::warn!(reason = %error.reason(), "{}", chain(error));
        }
        let wait = READ_BACKOFF.wait(failures, jitter());
        wait.max(error.retry_after().unwrap_or_default())
    }
}

/// Uses the same parser as for local files; its messages name the object and the field. Line and
/// column of the server's JSON are omitted, because no user sees that text.
fn parse(
    name: &str,
    text: &str,
    rules: &ConfigRules,
) -> Result<(MachineConfig, machinist_base::digest::Digest), Vec<Refusal>> {
    let object = format!("MachineConfig {name}");
    let rules = ConfigRules {
        source: TextSource::ApiServer,
        ..rules.clone()
    };
    let read = machinist_ignition::parse(text, &object, &rules)
        .and_then(|documents| machinist_ignition::merge(documents, name, MergeOrder::AsGiven));
    let (config, warnings) = read.map_err(|refusals| without_lines(refusals, &object))?;
    let mut config = config.without_lines();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    name.clone_into(&mut config.name);
    let digest = machinist_ignition::digest(&config);
    Ok((config, digest))
}
