//! Removes rendered configs that are no longer in use.

use std::time::Duration;

use tokio::time::Instant;

use crate::{renderer::Renderer, requests::LeaderRequests, rollout_view::RolloutView};
use machinist_base::error_chain::chain;
use machinist_cluster::ClusterError;
use machinist_pool::{RenderedConfig, unused_configs, used_configs};

/// How many of the newest configs of each pool are kept, whether they are in use or not.
const KEPT_CONFIGS: usize = 5;

/// How often unused configs are looked for. Nothing reports that a config is no longer in use.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(600);

/// Removes unused configs.
#[derive(Debug)]
pub(crate) struct UnusedConfigCollector {
    due: Instant,
}

impl UnusedConfigCollector {
    pub(crate) fn new() -> Self {
        Self {
            due: Instant::now() + COLLECTION_INTERVAL,
        }
    }

    /// Collects if it is due. Returns when it is due next.
    pub(crate) async fn turn(
        &mut self,
        view: &RolloutView,
        renderer: &mut Renderer,
        requests: &LeaderRequests,
    ) -> Instant {
        if self.due <= Instant::now() {
            self.due = Instant::now() + COLLECTION_INTERVAL;
            if let Err(error) = collect(view, renderer, requests).await {
                tracing::warn!(reason = %error.reason(), "{}", chain(&error));
            }
        }
        self.due
    }
}

async fn collect(
    view: &RolloutView,
    renderer: &mut Renderer,
    requests: &LeaderRequests,
) -> Result<(), ClusterError> {
    let configs: Vec<RenderedConfig> = renderer
        .configs()
        .values()
        .filter_map(|config| config.as_rendered())
        .collect();
    let cached = used_configs(view.pools(), view.nodes());
    let may_remove =
        cached.is_ok_and(|used| !unused_configs(&configs, &used, KEPT_CONFIGS).is_empty());
    if !may_remove {
        return Ok(());
    }
    // The caches may be old, so that only live reads decide about a removal.
    let (nodes, pools) = (requests.nodes().await?, requests.pools().await?);
    let used = match used_configs(&pools, &nodes) {
        Ok(used) => used,
        Err(error) => {
            tracing::warn!("no rendered config is removed: {}", chain(&error));
            return Ok(());
        }
    };
    for name in unused_configs(&configs, &used, KEPT_CONFIGS) {
        let Some(config) = renderer.configs().get(name).cloned() else {
            continue;
        };
        requests.delete_config(&config).await?;
        renderer.forget(name);
        tracing::info!("removed the rendered MachineConfig {name}, which is not in use");
    }
    Ok(())
}
