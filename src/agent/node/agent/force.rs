//! A person's word that one drain be forced: `machinist.dev/force-drain` on the Node.
//!
//! It is for the drain that goes on, or for the next one where none does. It is taken away when that drain
//! ends, however it ends; until that has succeeded it means nothing to the drain for another config.

use crate::crd::NodeView;

/// What was heard, and for which config's drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard(Option<(String, String)>);

/// What stands on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nobody wants it forced.
    None,
    /// This drain is to be forced, and why.
    Force(String),
    /// It was for the drain towards another config.
    Stale,
    /// It does not say why, and forces nothing.
    Unexplained,
}

impl Heard {
    /// The word was taken off the Node: said again it is a new one.
    pub(super) fn taken_away(&mut self) {
        self.0 = None;
    }

    /// What the Node says to the drain for `to`.
    pub(super) fn of(&mut self, view: Option<&NodeView>, to: &str) -> Word {
        let Some(view) = view else {
            return Word::None;
        };
        let Some(why) = view.forced_drain() else {
            self.0 = None;
            return match view.forces_without_a_reason() {
                true => Word::Unexplained,
                false => Word::None,
            };
        };
        match &self.0 {
            Some((other, known)) if known == why && other != to => Word::Stale,
            _ => {
                self.0 = Some((to.to_owned(), why.to_owned()));
                Word::Force(why.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::crd::names::annotation;

    fn node(word: Option<&str>) -> NodeView {
        let annotations = word.map(|word| (annotation::FORCE_DRAIN.to_owned(), word.to_owned()));
        NodeView {
            annotations: BTreeMap::from_iter(annotations),
            ..NodeView::default()
        }
    }

    #[test]
    fn a_word_is_for_one_drain_and_not_for_the_one_towards_another_config() {
        let (mut heard, said) = (Heard::default(), node(Some("fire")));
        let force = Word::Force("fire".to_owned());
        assert_eq!(heard.of(Some(&said), "one"), force);
        assert_eq!(heard.of(Some(&said), "one"), force);
        assert_eq!(heard.of(Some(&said), "two"), Word::Stale);
        // Said anew, or otherwise, it is meant.
        heard.taken_away();
        assert_eq!(heard.of(Some(&said), "two"), force);
        let other = Word::Force("flood".to_owned());
        assert_eq!(heard.of(Some(&node(Some("flood"))), "two"), other);
        assert_eq!(heard.of(Some(&node(None)), "two"), Word::None);
        assert_eq!(heard.of(Some(&said), "three"), force);
    }

    #[test]
    fn a_word_that_gives_no_reason_forces_nothing() {
        for empty in ["", " "] {
            let said = Heard::default().of(Some(&node(Some(empty))), "one");
            assert_eq!(said, Word::Unexplained);
        }
        assert_eq!(Heard::default().of(None, "one"), Word::None);
    }
}
