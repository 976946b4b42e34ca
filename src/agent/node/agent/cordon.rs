//! Our cordon, as others change it while an update is under way.
//!
//! Whoever makes the node schedulable in an update is taken at their word the second time: the first may be a
//! controller that knows nothing of the update, and is undone; after that the update waits until the node is
//! cordoned, by whomever.

use crate::crd::NodeView;

/// What the Node as it is seen asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Nothing: it is cordoned.
    Nothing,
    /// A cordon: it has none, or it was registered anew.
    Cordon,
    /// Patience: somebody has lifted the cordon a second time.
    Patience,
}

/// What is remembered of the cordon of one update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remembered {
    /// Which Node was cordoned: one that is registered anew is another.
    uid: Option<String>,
    /// It was cordoned once more after somebody had lifted that.
    again: bool,
}

impl Remembered {
    /// Whether this update has cordoned the node before.
    pub(super) const fn is_known(&self) -> bool {
        self.uid.is_some()
    }

    /// Whether it is another Node than the one that was cordoned.
    pub(super) fn is_another(&self, view: &NodeView) -> bool {
        self.uid.as_ref().is_some_and(|uid| *uid != view.uid)
    }

    /// What the Node as it is now asks for.
    pub(super) fn asks(&self, view: &NodeView) -> Asks {
        match () {
            () if self.is_another(view) => Asks::Cordon,
            () if view.is_cordoned() => Asks::Nothing,
            () if self.again => Asks::Patience,
            () => Asks::Cordon,
        }
    }

    /// This Node, as it was then, was cordoned.
    pub(super) fn cordoned(&mut self, view: &NodeView) {
        let lifted = self.is_known() && !self.is_another(view) && !view.is_cordoned();
        self.again |= lifted;
        self.uid = Some(view.uid.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::NodeSpec;

    fn node(uid: &str, cordoned: bool) -> NodeView {
        NodeView {
            uid: uid.to_owned(),
            spec: NodeSpec {
                unschedulable: cordoned,
                ..NodeSpec::default()
            },
            ..NodeView::default()
        }
    }

    #[test]
    fn a_foreign_uncordon_is_undone_once_and_then_waited_for() {
        let mut known = Remembered::default();
        assert_eq!(known.asks(&node("1", false)), Asks::Cordon);
        known.cordoned(&node("1", false));
        assert_eq!(known.asks(&node("1", true)), Asks::Nothing);
        assert_eq!(known.asks(&node("1", false)), Asks::Cordon);
        known.cordoned(&node("1", false));
        assert_eq!(known.asks(&node("1", false)), Asks::Patience);
        assert_eq!(known.asks(&node("1", true)), Asks::Nothing);
    }

    #[test]
    fn a_cordon_that_is_asked_for_again_while_it_stands_does_not_count() {
        let mut known = Remembered::default();
        known.cordoned(&node("1", false));
        known.cordoned(&node("1", true));
        assert_eq!(known.asks(&node("1", false)), Asks::Cordon);
    }

    #[test]
    fn a_node_that_was_registered_anew_is_cordoned_and_nobody_has_lifted_anything() {
        let mut known = Remembered::default();
        known.cordoned(&node("1", false));
        assert_eq!(known.asks(&node("2", false)), Asks::Cordon);
        // Also where somebody has cordoned it already: what was on it is another node's.
        assert_eq!(known.asks(&node("2", true)), Asks::Cordon);
        known.cordoned(&node("2", false));
        assert_eq!(known.asks(&node("2", false)), Asks::Cordon);
    }
}
