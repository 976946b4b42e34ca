//! Renders a pool's config as the controller would, with manifests that are not applied yet. Nothing is written.

use std::collections::BTreeMap;

use crate::{
    config_object::ConfigObject,
    render::{RenderError, documents, merged, parsed, selected, selects},
};
use machinist_cluster::{Cluster, ClusterError, fleet_queries};
use machinist_ignition::{ConfigDocument, ConfigRules, MachineConfig};
use machinist_kube_api::PoolView;

/// The MachineConfigs of a cluster, with manifests that replace or supplement them.
#[derive(Debug)]
pub struct PreviewConfigs {
    configs: BTreeMap<String, ConfigObject>,
    manifests: BTreeMap<String, ConfigDocument>,
}

/// The config that would be rendered for a pool.
#[derive(Debug)]
pub struct PreviewedConfig {
    /// Its content, with its name.
    pub config: MachineConfig,
    /// The MachineConfigs that are merged, in their order.
    pub sources: Vec<String>,
    /// The manifests among the sources.
    pub manifests: Vec<String>,
    /// Sentences for the pool's administrator.
    pub warnings: Vec<String>,
}

impl PreviewConfigs {
    /// Reads all MachineConfigs.
    pub async fn read(cluster: &Cluster) -> Result<Self, ClusterError> {
        let found = fleet_queries::machine_configs(cluster).await?;
        let found = found.into_iter().map(ConfigObject::from);
        Ok(Self {
            configs: found.map(|it| (it.name.clone(), it)).collect(),
            manifests: BTreeMap::new(),
        })
    }

    /// Adds a manifest, or replaces the object of its name.
    pub fn apply(&mut self, manifest: ConfigDocument) {
        self.manifests.insert(manifest.name.clone(), manifest);
    }

    /// Renders the config of a pool.
    ///
    /// # Errors
    /// Why the controller would render none.
    pub fn render(
        &self,
        pool: &PoolView,
        rules: &ConfigRules,
    ) -> Result<PreviewedConfig, RenderError> {
        let texts: Vec<(String, String)> = selected(pool, &self.configs)
            .into_iter()
            .filter(|it| !self.manifests.contains_key(&it.name))
            .map(|it| (it.name.clone(), it.text.clone()))
            .collect();
        let mut all = documents(&texts, rules)?;
        let chosen = self.manifests.values();
        let chosen: Vec<&ConfigDocument> = chosen
            .filter(|it| selects(pool, &it.name, &it.labels))
            .collect();
        let manifests = chosen.iter().map(|it| it.name.clone()).collect();
        all.extend(chosen.into_iter().cloned());
        let rendered = merged(&pool.name, all)?;
        Ok(PreviewedConfig {
            config: rendered.config,
            sources: rendered.sources,
            manifests,
            warnings: rendered.warnings,
        })
    }

    /// The content of a rendered config that exists; none if it does not exist.
    ///
    /// # Errors
    /// Why it cannot be parsed.
    pub fn rendered(
        &self,
        name: &str,
        rules: &ConfigRules,
    ) -> Result<Option<MachineConfig>, RenderError> {
        let Some(object) = self.configs.get(name) else {
            return Ok(None);
        };
        parsed(name, &object.text, rules).map(Some)
    }
}
