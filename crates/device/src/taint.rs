//! Node taints that declarations request, so that a node with rare hardware is reserved for pods that
//! need it.

use std::fmt;

/// The effect of a taint on pods that do not tolerate it. Declarations cannot evict pods, so there is
/// no `NoExecute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeTaintEffect {
    /// They are not scheduled here.
    NoSchedule,
    /// They are scheduled elsewhere where that is possible.
    PreferNoSchedule,
}

impl NodeTaintEffect {
    /// The effect with this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule];
        all.into_iter().find(|one| one.as_str() == name)
    }

    /// Its name in Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
        }
    }
}

/// A taint. Kubernetes treats two taints with the same key and effect as one, whatever their values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTaint {
    /// Its key, such as `acme.dev/serial`.
    pub key: String,
    /// Its value; may be empty.
    pub value: String,
    /// Its effect.
    pub effect: NodeTaintEffect,
}

impl fmt::Display for NodeTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = self.effect.as_str();
        match self.value.as_str() {
            "" => write!(f, "{}:{effect}", self.key),
            value => write!(f, "{}={value}:{effect}", self.key),
        }
    }
}
