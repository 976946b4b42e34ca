//! Which pods must go, which stay, and which speak against the whole drain.
//!
//! The questions are `kubectl drain`'s, in its order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Controller, Pod};
use crate::reason::Reason;

/// What is done about pods that lose something by being evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permit {
    /// Nobody is evicted, and that is said.
    #[default]
    Refuse,
    /// They are evicted, and that is said.
    Evict,
}

/// A pattern for names of namespaces: `*` stands for any run of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Any text is a pattern.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether the whole name fits.
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

/// How a drain treats pods. The default is what the command does: kubectl's strictness.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// UID of the pod that drains; it is never touched.
    pub own: Option<String>,
    /// Namespaces that are left alone.
    pub left_out: Vec<Pattern>,
    /// Whether pods of DaemonSets are left where they are; otherwise they refuse the drain.
    pub leave_daemon_sets: bool,
    /// Pods that nobody makes anew: bare ones, and those whose DaemonSet is gone.
    pub unmanaged: Permit,
    /// Pods with `emptyDir` volumes.
    pub local_data: Permit,
    /// Pods that should have ended so long ago are not waited for.
    pub skip_deleted: Option<Duration>,
}

impl Rules {
    /// For updates that nobody watches: everything that can be evicted is, and said.
    pub fn unattended(own: Option<String>) -> Self {
        Self {
            own,
            leave_daemon_sets: true,
            unmanaged: Permit::Evict,
            local_data: Permit::Evict,
            ..Self::default()
        }
    }

    /// Whether a pod should have ended longer ago than is waited for.
    pub fn skips(&self, pod: &Pod, now: Timestamp) -> bool {
        match (self.skip_deleted, pod.deleting) {
            (Some(longest), Some(deadline)) => now.duration_since(deadline) > signed(longest),
            _ => false,
        }
    }
}

/// For comparisons with what may lie in the future.
pub(super) fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}

/// The DaemonSets that pods name as their controllers, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSets(BTreeMap<(String, String), bool>);

impl DaemonSets {
    /// Whether one is known to be there (`Some(true)`), gone, or has not been asked for.
    pub fn get(&self, namespace: &str, name: &str) -> Option<bool> {
        let key = (namespace.to_owned(), name.to_owned());
        self.0.get(&key).copied()
    }

    /// Notes that one is there or gone.
    pub fn insert(&mut self, namespace: &str, name: &str, there: bool) {
        self.0
            .insert((namespace.to_owned(), name.to_owned()), there);
    }
}

/// The DaemonSets, by namespace and name, that must be asked for before these pods can be judged.
pub fn controllers<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<(String, String)> {
    let pods = pods.into_iter().filter(|pod| !pod.is_finished());
    let named = pods.filter_map(|pod| Some((pod, daemon_set(pod)?)));
    named
        .map(|(pod, set)| (pod.id.namespace.clone(), set.name.clone()))
        .collect()
}

fn daemon_set(pod: &Pod) -> Option<&Controller> {
    let controller = pod.controller.as_ref()?;
    (controller.kind == "DaemonSet" && controller.api_version == "apps/v1").then_some(controller)
}

/// Something that a person should know about a pod's part in a drain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// A DaemonSet makes it; one eviction later it would be here again.
    DaemonSetPod,
    /// Its DaemonSet is gone: nobody makes it anew.
    DaemonSetMissing(String),
    /// Nobody makes it anew.
    Unmanaged,
    /// What these volumes hold is lost with it.
    LocalData(Vec<String>),
    /// It should have ended long ago, and is not waited for.
    EndsTooSlowly,
    /// Its namespace is left alone.
    LeftOut,
}

impl Note {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::DaemonSetPod => Reason::DrainDaemonSetPod,
            Self::DaemonSetMissing(_) => Reason::DrainDaemonSetMissing,
            Self::Unmanaged => Reason::DrainPodUnmanaged,
            Self::LocalData(_) => Reason::DrainLocalData,
            Self::EndsTooSlowly => Reason::DrainPodOverdue,
            Self::LeftOut => Reason::DrainNamespaceLeftOut,
        }
    }

    /// Nobody makes the pod anew.
    pub const fn is_for_good(&self) -> bool {
        matches!(self, Self::DaemonSetMissing(_) | Self::Unmanaged)
    }

    /// What is said of the pod, after its name.
    pub fn sentence(&self) -> String {
        match self {
            Self::DaemonSetPod => "is made by a DaemonSet".to_owned(),
            Self::DaemonSetMissing(name) => {
                format!("is not made anew: its DaemonSet {name} is gone")
            }
            Self::Unmanaged => "is not made anew: it has no controller".to_owned(),
            Self::LocalData(volumes) => {
                format!("loses its local data ({})", volumes.join(", "))
            }
            Self::EndsTooSlowly => "should have ended long ago and is not waited for".to_owned(),
            Self::LeftOut => "is in a namespace that is left out".to_owned(),
        }
    }
}

/// What a drain does about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It must go; the notes say what is lost.
    Evict(Vec<Note>),
    /// It stays and nobody waits for it. Mirror pods and our own are not even worth a note.
    Leave(Option<Note>),
    /// While it is treated by these rules nobody may be evicted.
    Refuse(Vec<Note>),
}

/// Judges one pod. `sets` must hold what [`controllers`] asks for: a DaemonSet that nobody has asked
/// for counts as there, so that no pod is evicted out of ignorance.
pub fn classify(pod: &Pod, rules: &Rules, sets: &DaemonSets, now: Timestamp) -> Verdict {
    // Before everything else, its DaemonSet may be gone and everything may be forced.
    if rules.own.as_ref() == Some(&pod.id.uid) {
        return Verdict::Leave(None);
    }
    let namespace = &pod.id.namespace;
    if rules.left_out.iter().any(|one| one.matches(namespace)) {
        return Verdict::Leave(Some(Note::LeftOut));
    }
    if rules.skips(pod, now) {
        return Verdict::Leave(Some(Note::EndsTooSlowly));
    }
    let mut lost = Vec::new();
    if let Some(set) = daemon_set(pod).filter(|_| !pod.is_finished()) {
        match sets.get(namespace, &set.name) {
            Some(false) => lost.push((Note::DaemonSetMissing(set.name.clone()), rules.unmanaged)),
            _ if rules.leave_daemon_sets => return Verdict::Leave(Some(Note::DaemonSetPod)),
            _ => return Verdict::Refuse(vec![Note::DaemonSetPod]),
        }
    }
    // After the DaemonSet, as in kubectl: a mirror pod of a missing one stops the drain as well.
    if pod.mirror && lost.iter().all(|(_, permit)| *permit == Permit::Evict) {
        return Verdict::Leave(None);
    }
    if !pod.is_finished() {
        if !pod.local_data.is_empty() {
            lost.push((Note::LocalData(pod.local_data.clone()), rules.local_data));
        }
        if pod.controller.is_none() {
            lost.push((Note::Unmanaged, rules.unmanaged));
        }
    }
    let refused = lost.iter().any(|(_, permit)| *permit == Permit::Refuse);
    let said = lost
        .into_iter()
        .filter(|(_, permit)| !refused || *permit == Permit::Refuse);
    let notes = said.map(|(note, _)| note).collect();
    match refused {
        true => Verdict::Refuse(notes),
        false => Verdict::Evict(notes),
    }
}
