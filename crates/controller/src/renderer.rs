//! Renders the config of each pool when its MachineConfigs have changed, and writes rendered configs that are in use and
//! were deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    config_object::ConfigObject,
    failure_log::log_failure,
    inbox::ReportedChanges,
    monitor::ControllerMonitor,
    pool_patch::configuration_patch,
    pool_status::RenderOutcome,
    render::{RenderError, RenderedPoolConfig, render, selected},
    requests::LeaderRequests,
    rollout_view::RolloutView,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    reason::Reason,
};
use machinist_cluster::ClusterError;
use machinist_ignition::ConfigRules;
use machinist_kube_api::PoolView;
use machinist_pool::used_configs;

/// How long after the last change of a pool's MachineConfigs it is rendered: several are often applied at once.
const RENDER_DEBOUNCE: Duration = Duration::from_secs(5);

/// How long changes may follow each other until the pool is rendered anyway.
const MAX_RENDER_DELAY: Duration = Duration::from_secs(30);

/// Wait after a request of a rendering failed.
const RENDER_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// How many deleted configs are kept to be written again.
const MAX_DELETED_CONFIGS: usize = 20;

/// The MachineConfigs of a pool, by name and resource version.
type Selection = Vec<(String, String)>;

/// A selection that was rendered, and the result.
#[derive(Debug)]
struct FinishedRender {
    selection: Selection,
    /// The config's name and sources.
    result: Result<(String, Vec<String>), RenderOutcome>,
}

/// The state of the rendering of one pool.
#[derive(Debug, Default)]
struct PoolRender {
    /// The selection that was seen last.
    seen: Selection,
    done: Option<FinishedRender>,
    /// When the selection first differed from the rendered one, and when it is rendered.
    changed: Option<(Instant, Instant)>,
    failures: u32,
    retry: Option<Instant>,
}

/// Renders the configs of all pools.
#[derive(Debug)]
pub(crate) struct Renderer {
    rules: ConfigRules,
    configs: BTreeMap<String, ConfigObject>,
    pools: BTreeMap<String, PoolRender>,
    /// Rendered configs that another client deleted.
    deleted: BTreeMap<String, String>,
    outcomes: BTreeMap<String, RenderOutcome>,
    monitor: ControllerMonitor,
}

impl Renderer {
    pub(crate) fn new(rules: ConfigRules, monitor: ControllerMonitor) -> Self {
        Self {
            rules,
            configs: BTreeMap::new(),
            pools: BTreeMap::new(),
            deleted: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            monitor,
        }
    }

    /// All MachineConfigs.
    pub(crate) fn configs(&self) -> &BTreeMap<String, ConfigObject> {
        &self.configs
    }

    /// Whether each pool's config could be rendered.
    pub(crate) fn outcomes(&self) -> &BTreeMap<String, RenderOutcome> {
        &self.outcomes
    }

    /// Takes the reports of the watch on MachineConfigs.
    pub(crate) fn take_configs(&mut self, reports: ReportedChanges<ConfigObject>) {
        if let Some(listed) = reports.listed {
            let listed = listed.into_iter().map(|it| (it.name.clone(), it));
            let before = std::mem::replace(&mut self.configs, listed.collect());
            for (name, config) in before {
                if !self.configs.contains_key(&name) {
                    self.keep_deleted(config);
                }
            }
        }
        for (name, config) in reports.changes {
            match config {
                Some(config) => {
                    self.deleted.remove(&name);
                    self.configs.insert(name, config);
                }
                None => {
                    if let Some(config) = self.configs.remove(&name) {
                        self.keep_deleted(config);
                    }
                }
            }
        }
    }

    /// Forgets a config that this controller has removed.
    pub(crate) fn forget(&mut self, name: &str) {
        self.configs.remove(name);
    }

    fn keep_deleted(&mut self, config: ConfigObject) {
        if config.rendered_for().is_some() && self.deleted.len() < MAX_DELETED_CONFIGS {
            self.deleted.insert(config.name, config.text);
        }
    }

    /// Renders what is due. Returns when something is due next.
    pub(crate) async fn turn(
        &mut self,
        view: &mut RolloutView,
        requests: &LeaderRequests,
    ) -> Option<Instant> {
        let mut next = self.restore_deleted(view, requests).await.err();
        let names: BTreeSet<String> = view.pools().iter().map(|it| it.name.clone()).collect();
        self.pools.retain(|name, _| names.contains(name));
        self.outcomes.retain(|name, _| names.contains(name));
        for name in names {
            let due = match self.render_pool(&name, view, requests).await {
                Ok(due) => due,
                Err(error) => Some(self.failed(&name, &error)),
            };
            next = match (next, due) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        next
    }

    /// Records that a config was rendered and cannot be created. A server that does not answer refuses nothing.
    fn record_refusal(&mut self, pool: &PoolView, error: &ClusterError, requests: &LeaderRequests) {
        let reason = error.reason();
        if ![Reason::ApiServerForbidden, Reason::ApiServerRefused].contains(&reason) {
            return;
        }
        let outcome = RenderOutcome {
            is_degraded: true,
            reason: reason.as_str().to_owned(),
            message: chain(error),
        };
        if self.outcomes.get(&pool.name) != Some(&outcome) {
            self.monitor.metrics.render_failed(&pool.name);
            requests.events().render_degraded(pool, &outcome.message);
            self.outcomes.insert(pool.name.clone(), outcome);
        }
    }

    fn failed(&mut self, pool: &str, error: &ClusterError) -> Instant {
        let state = self.pools.entry(pool.to_owned()).or_default();
        log_failure(error, state.failures == 0);
        let wait = RENDER_BACKOFF.wait(state.failures, jitter());
        state.failures = state.failures.saturating_add(1);
        let retry = Instant::now() + wait.max(error.retry_after().unwrap_or_default());
        state.retry = Some(retry);
        retry
    }

    /// Writes deleted configs that are in use again, from the same bytes. Fails with the time of the next attempt.
    async fn restore_deleted(
        &mut self,
        view: &RolloutView,
        requests: &LeaderRequests,
    ) -> Result<(), Instant> {
        if self.deleted.is_empty() {
            return Ok(());
        }
        let Ok(used) = used_configs(view.pools(), view.nodes()) else {
            return Ok(());
        };
        for (name, text) in std::mem::take(&mut self.deleted) {
            if !used.contains(&name) || self.configs.contains_key(&name) {
                continue;
            }
            // The text was written by this process.
            let Ok(manifest) = serde_json::from_str(&text) else {
                continue;
            };
            match requests.create_config(&name, &manifest).await {
                Ok(created) => {
                    tracing::warn!(
                        "MachineConfig {name} was deleted while it is in use; it was created again"
                    );
                    self.configs.extend(created.map(|config| (name, config)));
                }
                Err(error) => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    self.deleted.insert(name, text);
                    return Err(Instant::now() + RENDER_BACKOFF.wait(2, jitter()));
                }
            }
        }
        Ok(())
    }

    /// Renders one pool if it is due. Returns when it will be.
    async fn render_pool(
        &mut self,
        name: &str,
        view: &mut RolloutView,
        requests: &LeaderRequests,
    ) -> Result<Option<Instant>, ClusterError> {
        let Some(pool) = view.pool(name) else {
            return Ok(None);
        };
        let found = selected(pool, &self.configs);
        let selection: Selection = found
            .iter()
            .map(|it| (it.name.clone(), it.resource_version.clone()))
            .collect();
        let state = self.pools.entry(name.to_owned()).or_default();
        if let Some(due) = state.due(&selection, Instant::now()) {
            return Ok(Some(due));
        }
        let is_rendered = state
            .done
            .as_ref()
            .is_some_and(|it| it.selection == selection);
        if !is_rendered {
            let texts: Vec<(String, String)> = found
                .iter()
                .map(|it| (it.name.clone(), it.text.clone()))
                .collect();
            let result = self.merge(name, texts).await;
            let has_target = !pool.spec.configuration.name.is_empty();
            let result = match result {
                Ok(rendered) => {
                    if !self.configs.contains_key(&rendered.name) {
                        let manifest = &rendered.manifest;
                        let created = requests.create_config(&rendered.name, manifest).await;
                        let created = created
                            .inspect_err(|error| self.record_refusal(pool, error, requests))?;
                        let created = created.map(|config| (config.name.clone(), config));
                        self.configs.extend(created);
                        tracing::info!("pool {name}: rendered {}", rendered.name);
                    }
                    Ok((rendered.name, rendered.sources))
                }
                Err(error) => {
                    let outcome = refused(name, &error, has_target);
                    if outcome.is_degraded {
                        self.monitor.metrics.render_failed(name);
                        requests.events().render_degraded(pool, &outcome.message);
                    }
                    Err(outcome)
                }
            };
            let state = self.pools.entry(name.to_owned()).or_default();
            state.done = Some(FinishedRender { selection, result });
            state.failures = 0;
        }
        self.publish(name, view, requests).await?;
        Ok(None)
    }

    /// Merges in another thread: a pool may have megabytes of files.
    async fn merge(
        &self,
        pool: &str,
        texts: Vec<(String, String)>,
    ) -> Result<RenderedPoolConfig, RenderError> {
        let (pool, rules) = (pool.to_owned(), self.rules.clone());
        let merged = tokio::task::spawn_blocking(move || render(&pool, &texts, &rules)).await;
        let rendered = merged.unwrap_or_else(|_| Err(RenderError::Refused(Vec::new())))?;
        for warning in rendered.all_warnings() {
            tracing::warn!("{warning}");
        }
        Ok(rendered)
    }

    /// Makes the rendered config the target of its pool, and records the outcome.
    async fn publish(
        &mut self,
        name: &str,
        view: &mut RolloutView,
        requests: &LeaderRequests,
    ) -> Result<(), ClusterError> {
        let state = self.pools.get(name).and_then(|it| it.done.as_ref());
        let (Some(done), Some(pool)) = (state, view.pool(name)) else {
            return Ok(());
        };
        let (config, sources) = match &done.result {
            Ok(rendered) => rendered,
            Err(outcome) => {
                self.outcomes.insert(name.to_owned(), outcome.clone());
                return Ok(());
            }
        };
        self.outcomes.insert(name.to_owned(), as_expected());
        if is_target(pool, config, sources) {
            return Ok(());
        }
        let operations = configuration_patch(pool, config, sources);
        match requests.patch_pool(name, &operations).await {
            Ok(pool) => {
                tracing::info!("pool {name}: the target is {config}");
                view.put_pool(name, Some(pool));
                Ok(())
            }
            Err(error) => {
                if error.is_conflict() || error.is_not_found() {
                    view.put_pool(name, requests.pool(name).await?);
                }
                Err(error)
            }
        }
    }
}

impl PoolRender {
    /// When the pool is to be rendered, if that is not now. The first rendering of a process is not delayed.
    fn due(&mut self, selection: &Selection, now: Instant) -> Option<Instant> {
        let is_rendered = self
            .done
            .as_ref()
            .is_none_or(|it| it.selection == *selection);
        if is_rendered {
            self.changed = None;
        } else {
            let first = self.changed.map_or(now, |(first, _)| first);
            let is_new = self.seen != *selection || self.changed.is_none();
            let due = match self.changed {
                Some((_, due)) if !is_new => due,
                _ => (now + RENDER_DEBOUNCE).min(first + MAX_RENDER_DELAY),
            };
            self.changed = Some((first, due));
        }
        self.seen.clone_from(selection);
        let due = self.changed.map(|(_, due)| due);
        let latest = due.into_iter().chain(self.retry).max();
        let waits = latest.filter(|due| *due > now);
        if waits.is_none() {
            self.retry = None;
        }
        waits
    }
}

fn is_target(pool: &PoolView, config: &str, sources: &[String]) -> bool {
    let known = &pool.spec.configuration;
    let names = known.source.iter().map(|it| it.name.as_str());
    known.name == config && names.eq(sources.iter().map(String::as_str))
}

fn as_expected() -> RenderOutcome {
    RenderOutcome {
        reason: "AsExpected".to_owned(),
        ..RenderOutcome::default()
    }
}

/// The outcome of a refused rendering. A pool that never had a config and selects none is not degraded: it waits for its
/// first MachineConfig.
fn refused(pool: &str, error: &RenderError, has_target: bool) -> RenderOutcome {
    let is_degraded = has_target || !matches!(error, RenderError::NothingSelected);
    let message = chain(error);
    if is_degraded {
        tracing::warn!("pool {pool} keeps its config: {message}");
    }
    RenderOutcome {
        is_degraded,
        reason: error.code(),
        message,
    }
}
