//! Tracks our cordon while other clients change it during an update.
//!
//! The first time another client uncordons the node during an update, the node is cordoned again,
//! because it may be a controller that does not know about the update. The second time it is
//! respected: the update waits until any client cordons the node.

use crate::crd::NodeView;

/// The action that the observed Node requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// None: the node is cordoned.
    Nothing,
    /// Cordon: the node is schedulable, or was recreated.
    Cordon,
    /// Wait: the node was uncordoned a second time.
    Patience,
}

/// State of the cordon of one update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remembered {
    /// UID of the cordoned Node; a recreated Node has another UID.
    uid: Option<String>,
    /// The node was cordoned again after another client had uncordoned it.
    again: bool,
}

impl Remembered {
    /// Whether this update has already cordoned the node.
    pub(super) const fn is_known(&self) -> bool {
        self.uid.is_some()
    }

    /// Whether this is another Node than the cordoned one.
    pub(super) fn is_another(&self, view: &NodeView) -> bool {
        self.uid.as_ref().is_some_and(|uid| *uid != view.uid)
    }

    /// The action that the Node requires now.
    pub(super) fn asks(&self, view: &NodeView) -> Asks {
        match () {
            () if self.is_another(view) => Asks::Cordon,
            () if view.is_cordoned() => Asks::Nothing,
            () if self.again => Asks::Patience,
            () => Asks::Cordon,
        }
    }

    /// Records that this Node was cordoned; `view` is its state before.
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
        // Also if it is already cordoned: the recorded cordon was that of another Node.
        assert_eq!(known.asks(&node("2", true)), Asks::Cordon);
        known.cordoned(&node("2", false));
        assert_eq!(known.asks(&node("2", false)), Asks::Cordon);
    }
}
