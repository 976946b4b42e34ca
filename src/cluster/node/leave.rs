//! A node that machinist leaves for good: what is ours on its Node goes, and nothing else.
//!
//! The protocol's own annotations stay: they say which config the node is on, which stays true, and whoever
//! comes next – OpenShift's daemon, or an agent that is installed again – begins from them.

use std::sync::Arc;

use serde_json::json;

use super::{Change, OwnNode, cordon::ROUNDS, patches, taints};
use crate::{
    cluster::ClusterError,
    crd::{
        NodeView,
        names::{OURS, annotation, label},
    },
};

/// What was ours on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Our cordon is lifted.
    pub uncordoned: bool,
    /// Our mark goes, and the cordon is a person's from now on.
    pub kept_cordoned: bool,
    /// Annotations that go.
    pub annotations: Vec<String>,
    /// Labels that go.
    pub labels: Vec<String>,
    /// Taints that go, by key.
    pub taints: Vec<String>,
    /// Conditions that go, by type.
    pub conditions: Vec<String>,
}

impl Left {
    /// Judges a Node.
    pub fn of(view: &NodeView) -> Self {
        let ours = view.has_our_mark();
        let person = |name: &&String| *name == annotation::KEEP_CORDONED;
        let annotations = view.annotations.keys();
        let labels = view.labels.keys();
        let conditions = view.status.conditions.iter();
        let stands_back = view.annotations.contains_key(annotation::STANDS_BACK)
            && view.labels.contains_key(label::NO_REMEDIATION);
        Self {
            uncordoned: ours && view.is_cordoned() && !view.keeps_cordon(),
            kept_cordoned: ours && view.is_cordoned() && view.keeps_cordon(),
            annotations: annotations
                .filter(|name| name.starts_with(OURS) && !person(name))
                .cloned()
                .collect(),
            labels: stands_back
                .then(|| label::NO_REMEDIATION.to_owned())
                .into_iter()
                .chain(labels.filter(|name| name.starts_with(OURS)).cloned())
                .collect(),
            taints: (view.spec.taints.iter())
                .filter(|taint| patches::is_our_taint(taint) || taints::is_ours(view, taint))
                .map(|taint| taint.key.clone())
                .collect(),
            conditions: conditions
                .map(|condition| condition.kind.clone())
                .filter(|kind| kind.starts_with(OURS))
                .collect(),
        }
    }

    /// Whether anything but conditions goes, which are written elsewhere.
    pub(super) fn is_of_the_object(&self) -> bool {
        self.uncordoned
            || [&self.annotations, &self.labels, &self.taints]
                .iter()
                .any(|all| !all.is_empty())
    }
}

impl OwnNode {
    /// Takes away what is ours, or only says what that is; none where there is no such Node.
    ///
    /// Reads first, and again where somebody writes in between. What is gone already is not missed, so
    /// the same again goes on after any crash.
    ///
    /// # Errors
    /// The API server does not do it.
    pub async fn leave(&self, only_look: bool) -> Result<Option<Left>, ClusterError> {
        let mut rounds = 0;
        loop {
            let Some(view): Option<Arc<NodeView>> = self.read().await? else {
                return Ok(None);
            };
            let left = Left::of(&view);
            if only_look {
                return Ok(Some(left));
            }
            match self.take_away(&view, &left).await {
                Ok(()) => return Ok(Some(left)),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && rounds < ROUNDS => rounds += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn take_away(&self, view: &NodeView, left: &Left) -> Result<(), ClusterError> {
        // Conditions first: the second request tests the version that it read, and this one makes
        // another. It carries the UID instead.
        if !left.conditions.is_empty() {
            let gone = left.conditions.iter();
            let gone = gone.map(|kind| json!({"type": kind, "$patch": "delete"}));
            let status = json!({
                "metadata": {"uid": view.uid},
                "status": {"conditions": gone.collect::<Vec<_>>()},
            });
            self.change(&Change::Conditions(status)).await?;
        }
        if left.is_of_the_object() {
            let now = self.read().await?;
            let now = now.as_deref().unwrap_or(view);
            if Left::of(now).is_of_the_object() {
                self.change(&patches::leave(now, &Left::of(now))).await?;
            }
        }
        Ok(())
    }
}
