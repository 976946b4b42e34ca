//! Merges the MachineConfigs that a pool selects into one. Pure functions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config_object::ConfigObject;
use machinist_ignition::{
    ConfigDocument, ConfigRules, MachineConfig, MergeOrder, Refusal, TextSource, merge, parse,
    to_machine_config,
};
use machinist_kube_api::{
    PoolView,
    keys::{label, protocol},
};

/// Maximum size of a rendered config as JSON: the API server stores objects of at most 1.5 MiB.
const MAX_CONFIG_BYTES: usize = 1_572_864;

/// Prefix of the names of rendered configs.
const RENDERED_PREFIX: &str = "rendered-";

/// Precedes the name of an object in refusals of its text.
const OBJECT_PREFIX: &str = "MachineConfig ";

/// A config that was rendered for a pool.
#[derive(Clone, Debug)]
pub(crate) struct RenderedPoolConfig {
    pub(crate) name: String,
    pub(crate) config: MachineConfig,
    pub(crate) manifest: Value,
    /// The MachineConfigs that were merged, in their order.
    pub(crate) sources: Vec<String>,
    /// Those about units; the notes of the config have the others, and plans show them.
    pub(crate) warnings: Vec<String>,
}

impl RenderedPoolConfig {
    /// Returns every warning, for the log.
    pub(crate) fn all_warnings(&self) -> impl Iterator<Item = &String> {
        self.warnings.iter().chain(&self.config.notes.0)
    }
}

/// Why no config can be rendered for a pool.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The pool selects no MachineConfigs.
    #[error("no MachineConfig matches spec.machineConfigSelector; expected at least one")]
    NothingSelected,
    /// MachineConfigs have mistakes.
    #[error("{}", joined(.0))]
    Refused(Vec<Refusal>),
    /// The merged config is too large.
    #[error(
        "the merged config {name} has {bytes} bytes as JSON; expected at most {MAX_CONFIG_BYTES}"
    )]
    TooLarge {
        /// Its name.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// The merged config cannot be written as a manifest.
    #[error("the merged config cannot be written: {0}")]
    NotWritable(#[from] machinist_ignition::MissingContent),
}

impl RenderError {
    /// The stable code.
    pub fn code(&self) -> String {
        match self {
            Self::NothingSelected => "NoMachineConfigs".to_owned(),
            Self::Refused(refusals) => match refusals.first() {
                Some(refusal) => refusal.reason.to_string(),
                None => "Refused".to_owned(),
            },
            Self::TooLarge { .. } => "ConfigTooLarge".to_owned(),
            Self::NotWritable(_) => "ConfigNotWritable".to_owned(),
        }
    }
}

fn joined(refusals: &[Refusal]) -> String {
    let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The names and resource versions of the MachineConfigs that a pool selects; rendered ones are never selected, nor is
/// anything by an empty selector.
pub(crate) fn selected<'c>(
    pool: &PoolView,
    configs: &'c BTreeMap<String, ConfigObject>,
) -> Vec<&'c ConfigObject> {
    let is_selected = |config: &&ConfigObject| selects(pool, &config.name, &config.labels);
    configs.values().filter(is_selected).collect()
}

/// Whether a pool selects a MachineConfig with this name and these labels.
pub(crate) fn selects(pool: &PoolView, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let selector = &pool.spec.machine_config_selector;
    !selector.is_empty()
        && !name.starts_with(RENDERED_PREFIX)
        && !labels.contains_key(label::RENDERED_FOR)
        && selector.selects(labels)
}

/// Renders the config of a pool from the texts of MachineConfigs, by name.
pub(crate) fn render(
    pool: &str,
    texts: &[(String, String)],
    rules: &ConfigRules,
) -> Result<RenderedPoolConfig, RenderError> {
    merged(pool, documents(texts, rules)?)
}

/// Parses the texts of MachineConfigs, by name.
pub(crate) fn documents(
    texts: &[(String, String)],
    rules: &ConfigRules,
) -> Result<Vec<ConfigDocument>, RenderError> {
    let rules = ConfigRules {
        source: TextSource::ApiServer,
        ..rules.clone()
    };
    let (mut documents, mut refusals) = (Vec::new(), Vec::new());
    for (name, text) in texts {
        match parse(text, &format!("{OBJECT_PREFIX}{name}"), &rules) {
            Ok(found) => documents.extend(found),
            Err(found) => refusals.extend(found),
        }
    }
    match refusals.is_empty() {
        true => Ok(documents),
        false => Err(RenderError::Refused(without_lines(refusals))),
    }
}

/// Parses a rendered config.
pub(crate) fn parsed(
    name: &str,
    text: &str,
    rules: &ConfigRules,
) -> Result<MachineConfig, RenderError> {
    let texts = [(name.to_owned(), text.to_owned())];
    let merged = merge(documents(&texts, rules)?, "", MergeOrder::WorkerFirst);
    let (config, _) = merged.map_err(RenderError::Refused)?;
    Ok(MachineConfig {
        name: name.to_owned(),
        ..config
    })
}

/// Merges documents into the config of a pool.
pub(crate) fn merged(
    pool: &str,
    documents: Vec<ConfigDocument>,
) -> Result<RenderedPoolConfig, RenderError> {
    if documents.is_empty() {
        return Err(RenderError::NothingSelected);
    }
    let sources = ordered_names(&documents);
    let merged = merge(documents, pool, MergeOrder::WorkerFirst);
    let (config, warnings) =
        merged.map_err(|refusals| RenderError::Refused(without_lines(refusals)))?;
    let manifest = manifest(pool, &config)?;
    let bytes = manifest.to_string().len();
    if bytes > MAX_CONFIG_BYTES {
        return Err(RenderError::TooLarge {
            name: config.name,
            bytes,
        });
    }
    Ok(RenderedPoolConfig {
        name: config.name.clone(),
        config,
        manifest,
        sources,
        warnings,
    })
}

fn manifest(pool: &str, config: &MachineConfig) -> Result<Value, RenderError> {
    let mut manifest = to_machine_config(config)?;
    manifest["metadata"]["labels"] = json!({label::RENDERED_FOR: pool});
    // No release sets the image here, as OpenShift's would.
    if config.os_image_url.is_some() {
        manifest["metadata"]["annotations"] = json!({protocol::OS_IMAGE_URL_OVERRIDDEN: "true"});
    }
    Ok(manifest)
}

/// The names of the sources in the order in which they are merged: role `worker` first.
fn ordered_names(documents: &[ConfigDocument]) -> Vec<String> {
    let rank = |it: &ConfigDocument| it.role.as_deref() != Some(label::ROLE_WORKER);
    let mut ordered: Vec<_> = documents.iter().collect();
    ordered.sort_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    ordered.into_iter().map(|it| it.name.clone()).collect()
}

/// Removes lines and columns, because they refer to text of the API server that its users do not see, and the second
/// name of the MachineConfig.
fn without_lines(mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    let of_server = |it: &&mut Refusal| {
        let file = it.file.as_deref();
        file.is_none_or(|file| file.starts_with(OBJECT_PREFIX))
    };
    for refusal in refusals.iter_mut().filter(of_server) {
        (refusal.line, refusal.column) = (None, None);
        if refusal.file.is_some() {
            refusal.config = None;
        }
    }
    refusals
}

#[cfg(test)]
mod tests;
