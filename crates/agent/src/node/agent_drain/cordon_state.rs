//! Tracks our cordon while other clients change it during an update.
//!
//! The first time another client uncordons the node during an update, the node is cordoned again,
//! because it may be a controller that does not know about the update. The second time it is
//! respected: the update waits until any client cordons the node.

use machinist_kube_api::NodeView;

/// The action that the observed Node requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRequests {
    /// None: the node is cordoned.
    Nothing,
    /// Cordon: the node is schedulable, or was recreated.
    Cordon,
    /// Wait: the node was uncordoned a second time.
    Patience,
}

/// State of the cordon of one update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CordonMemo {
    /// UID of the cordoned Node; a recreated Node has another UID.
    uid: Option<String>,
    /// The node was cordoned again after another client had uncordoned it.
    again: bool,
}

impl CordonMemo {
    /// Whether this update has already cordoned the node.
    pub(super) const fn is_recorded(&self) -> bool {
        self.uid.is_some()
    }

    /// Whether this is another Node than the cordoned one.
    pub(super) fn is_other_node(&self, view: &NodeView) -> bool {
        self.uid.as_ref().is_some_and(|uid| *uid != view.uid)
    }

    /// The action that the Node requires now.
    pub(super) fn required_action(&self, view: &NodeView) -> NodeRequests {
        match () {
            () if self.is_other_node(view) => NodeRequests::Cordon,
            () if view.is_cordoned() => NodeRequests::Nothing,
            () if self.again => NodeRequests::Patience,
            () => NodeRequests::Cordon,
        }
    }

    /// Records that this Node was cordoned; `view` is its state before.
    pub(super) fn cordoned(&mut self, view: &NodeView) {
        let lifted = self.is_recorded() && !self.is_other_node(view) && !view.is_cordoned();
        self.again |= lifted;
        self.uid = Some(view.uid.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_kube_api::NodeSpec;

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
    fn a_foreign_uncordon_is_reverted_once_and_then_the_drain_waits() {
        let mut known = CordonMemo::default();
        assert_eq!(
            known.required_action(&node("1", false)),
            NodeRequests::Cordon
        );
        known.cordoned(&node("1", false));
        assert_eq!(
            known.required_action(&node("1", true)),
            NodeRequests::Nothing
        );
        assert_eq!(
            known.required_action(&node("1", false)),
            NodeRequests::Cordon
        );
        known.cordoned(&node("1", false));
        assert_eq!(
            known.required_action(&node("1", false)),
            NodeRequests::Patience
        );
        assert_eq!(
            known.required_action(&node("1", true)),
            NodeRequests::Nothing
        );
    }

    #[test]
    fn a_repeated_cordon_of_a_cordoned_node_is_not_counted() {
        let mut known = CordonMemo::default();
        known.cordoned(&node("1", false));
        known.cordoned(&node("1", true));
        assert_eq!(
            known.required_action(&node("1", false)),
            NodeRequests::Cordon
        );
    }

    #[test]
    fn a_reregistered_node_is_cordoned_again_not_treated_as_uncordoned() {
        let mut known = CordonMemo::default();
        known.cordoned(&node("1", false));
        assert_eq!(
            known.required_action(&node("2", false)),
            NodeRequests::Cordon
        );
        // Also if it is already cordoned: the recorded cordon was that of another Node.
        assert_eq!(
            known.required_action(&node("2", true)),
            NodeRequests::Cordon
        );
        known.cordoned(&node("2", false));
        assert_eq!(
            known.required_action(&node("2", false)),
            NodeRequests::Cordon
        );
    }
}
