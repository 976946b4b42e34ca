//! Taints and tolerations, evaluated like the scheduler and the taint manager do.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;

/// Effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// They are not scheduled.
    NoSchedule,
    /// They are not scheduled if another node is available.
    PreferNoSchedule,
    /// They are not scheduled, and running ones are evicted.
    NoExecute,
}

impl TaintEffect {
    fn named(name: &str) -> Option<Self> {
        match name {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value; empty without one.
    pub value: String,
    /// Its effect.
    pub effect: TaintEffect,
}

impl Taint {
    /// Converts the API type; none for an unknown effect.
    pub fn read(taint: &core::Taint) -> Option<Self> {
        Some(Self {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: TaintEffect::named(&taint.effect)?,
        })
    }
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodToleration {
    /// The key; none for all keys.
    key: Option<String>,
    /// The value that must be equal; none for any.
    value: Option<String>,
    /// The effect; none for all.
    effect: Option<TaintEffect>,
    /// How long the pod stays before it is evicted; none for ever.
    stay: Option<Duration>,
}

/// A toleration that the API server would reject.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadToleration {
    /// `Exists` takes no value.
    #[error("a toleration with operator Exists must not have a value, got {0:?}")]
    ValueWithExists(String),
    /// `Equal` requires a key.
    #[error("a toleration without a key must have the operator Exists")]
    EqualWithoutKey,
    /// An unknown operator.
    #[error("invalid toleration operator {0:?}; expected Equal or Exists")]
    Operator(String),
    /// An unknown effect.
    #[error("invalid toleration effect {0:?}; expected NoSchedule, PreferNoSchedule or NoExecute")]
    Effect(String),
    /// Only an eviction can be delayed.
    #[error("tolerationSeconds requires the effect NoExecute")]
    SecondsWithoutNoExecute,
}

impl TryFrom<&core::Toleration> for PodToleration {
    type Error = BadToleration;

    fn try_from(given: &core::Toleration) -> Result<Self, BadToleration> {
        let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let (key, value) = (text(&given.key), text(&given.value));
        let exists = match text(&given.operator).as_deref() {
            None | Some("Equal") => false,
            Some("Exists") => true,
            Some(other) => return Err(BadToleration::Operator(other.to_owned())),
        };
        let value = match (exists, &key, value) {
            (true, _, Some(value)) => return Err(BadToleration::ValueWithExists(value)),
            (true, _, None) => None,
            (false, None, _) => return Err(BadToleration::EqualWithoutKey),
            (false, Some(_), value) => Some(value.unwrap_or_default()),
        };
        let effect = match text(&given.effect) {
            None => None,
            Some(name) => Some(TaintEffect::named(&name).ok_or(BadToleration::Effect(name))?),
        };
        if given.toleration_seconds.is_some() && effect != Some(TaintEffect::NoExecute) {
            return Err(BadToleration::SecondsWithoutNoExecute);
        }
        // Zero or a negative value means immediately.
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(Self {
            key,
            value,
            effect,
            stay: given.toleration_seconds.map(seconds),
        })
    }
}

impl PodToleration {
    /// Whether it tolerates a taint.
    pub fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self
                .value
                .as_ref()
                .is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

/// How long a running pod stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationTime {
    /// Without a limit.
    Forever,
    /// This long after the taint was added, or longer if the taint is removed before.
    For(Duration),
    /// It is evicted immediately.
    Leaves,
}

/// The effect of a node's taints on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaintEffectOnPod {
    /// Whether it may be scheduled here.
    pub schedulable: bool,
    /// Whether other nodes are preferred.
    pub avoided: bool,
    /// How long it stays if it runs here.
    pub stay: TolerationTime,
}

/// Evaluates a node's taints against a pod's tolerations. When a taint is removed, its delayed
/// eviction is cancelled.
pub fn evaluate_taints(taints: &[Taint], tolerations: &[PodToleration]) -> TaintEffectOnPod {
    let tolerated = |taint: &&Taint| tolerations.iter().any(|one| one.covers(taint));
    let open = |effect: TaintEffect| {
        let mut taints = taints.iter().filter(|taint| taint.effect == effect);
        taints.any(|taint| !tolerated(&taint))
    };
    let removals = taints
        .iter()
        .filter(|one| one.effect == TaintEffect::NoExecute);
    // All tolerations that cover one of the taints count, and the shortest time applies.
    let used = |toleration: &&PodToleration| removals.clone().any(|taint| toleration.covers(taint));
    let shortest = tolerations
        .iter()
        .filter(used)
        .filter_map(|one| one.stay)
        .min();
    let stay = match (open(TaintEffect::NoExecute), shortest) {
        (true, _) => TolerationTime::Leaves,
        (false, Some(Duration::ZERO)) => TolerationTime::Leaves,
        (false, Some(time)) => TolerationTime::For(time),
        (false, None) => TolerationTime::Forever,
    };
    TaintEffectOnPod {
        schedulable: !open(TaintEffect::NoSchedule) && !open(TaintEffect::NoExecute),
        avoided: open(TaintEffect::PreferNoSchedule),
        stay,
    }
}
