//! Which reboot the update of each pool needs, for its windows. It follows from the configs and the policies of the
//! cluster; units and files of the machines are not known.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{config_object::ConfigObject, render::parsed, rollout_view::RolloutView};
use machinist_ignition::ConfigRules;
use machinist_kube_api::keys::pool_annotation;
use machinist_plan::{Cost, Policies, without_machine};
use machinist_pool::{RebootKind, split};

/// How many current configs of a pool are compared with its target. More are rare, and a reboot is assumed then.
const MAX_CURRENT_CONFIGS: usize = 8;

/// The name and resource version of a current config, and those of a target.
type ConfigPair = [(String, String); 2];

/// Compares configs, each pair once.
#[derive(Debug)]
pub(crate) struct RebootKinds {
    rules: ConfigRules,
    known: BTreeMap<ConfigPair, RebootKind>,
    /// The object with the policies that the pairs were compared with.
    policies: Option<Value>,
}

impl RebootKinds {
    pub(crate) const fn new(rules: ConfigRules) -> Self {
        Self {
            rules,
            known: BTreeMap::new(),
            policies: None,
        }
    }

    /// The reboot that each pool needs whose nodes are not all on its target.
    pub(crate) async fn turn(
        &mut self,
        view: &RolloutView,
        configs: &BTreeMap<String, ConfigObject>,
        policies: Option<&Value>,
    ) -> BTreeMap<String, RebootKind> {
        if self.policies.as_ref() != policies {
            self.known.clear();
            self.policies = policies.cloned();
        }
        let before = std::mem::take(&mut self.known);
        let mut kinds = BTreeMap::new();
        for (pool, target, current) in updates(view) {
            let mut kind = RebootKind::None;
            for name in current {
                let (from, to) = (configs.get(&name), configs.get(&target));
                kind = kind.max(match from.zip(to) {
                    Some((from, to)) => self.kind(from, to, &before).await,
                    None => RebootKind::Full,
                });
            }
            kinds.insert(pool, kind);
        }
        kinds
    }

    async fn kind(
        &mut self,
        from: &ConfigObject,
        to: &ConfigObject,
        before: &BTreeMap<ConfigPair, RebootKind>,
    ) -> RebootKind {
        let pair = [from, to].map(|it| (it.name.clone(), it.resource_version.clone()));
        let known = self.known.get(&pair).or_else(|| before.get(&pair)).copied();
        let kind = match known {
            Some(kind) => kind,
            None => self.compared(from, to).await,
        };
        self.known.insert(pair, kind);
        kind
    }

    /// Compares in another thread: configs may have megabytes of files.
    async fn compared(&self, from: &ConfigObject, to: &ConfigObject) -> RebootKind {
        let [from, to] = [from, to].map(|it| (it.name.clone(), it.text.clone()));
        let (rules, policies) = (self.rules.clone(), self.policies.clone());
        let compared =
            tokio::task::spawn_blocking(move || kind(&from, &to, &rules, policies.as_ref()));
        compared.await.ok().flatten().unwrap_or_default()
    }
}

/// The reboot with which a machine gets from one config to another; none if that is not known.
fn kind(
    from: &(String, String),
    to: &(String, String),
    rules: &ConfigRules,
    policies: Option<&Value>,
) -> Option<RebootKind> {
    let own = policies.filter(|it| !it["spec"]["nodeDisruptionPolicy"].is_null());
    let policies = match own {
        None => Policies::default(),
        Some(object) => Policies::from_machine_configuration(object).ok()?,
    };
    let [from, to] = [from, to].map(|(name, text)| parsed(name, text, rules).ok());
    let plan = without_machine(&from?, &to?, &policies).ok()?;
    Some(reboot_of(plan.cost))
}

/// The reboot that a change of this cost needs.
pub const fn reboot_of(cost: Cost) -> RebootKind {
    match cost {
        Cost::Reboot => RebootKind::Full,
        Cost::SoftReboot => RebootKind::Soft,
        _ => RebootKind::None,
    }
}

/// The pools with nodes that are not on the target: name, target, and the current configs of those nodes.
fn updates(view: &RolloutView) -> Vec<(String, String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for members in &split(view.pools(), view.nodes()).pools {
        let pool = members.pool;
        let rendered = pool.spec.configuration.name.as_str();
        let pinned = pool.annotation(pool_annotation::PINNED_CONFIG);
        let target = pinned.unwrap_or(rendered);
        let nodes = members.nodes.iter();
        let current: Option<BTreeSet<&str>> = nodes.map(|node| node.current_config()).collect();
        // The configs of all nodes are known.
        let Some(mut current) = current else { continue };
        current.remove(target);
        if !target.is_empty() && (1..=MAX_CURRENT_CONFIGS).contains(&current.len()) {
            let current = current.into_iter().map(str::to_owned).collect();
            found.push((pool.name.clone(), target.to_owned(), current));
        }
    }
    found
}
