//! PodDisruptionBudgets: which of them match a pod, and whether they will allow its eviction.
//!
//! The API server decides; this module predicts its decision, so that an operator learns about a
//! budget that can never allow an eviction before the first pod is disturbed.

use std::fmt;

use jiff::Timestamp;

use k8s_openapi::{api::policy::v1 as policy, apimachinery::pkg::util::intstr::IntOrString};

use super::{DaemonSets, DrainRules, Pod, PodDisposition, PodPhase, PodSelector, classify};

/// `unhealthyPodEvictionPolicy`: how a budget treats pods that run but are not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnhealthyPodPolicy {
    /// They may be evicted while enough other pods are healthy. The default.
    #[default]
    IfHealthyBudget,
    /// They may always be evicted.
    AlwaysAllow,
}

/// The counts of a budget from its status, as last computed by the disruption controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetStatus {
    /// Evictions that are allowed now.
    pub allowed: i32,
    /// Healthy pods.
    pub current: i32,
    /// Pods that must be healthy.
    pub desired: i32,
    /// Pods that the budget matches.
    pub expected: i32,
}

/// `2 of 3 pods healthy, 2 required`.
impl fmt::Display for BudgetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            current,
            expected,
            desired,
            ..
        } = self;
        write!(
            f,
            "{current} of {expected} pods healthy, {desired} required"
        )
    }
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq)]
pub struct DisruptionBudget {
    /// Its namespace; it matches only pods in it.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Selects the pods.
    pub selector: PodSelector,
    /// Its rule as written, such as `maxUnavailable 0`.
    pub rule: String,
    /// How it treats pods that are not ready.
    pub unhealthy: UnhealthyPodPolicy,
    /// Its counts; none until the controller has processed the current generation.
    pub counts: Option<BudgetStatus>,
}

impl fmt::Display for DisruptionBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl From<&policy::PodDisruptionBudget> for DisruptionBudget {
    fn from(budget: &policy::PodDisruptionBudget) -> Self {
        let spec = budget.spec.as_ref();
        let policy = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
        let counted = budget.status.as_ref().filter(|status| {
            status.observed_generation.unwrap_or_default()
                >= budget.metadata.generation.unwrap_or_default()
        });
        Self {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            name: budget.metadata.name.clone().unwrap_or_default(),
            selector: PodSelector::new(spec.and_then(|spec| spec.selector.as_ref())),
            rule: spec.map(rule).unwrap_or_default(),
            unhealthy: match policy {
                Some("AlwaysAllow") => UnhealthyPodPolicy::AlwaysAllow,
                _ => UnhealthyPodPolicy::IfHealthyBudget,
            },
            counts: counted.map(|status| BudgetStatus {
                allowed: status.disruptions_allowed,
                current: status.current_healthy,
                desired: status.desired_healthy,
                expected: status.expected_pods,
            }),
        }
    }
}

fn rule(spec: &policy::PodDisruptionBudgetSpec) -> String {
    let number = |value: &IntOrString| match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => format!("maxUnavailable {}", number(most)),
        (None, Some(least)) => format!("minAvailable {}", number(least)),
        (None, None) => String::new(),
    }
}

impl DisruptionBudget {
    /// Its counts for people, also when they are not known.
    pub fn counts_text(&self) -> String {
        match self.counts {
            Some(counts) => counts.to_string(),
            None => "not processed by the disruption controller yet".to_owned(),
        }
    }

    /// Whether it matches this pod.
    pub fn counts_pod(&self, pod: &Pod) -> bool {
        self.namespace == pod.id.namespace && self.selector.matches(&pod.labels)
    }

    /// Whether it has recovered from a drain: it allows a disruption again, or has as many healthy pods as it can
    /// ever have.
    pub fn has_recovered(&self) -> bool {
        self.counts.is_some_and(|counts| {
            counts.allowed > 0 || counts.expected == 0 || counts.current >= counts.expected
        })
    }

    /// Whether no pod can ever be evicted, because all pods must be healthy. `maxUnavailable: 0`,
    /// `minAvailable: 100%` and `minAvailable` = replicas all have this effect.
    pub fn never_allows(&self) -> bool {
        self.counts
            .is_some_and(|counts| counts.expected > 0 && counts.desired >= counts.expected)
    }
}

/// Predicted result of an eviction.
#[derive(Clone, Debug, PartialEq)]
pub enum BudgetForecast<'a> {
    /// No budget applies.
    Free,
    /// The budget would allow it now.
    Allowed(&'a DisruptionBudget),
    /// Not now. It may be allowed when more pods are healthy, or when the budget's counts are up to
    /// date.
    Later(&'a DisruptionBudget),
    /// Never, unless the budget or the number of pods changes.
    Never(&'a DisruptionBudget),
    /// Several budgets match the pod: the API server returns an error.
    Several(Vec<&'a DisruptionBudget>),
}

/// Predicts the API server's response to the eviction of a pod, given the budgets of its namespace.
/// The checks are in the server's order.
pub fn prospect<'a>(pod: &Pod, budgets: &'a [DisruptionBudget]) -> BudgetForecast<'a> {
    if pod.life != PodPhase::Running || pod.is_terminating() {
        return BudgetForecast::Free;
    }
    let counting: Vec<_> = budgets.iter().filter(|one| one.counts_pod(pod)).collect();
    match counting[..] {
        [] => BudgetForecast::Free,
        [budget] => alone(pod, budget),
        _ => BudgetForecast::Several(counting),
    }
}

/// What keeps a pod that an unattended drain would evict; none if nothing does, or if the drain leaves it.
pub fn blocking_forecast<'a>(
    pod: &Pod,
    budgets: &'a [DisruptionBudget],
    now: Timestamp,
) -> Option<BudgetForecast<'a>> {
    let forecast = prospect(pod, budgets);
    let is_free = matches!(forecast, BudgetForecast::Free | BudgetForecast::Allowed(_));
    (is_evicted(pod, now) && !is_free).then_some(forecast)
}

/// Whether the drain of an update evicts the pod, as far as can be told without its DaemonSet.
pub fn is_evicted(pod: &Pod, now: Timestamp) -> bool {
    let rules = DrainRules::unattended(None);
    let disposition = classify(pod, &rules, &DaemonSets::default(), now);
    matches!(disposition, PodDisposition::Evict(_))
}

fn alone<'a>(pod: &Pod, budget: &'a DisruptionBudget) -> BudgetForecast<'a> {
    let unready = !pod.ready;
    if unready && budget.unhealthy == UnhealthyPodPolicy::AlwaysAllow {
        return BudgetForecast::Allowed(budget);
    }
    let Some(counts) = budget.counts else {
        return BudgetForecast::Later(budget);
    };
    let enough_others = counts.desired > 0 && counts.current >= counts.desired;
    match () {
        () if unready && enough_others => BudgetForecast::Allowed(budget),
        () if counts.allowed > 0 => BudgetForecast::Allowed(budget),
        () if budget.never_allows() => BudgetForecast::Never(budget),
        () => BudgetForecast::Later(budget),
    }
}
