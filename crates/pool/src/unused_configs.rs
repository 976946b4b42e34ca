//! Determines which rendered configs may be removed.

use std::collections::BTreeSet;

use jiff::Timestamp;

use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};

use super::{Grant, GrantsError, PoolGrants, RolloutHistory, RolloutStates};

/// A rendered config that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedConfig {
    /// Its name.
    pub name: String,
    /// The pool that it was rendered for.
    pub pool: String,
    /// When it was created.
    pub created: Option<Timestamp>,
}

/// Collects the names of all configs that are in use: by a Node, also as the config of its grant; as the target, the
/// last complete config or the pin of a pool; or in its grants, its rollout or its history, to which it may return.
///
/// # Errors
///
/// If grants cannot be parsed: then it is not known what is in use, and nothing may be removed.
pub fn used_configs(
    pools: &[PoolView],
    nodes: &[NodeView],
) -> Result<BTreeSet<String>, GrantsError> {
    let mut used = BTreeSet::new();
    for node in nodes {
        let configs = [node.current_config(), node.desired_config()];
        used.extend(configs.into_iter().flatten().map(str::to_owned));
        let grant = Grant::of_node(node)?;
        used.extend(grant.map(|grant| grant.target));
    }
    for pool in pools {
        used.insert(pool.spec.configuration.name.clone());
        used.insert(pool.status.configuration.name.clone());
        let pinned = pool.annotation(pool_annotation::PINNED_CONFIG);
        used.extend(pinned.map(str::to_owned));
        let text = pool.annotation(pool_annotation::GRANTS);
        let grants = PoolGrants::parse(&pool.name, text)?;
        let grants = grants.map(|it| it.grants).unwrap_or_default();
        used.extend(grants.into_iter().map(|grant| grant.target));
        let rollouts = RolloutStates::of(pool).unwrap_or_default().rollouts;
        used.extend(rollouts.into_values().map(|it| it.target));
        let history = RolloutHistory::of(pool);
        used.extend(history.rollouts.into_iter().map(|it| it.target));
    }
    used.remove("");
    Ok(used)
}

/// Returns the configs that may be removed, by name: those that are not in use, beyond the newest `kept` of each pool.
/// The caller reads nodes and pools from the API server, not from a cache, before it removes one.
pub fn unused_configs<'c>(
    configs: &'c [RenderedConfig],
    used: &BTreeSet<String>,
    kept: usize,
) -> Vec<&'c str> {
    let mut newest: Vec<_> = configs.iter().collect();
    newest.sort_by(|a, b| (&a.pool, b.created, &a.name).cmp(&(&b.pool, a.created, &b.name)));
    let mut unused = Vec::new();
    let mut pool = None;
    let mut rank = 0;
    for config in newest {
        if pool != Some(&config.pool) {
            pool = Some(&config.pool);
            rank = 0;
        }
        if rank >= kept && !used.contains(&config.name) {
            unused.push(config.name.as_str());
        }
        rank += 1;
    }
    unused.sort_unstable();
    unused
}

/// Returns the configs that are in use and do not exist: the controller writes them again from the same bytes.
pub fn missing_configs<'u>(configs: &[RenderedConfig], used: &'u BTreeSet<String>) -> Vec<&'u str> {
    let existing: BTreeSet<&str> = configs.iter().map(|it| it.name.as_str()).collect();
    let used = used.iter().map(String::as_str);
    used.filter(|name| !existing.contains(name)).collect()
}
