//! Handles an operator's request to force one drain: `machinist.dev/force-drain` on the Node.
//!
//! The request applies to the running drain, or to the next one. The annotation is removed when
//! that drain ends, whatever its result; until then it is ignored by drains for another config.

use machinist_kube_api::NodeView;

/// The last request (its reason) and the config whose drain it applies to.
#[derive(Clone, Debug, Default)]
pub(super) struct ForceRequest(Option<(String, String)>);

/// The force request on the Node, for one drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForceAnnotation {
    /// There is no request.
    None,
    /// This drain is to be forced, for the given reason.
    Force(String),
    /// The request belongs to the drain for another config.
    Stale,
    /// The request has no reason and is ignored.
    Unexplained,
}

impl ForceRequest {
    /// Call when the annotation was removed: the same text set again is a new request.
    pub(super) fn annotation_removed(&mut self) {
        self.0 = None;
    }

    /// The force request that applies to the drain for `to`.
    pub(super) fn of(&mut self, view: Option<&NodeView>, to: &str) -> ForceAnnotation {
        let Some(view) = view else {
            return ForceAnnotation::None;
        };
        let Some(why) = view.forced_drain() else {
            self.0 = None;
            return match view.forces_without_a_reason() {
                true => ForceAnnotation::Unexplained,
                false => ForceAnnotation::None,
            };
        };
        match &self.0 {
            Some((other, known)) if known == why && other != to => ForceAnnotation::Stale,
            _ => {
                self.0 = Some((to.to_owned(), why.to_owned()));
                ForceAnnotation::Force(why.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use machinist_kube_api::keys::annotation;

    fn node(word: Option<&str>) -> NodeView {
        let annotations = word.map(|word| (annotation::FORCE_DRAIN.to_owned(), word.to_owned()));
        NodeView {
            annotations: BTreeMap::from_iter(annotations),
            ..NodeView::default()
        }
    }

    #[test]
    fn a_force_request_is_valid_for_one_drain_and_stale_for_another_config() {
        let (mut heard, said) = (ForceRequest::default(), node(Some("fire")));
        let force = ForceAnnotation::Force("fire".to_owned());
        assert_eq!(heard.of(Some(&said), "one"), force);
        assert_eq!(heard.of(Some(&said), "one"), force);
        assert_eq!(heard.of(Some(&said), "two"), ForceAnnotation::Stale);
        // A request that was set again, or changed, is valid.
        heard.annotation_removed();
        assert_eq!(heard.of(Some(&said), "two"), force);
        let other = ForceAnnotation::Force("flood".to_owned());
        assert_eq!(heard.of(Some(&node(Some("flood"))), "two"), other);
        assert_eq!(heard.of(Some(&node(None)), "two"), ForceAnnotation::None);
        assert_eq!(heard.of(Some(&said), "three"), force);
    }

    #[test]
    fn a_force_request_without_a_reason_forces_nothing() {
        for empty in ["", " "] {
            let said = ForceRequest::default().of(Some(&node(Some(empty))), "one");
            assert_eq!(said, ForceAnnotation::Unexplained);
        }
        assert_eq!(
            ForceRequest::default().of(None, "one"),
            ForceAnnotation::None
        );
    }
}
