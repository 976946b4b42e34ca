//! Draining a node: which pods are evicted, in which order, what blocks them, and when they are
//! deleted by force.
//!
//! Everything except [`eviction`] is pure: the same pods, budgets and times give the same result,
//! without requests. Pods and budgets are converted once from the API types ([`Pod`], [`DisruptionBudget`])
//! into small values; times are parameters.
//!
//! The rules are those of `kubectl drain` (the filters and their order, the definitions of
//! unmanaged pods and local data), with three differences: the process's own pod is never evicted,
//! all reasons against a pod are reported instead of the last one, and a grace period of zero is
//! never used.

mod blockers;
mod budgets;
pub mod eviction;
mod eviction_response;
mod force;
mod grace_period;
mod pod;
mod pod_classification;
mod priority_tier;
mod selector;
mod taints;

pub use blockers::{ControllerNames, PodWait, WaitReason};
pub use budgets::{
    BudgetForecast, BudgetStatus, DisruptionBudget, UnhealthyPodPolicy, blocking_forecast,
    is_evicted, prospect,
};
pub use eviction_response::{EvictionCallError, EvictionError, EvictionResponse, StatusCause};
pub use force::{ForceAction, ForceLimits};
pub use grace_period::{BadGrace, Grace};
pub use pod::{Pod, PodController, PodId, PodPhase};
pub use pod_classification::{
    DaemonSets, DrainRules, LossPolicy, NamespacePattern, PodDisposition, PodNote, classify,
    controllers,
};
pub use priority_tier::{
    CLUSTER_CRITICAL_PRIORITY, NODE_CRITICAL_PRIORITY, PriorityTier, in_order,
};
pub use selector::PodSelector;
pub use taints::{
    BadToleration, PodToleration, Taint, TaintEffect, TaintEffectOnPod, TolerationTime,
    evaluate_taints,
};
