//! PodDisruptionBudgets and pods, reduced to what blockers depend on.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{ResourceExt as _, core::Selector};

use machinist_drain::{DisruptionBudget, Pod};

/// A PodDisruptionBudget, and the selector of its pods as a request has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WatchedBudget {
    pub(crate) budget: DisruptionBudget,
    /// `None` if it selects no pods.
    pub(crate) selector: Option<String>,
}

impl From<PodDisruptionBudget> for WatchedBudget {
    fn from(object: PodDisruptionBudget) -> Self {
        let spec = object.spec.as_ref();
        let selector = spec.and_then(|spec| spec.selector.clone());
        let selector = selector.and_then(|labels| Selector::try_from(labels).ok());
        Self {
            budget: DisruptionBudget::from(&object),
            selector: selector.map(|selector| selector.to_string()),
        }
    }
}

impl WatchedBudget {
    /// The name under which a budget is kept: names are unique only within a namespace.
    pub(crate) fn key(object: &PodDisruptionBudget) -> String {
        let namespace = object.namespace().unwrap_or_default();
        format!("{namespace}/{}", object.name_any())
    }

    /// Whether no pod of it can be evicted now.
    pub(crate) fn allows_none(&self) -> bool {
        self.budget.counts.is_none_or(|counts| counts.allowed <= 0)
    }
}

/// A pod, and the Node that it is bound to.
#[derive(Clone, Debug)]
pub(crate) struct BoundPod {
    pub(crate) node: String,
    pub(crate) pod: Pod,
}
