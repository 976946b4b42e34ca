//! A value of a variable or annotation that is joined from the values of several devices.

use std::collections::HashMap;

/// Values joined by commas, each once. It finds a value by the positions of its parts, so that the
/// time to join many values grows with their length only.
#[derive(Debug)]
pub(super) struct JoinedValue {
    text: String,
    /// The text between commas.
    parts: Vec<String>,
    /// Positions in `parts`.
    at: HashMap<String, Vec<usize>>,
}

impl JoinedValue {
    pub(super) fn new(value: &str) -> Self {
        let mut joined = Self {
            text: value.to_owned(),
            parts: Vec::new(),
            at: HashMap::new(),
        };
        joined.index(value);
        joined
    }

    /// Adds a value unless it is there already. A value that contains commas itself is there if its
    /// parts follow each other.
    pub(super) fn add(&mut self, value: &str) {
        if self.contains(value) {
            return;
        }
        self.text.push(',');
        self.text.push_str(value);
        self.index(value);
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn index(&mut self, value: &str) {
        for part in value.split(',') {
            let at = self.at.entry(part.to_owned()).or_default();
            at.push(self.parts.len());
            self.parts.push(part.to_owned());
        }
    }

    fn contains(&self, value: &str) -> bool {
        let wanted: Vec<&str> = value.split(',').collect();
        let positions = |(offset, part): (usize, &&str)| {
            let at = self.at.get(*part).map_or(&[][..], Vec::as_slice);
            (offset, at)
        };
        // The rarest part: others may be in every value.
        let rarest = wanted.iter().enumerate().map(positions);
        let Some((offset, at)) = rarest.min_by_key(|(_, at)| at.len()) else {
            return false;
        };
        at.iter().any(|at| {
            let from = at.checked_sub(offset);
            let found = from.and_then(|from| self.parts.get(from..from + wanted.len()));
            found.is_some_and(|found| found == wanted)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_that_is_there_already_is_not_joined_again() {
        let mut joined = JoinedValue::new("a");
        for value in ["b", "a", "x,y", "x,y", "y", "b,x", "y,x", ""] {
            joined.add(value);
        }
        assert_eq!(joined.into_text(), "a,b,x,y,y,x,");
    }

    proptest! {
        #[test]
        fn joined_values_are_found_like_text_between_commas(
            values in prop::collection::vec("[ab]{0,2}(,[ab]{0,2}){0,2}", 1..12),
        ) {
            let mut joined = JoinedValue::new(&values[0]);
            let mut text = values[0].clone();
            for value in &values[1..] {
                joined.add(value);
                if !format!(",{text},").contains(&format!(",{value},")) {
                    text.push(',');
                    text.push_str(value);
                }
            }
            prop_assert_eq!(joined.into_text(), text);
        }
    }
}
