//! Determines how far a grant is, from the marks on its Node.

use std::sync::Arc;

use machinist_kube_api::{NodeView, keys::annotation};

use super::{Grant, GrantEnd, GrantsError, grant_end::grant_ends};

/// How far a grant that a pool lists is.
#[derive(Debug)]
pub enum GrantProgress {
    /// The Node has the grant's end mark: the slot is free.
    Ended(GrantEnd),
    /// The Node exists and the grant has not ended.
    Open {
        /// Whether the Node has the grant as the pool lists it.
        placed: bool,
        /// Whether the agent has acknowledged it.
        acknowledged: bool,
    },
    /// The Node has another grant that has not ended, from the pool it was in before.
    Occupied,
    /// The Node was deleted and created again, or this view of it is older than the pool's.
    Recreated,
    /// The Node is not among those that were read.
    Missing,
    /// The marks cannot be parsed. The grant holds its slot.
    Unreadable(Arc<GrantsError>),
}

/// The marks of one version of a Node: the grant that is placed on it, and the ends of earlier ones.
#[derive(Debug)]
pub(super) struct GrantMarks {
    ends: Result<Vec<GrantEnd>, Arc<GrantsError>>,
    placed: Result<Option<Grant>, Arc<GrantsError>>,
}

impl GrantMarks {
    /// Parses the marks of a Node.
    pub(super) fn of(node: &NodeView) -> Self {
        Self {
            ends: grant_ends(node).map_err(Arc::new),
            placed: Grant::of_node(node).map_err(Arc::new),
        }
    }

    /// Whether a grant is placed that has not ended. Marks that cannot be parsed count as open.
    pub(super) fn has_open_grant(&self) -> bool {
        match (&self.placed, &self.ends) {
            (Ok(None), _) => false,
            (Ok(Some(grant)), Ok(ends)) => ends.iter().all(|end| end.id != grant.id),
            _ => true,
        }
    }
}

impl GrantProgress {
    /// Determines the progress of `grant` on `node`.
    pub fn of(grant: &Grant, node: Option<&NodeView>) -> Self {
        match node {
            Some(node) => Self::with_marks(grant, node, &GrantMarks::of(node)),
            None => Self::Missing,
        }
    }

    /// As [`GrantProgress::of`], with the marks of the Node.
    pub(super) fn with_marks(grant: &Grant, node: &NodeView, marks: &GrantMarks) -> Self {
        // An end mark on a Node with another UID proves nothing: it may be an old view of a Node that was created again,
        // and the grant was passed on to the new one.
        if grant.uid != node.uid {
            return Self::Recreated;
        }
        let ends = match &marks.ends {
            Ok(ends) => ends,
            Err(error) => return Self::Unreadable(error.clone()),
        };
        if let Some(end) = ends.iter().find(|end| end.id == grant.id) {
            return Self::Ended(end.clone());
        }
        let placed = match &marks.placed {
            Ok(placed) => placed.as_ref(),
            Err(error) => return Self::Unreadable(error.clone()),
        };
        let is_open = |other: &Grant| ends.iter().all(|end| end.id != other.id);
        match placed {
            Some(other) if other.id != grant.id && is_open(other) => Self::Occupied,
            placed => Self::Open {
                placed: placed.is_some_and(|it| it.is_placed_as(grant)),
                acknowledged: grant.acknowledged || is_acknowledged(grant, node),
            },
        }
    }
}

/// Whether the Node has the agent's acknowledgement of this grant. It is removed when the grant gets another target, so
/// that a state from before is not mistaken for a failure on the new one.
pub(super) fn is_acknowledged(grant: &Grant, node: &NodeView) -> bool {
    node.annotation(annotation::GRANT_ACKNOWLEDGED) == Some(grant.id.as_str())
}

/// Returns the grant on a Node that has not ended; `None` if there is none.
pub fn open_grant(node: &NodeView) -> Result<Option<Grant>, GrantsError> {
    let Some(mut grant) = Grant::of_node(node)? else {
        return Ok(None);
    };
    if grant_ends(node)?.iter().any(|end| end.id == grant.id) {
        return Ok(None);
    }
    grant.acknowledged = is_acknowledged(&grant, node);
    Ok(Some(grant))
}
