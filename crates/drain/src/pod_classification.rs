//! Decides for each pod whether it is evicted, stays, or prevents the drain.
//!
//! The checks are those of `kubectl drain`, in the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Pod, PodController};
use machinist_base::reason::Reason;

/// How to treat pods that lose something when they are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossPolicy {
    /// The drain is refused, and the reason is reported.
    #[default]
    Refuse,
    /// They are evicted, and the reason is reported.
    Evict,
}

/// A pattern for namespace names; `*` matches any sequence of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePattern(String);

impl NamespacePattern {
    /// Creates a pattern; any text is valid.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else {
            return self.0 == name;
        };
        let Some(mut name) = name.strip_prefix(start) else {
            return false;
        };
        let mut parts: Vec<_> = rest.split('*').collect();
        let end = parts.pop().unwrap_or_default();
        for part in parts {
            let Some(at) = name.find(part) else {
                return false;
            };
            name = &name[at + part.len()..];
        }
        name.ends_with(end)
    }
}

/// How a drain treats pods. The default is that of the command line, as strict as kubectl.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainRules {
    /// UID of the draining process's own pod, which is never evicted.
    pub own: Option<String>,
    /// Namespaces whose pods stay.
    pub left_out: Vec<NamespacePattern>,
    /// Whether pods of DaemonSets stay; otherwise they prevent the drain.
    pub leave_daemon_sets: bool,
    /// Pods that no controller recreates: bare pods, and those whose DaemonSet does not exist.
    pub unmanaged: LossPolicy,
    /// Pods with `emptyDir` volumes.
    pub local_data: LossPolicy,
    /// Pods that should have ended longer ago than this are not waited for.
    pub skip_deleted: Option<Duration>,
}

impl DrainRules {
    /// For unattended updates: all evictable pods are evicted, and losses are reported.
    pub fn unattended(own: Option<String>) -> Self {
        Self {
            own,
            leave_daemon_sets: true,
            unmanaged: LossPolicy::Evict,
            local_data: LossPolicy::Evict,
            ..Self::default()
        }
    }

    /// Whether a pod should have ended longer ago than `skip_deleted`.
    pub fn skips(&self, pod: &Pod, now: Timestamp) -> bool {
        match (self.skip_deleted, pod.deleting) {
            (Some(longest), Some(deadline)) => now.duration_since(deadline) > signed(longest),
            _ => false,
        }
    }
}

/// For comparison with times that may be in the future.
pub(super) fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}

/// The DaemonSets that pods name as their controllers, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSets(BTreeMap<(String, String), bool>);

impl DaemonSets {
    /// Whether it exists; none if it was not looked up.
    pub fn get(&self, namespace: &str, name: &str) -> Option<bool> {
        let key = (namespace.to_owned(), name.to_owned());
        self.0.get(&key).copied()
    }

    /// Records whether it exists.
    pub fn insert(&mut self, namespace: &str, name: &str, there: bool) {
        self.0
            .insert((namespace.to_owned(), name.to_owned()), there);
    }
}

/// The DaemonSets, by namespace and name, that must be looked up before these pods can be
/// classified.
pub fn controllers<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<(String, String)> {
    let pods = pods.into_iter().filter(|pod| !pod.is_finished());
    let named = pods.filter_map(|pod| Some((pod, daemon_set(pod)?)));
    named
        .map(|(pod, set)| (pod.id.namespace.clone(), set.name.clone()))
        .collect()
}

fn daemon_set(pod: &Pod) -> Option<&PodController> {
    let controller = pod.controller.as_ref()?;
    (controller.kind == "DaemonSet" && controller.api_version == "apps/v1").then_some(controller)
}

/// A note about a pod for the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodNote {
    /// Its DaemonSet would recreate it immediately.
    DaemonSetPod,
    /// Its DaemonSet does not exist, so it is not recreated.
    DaemonSetMissing(String),
    /// No controller recreates it.
    Unmanaged,
    /// The data in these volumes is lost.
    LocalData(Vec<String>),
    /// It should have ended long ago, and is not waited for.
    EndsTooSlowly,
    /// Its namespace is excluded.
    LeftOut,
}

impl PodNote {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::DaemonSetPod => Reason::DrainDaemonSetPod,
            Self::DaemonSetMissing(_) => Reason::DrainDaemonSetMissing,
            Self::Unmanaged => Reason::DrainPodUnmanaged,
            Self::LocalData(_) => Reason::DrainLocalData,
            Self::EndsTooSlowly => Reason::PodTerminationOverdue,
            Self::LeftOut => Reason::NamespaceExcluded,
        }
    }

    /// Whether no controller recreates the pod.
    pub const fn is_for_good(&self) -> bool {
        matches!(self, Self::DaemonSetMissing(_) | Self::Unmanaged)
    }

    /// The note as text that follows the pod's name.
    pub fn sentence(&self) -> String {
        match self {
            Self::DaemonSetPod => "is managed by a DaemonSet".to_owned(),
            Self::DaemonSetMissing(name) => {
                format!("will not be recreated: its DaemonSet {name} does not exist")
            }
            Self::Unmanaged => "will not be recreated: it has no controller".to_owned(),
            Self::LocalData(volumes) => {
                format!("loses its local data ({})", volumes.join(", "))
            }
            Self::EndsTooSlowly => "is overdue to terminate and is not waited for".to_owned(),
            Self::LeftOut => "is in an excluded namespace".to_owned(),
        }
    }
}

/// What a drain does with one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDisposition {
    /// It is evicted; the notes describe losses.
    Evict(Vec<PodNote>),
    /// It stays and is not waited for. Mirror pods and the process's own pod have no note.
    Leave(Option<PodNote>),
    /// These rules do not allow its eviction, so no pod is evicted.
    Refuse(Vec<PodNote>),
}

/// Classifies one pod. `sets` must contain the DaemonSets of [`controllers`]: one that was not
/// looked up counts as existing, so that missing information never causes an eviction.
pub fn classify(
    pod: &Pod,
    rules: &DrainRules,
    sets: &DaemonSets,
    now: Timestamp,
) -> PodDisposition {
    // First, because the later checks could allow its eviction.
    if rules.own.as_ref() == Some(&pod.id.uid) {
        return PodDisposition::Leave(None);
    }
    let namespace = &pod.id.namespace;
    if rules.left_out.iter().any(|one| one.matches(namespace)) {
        return PodDisposition::Leave(Some(PodNote::LeftOut));
    }
    if rules.skips(pod, now) {
        return PodDisposition::Leave(Some(PodNote::EndsTooSlowly));
    }
    let mut lost = Vec::new();
    if let Some(set) = daemon_set(pod).filter(|_| !pod.is_finished()) {
        match sets.get(namespace, &set.name) {
            Some(false) => {
                lost.push((PodNote::DaemonSetMissing(set.name.clone()), rules.unmanaged))
            }
            _ if rules.leave_daemon_sets => {
                return PodDisposition::Leave(Some(PodNote::DaemonSetPod));
            }
            _ => return PodDisposition::Refuse(vec![PodNote::DaemonSetPod]),
        }
    }
    // After the DaemonSet check, as in kubectl: a mirror pod of a missing DaemonSet also prevents
    // the drain.
    if pod.mirror && lost.iter().all(|(_, permit)| *permit == LossPolicy::Evict) {
        return PodDisposition::Leave(None);
    }
    if !pod.is_finished() {
        if !pod.local_data.is_empty() {
            lost.push((PodNote::LocalData(pod.local_data.clone()), rules.local_data));
        }
        if pod.controller.is_none() {
            lost.push((PodNote::Unmanaged, rules.unmanaged));
        }
    }
    let refused = lost.iter().any(|(_, permit)| *permit == LossPolicy::Refuse);
    let said = lost
        .into_iter()
        .filter(|(_, permit)| !refused || *permit == LossPolicy::Refuse);
    let notes = said.map(|(note, _)| note).collect();
    match refused {
        true => PodDisposition::Refuse(notes),
        false => PodDisposition::Evict(notes),
    }
}
