//! A taint that a declaration asks for, so that a node with rare hardware is kept for those who need it.

use std::fmt;

/// What a taint does to pods that do not tolerate it. Only what keeps new ones away: no declaration evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// They are not scheduled here.
    NoSchedule,
    /// They are scheduled elsewhere where that is possible.
    PreferNoSchedule,
}

impl Effect {
    /// The effect of this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule];
        all.into_iter().find(|one| one.as_str() == name)
    }

    /// Its name, as Kubernetes spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
        }
    }
}

/// One taint. Two of the same key and effect are one, whatever their values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTaint {
    /// Its key, such as `acme.dev/serial`.
    pub key: String,
    /// Its value; empty for none.
    pub value: String,
    /// What it does.
    pub effect: Effect,
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
