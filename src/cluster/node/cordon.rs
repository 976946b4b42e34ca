//! Whose cordon it is.

use std::sync::Arc;

use super::{OwnNode, patches};
use crate::{cluster::ClusterError, crd::NodeView};

/// Others write to a Node all the time: the kubelet its status, controllers their annotations. Each
/// costs one round; so many in a row are no accident.
pub(in crate::cluster) const ROUNDS: usize = 8;

/// How a Node came to be cordoned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// By us, now or before: we lift it.
    Ours,
    /// By somebody else, before us: it stays.
    Theirs,
    /// There is no such Node.
    NoNode,
}

/// What became of our cordon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uncordon {
    /// It is lifted.
    Lifted,
    /// A person wants the node to stay cordoned; from now on the cordon is theirs.
    Kept,
    /// There is none of ours: the node is as somebody else wants it.
    NotOurs,
    /// There is no such Node.
    NoNode,
}

impl OwnNode {
    /// Makes the node unschedulable and says, in the same request, that it was us; a cordon that is
    /// there already and does not carry our mark stays somebody else's.
    ///
    /// Reads first and never trusts a watch; where somebody writes in between, reads again. The same
    /// again changes nothing, so it may be repeated after any crash.
    pub async fn cordon(&self) -> Result<Cordon, ClusterError> {
        self.settle(|view| match (view.is_cordoned(), view.has_our_mark()) {
            (true, true) => Err(Cordon::Ours),
            (true, false) => Err(Cordon::Theirs),
            (false, _) => Ok((patches::cordon(view), Cordon::Ours)),
        })
        .await
        .map(|settled| settled.unwrap_or(Cordon::NoNode))
    }

    /// Lifts the cordon if it is ours and nobody wants it kept.
    pub async fn uncordon(&self) -> Result<Uncordon, ClusterError> {
        self.settle(|view| match (view.has_our_mark(), view.keeps_cordon()) {
            (false, _) => Err(Uncordon::NotOurs),
            (true, true) => Ok((patches::uncordon(view, false), Uncordon::Kept)),
            (true, false) => Ok((patches::uncordon(view, true), Uncordon::Lifted)),
        })
        .await
        .map(|settled| settled.unwrap_or(Uncordon::NoNode))
    }

    /// Reads, decides, writes; begins anew where somebody wrote in between. None: no Node.
    async fn settle<T>(
        &self,
        decide: impl Fn(&NodeView) -> Result<(super::Change, T), T>,
    ) -> Result<Option<T>, ClusterError> {
        let mut rounds = 0;
        loop {
            let Some(view): Option<Arc<NodeView>> = self.read().await? else {
                return Ok(None);
            };
            let (change, outcome) = match decide(&view) {
                Ok(change) => change,
                Err(settled) => return Ok(Some(settled)),
            };
            match self.change(&change).await {
                Ok(_) => return Ok(Some(outcome)),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && rounds < ROUNDS => rounds += 1,
                Err(error) => return Err(error),
            }
        }
    }
}
