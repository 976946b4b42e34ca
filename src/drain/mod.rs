//! Taking the pods off a node: which must go, in which order, what they wait for, and when waiting is
//! over.
//!
//! Everything here but [`evict`] is vocabulary: the same pods, budgets and times give the same answer,
//! and nobody is asked. Pods and budgets are read from the API's own types once ([`Pod`], [`Budget`])
//! and are small afterwards; times come in as values.
//!
//! The rules are those of `kubectl drain` (filters in their order, what counts as unmanaged, what local
//! data is) where they are right. They differ in three places: our own pod is never touched, every reason
//! that speaks against a pod is told and not only the last, and no pod is ever asked to end within zero
//! seconds.

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
