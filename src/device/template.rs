//! `{id}` and `{node}` in texts of a declaration.

/// A text in which only `{id}` and `{node}` stand for something.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Template(String);

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{{{0}}} stands for nothing here")]
pub struct UnknownPlaceholder(String);

impl Template {
    /// Checks that every `{word}` is known. Braces around anything but letters are plain text, so
    /// that JSON in an environment variable stays possible.
    pub fn new(text: &str) -> Result<Self, UnknownPlaceholder> {
        for (at, _) in text.match_indices('{') {
            let rest = &text[at + 1..];
            let Some((word, _)) = rest.split_once('}') else {
                continue;
            };
            let is_word = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic());
            if is_word && !matches!(word, "id" | "node") {
                return Err(UnknownPlaceholder(word.to_owned()));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The text for one device. What was put in is never looked at again for placeholders.
    pub fn fill(&self, id: &str, node: &str) -> String {
        let mut filled = String::with_capacity(self.0.len() + node.len());
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let (value, skip) = if rest.starts_with("{id}") {
                (id, "{id}".len())
            } else if rest.starts_with("{node}") {
                (node, "{node}".len())
            } else {
                ("{", 1)
            };
            filled.push_str(value);
            rest = &rest[skip..];
        }
        filled + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_words_are_filled_in_and_only_once() {
        let template = Template::new("{id}@{node} {\"a\": 1} {").unwrap();
        assert_eq!(
            template.fill("{node}", "/dev/x"),
            "{node}@/dev/x {\"a\": 1} {"
        );
        assert_eq!(
            Template::new("{serial}").unwrap_err().to_string(),
            "{serial} stands for nothing here"
        );
    }
}
