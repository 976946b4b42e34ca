//! Draining a node: which pods are evicted, in which order, what blocks them, and when they are
//! deleted by force.
//!
//! Everything except [`evict`] is pure: the same pods, budgets and times give the same result,
//! without requests. Pods and budgets are converted once from the API types ([`Pod`], [`Budget`])
//! into small values; times are parameters.
//!
//! The rules are those of `kubectl drain` (the filters and their order, the definitions of
//! unmanaged pods and local data), with three differences: the process's own pod is never evicted,
//! all reasons against a pod are reported instead of the last one, and a grace period of zero is
//! never used.

mod answer;
mod blockers;
mod budgets;
mod classify;
pub mod evict;
mod forced;
mod grace;
mod order;
mod pod;
mod selector;
mod taints;

pub use answer::{Answer, CallError, Cause, Refused};
pub use blockers::{Names, Wait, What};
pub use budgets::{Budget, Counts, Prospect, Unhealthy, prospect};
pub use classify::{DaemonSets, Note, Pattern, Permit, Rules, Verdict, classify, controllers};
pub use forced::{Act, Limits};
pub use grace::{BadGrace, Grace};
pub use order::{CLUSTER_CRITICAL, NODE_CRITICAL, Tier, in_order};
pub use pod::{Controller, Life, Pod, PodId};
pub use selector::Selector;
pub use taints::{BadToleration, Effect, Standing, Stay, Taint, Toleration, standing};
