//! Templates with the placeholders `{id}`, `{node}` and `{name}` in texts of a declaration.

/// A template in which `{id}` is replaced by a device's id, `{node}` by the path of its node and
/// `{name}` by the last component of that path.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Template(String);

/// The error for an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{{{0}}} is not a known placeholder")]
pub struct UnknownPlaceholder(String);

impl Template {
    /// Parses a template; every `{word}` must be known. Braces around anything but letters are plain
    /// text, so that JSON in an environment variable is possible.
    pub fn new(text: &str) -> Result<Self, UnknownPlaceholder> {
        for (at, _) in text.match_indices('{') {
            let rest = &text[at + 1..];
            let Some((word, _)) = rest.split_once('}') else {
                continue;
            };
            let is_word = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic());
            if is_word && !matches!(word, "id" | "node" | "name") {
                return Err(UnknownPlaceholder(word.to_owned()));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// A template without placeholders; none if `text` contains one.
    pub fn literal(text: &str) -> Option<Self> {
        let fills = ["{id}", "{node}", "{name}"];
        let plain = !fills.iter().any(|word| text.contains(word));
        plain.then(|| Self(text.to_owned()))
    }

    /// The template as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it contains the node's path, and so has one value for each node of a device.
    pub fn names_node(&self) -> bool {
        self.0.contains("{node}") || self.0.contains("{name}")
    }

    /// The text for one device. Inserted values are not searched for placeholders again.
    pub fn fill(&self, id: &str, node: &str) -> String {
        let mut filled = String::with_capacity(self.0.len() + node.len());
        let name = node.rsplit('/').next().unwrap_or_default();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let (value, skip) = if rest.starts_with("{id}") {
                (id, "{id}".len())
            } else if rest.starts_with("{node}") {
                (node, "{node}".len())
            } else if rest.starts_with("{name}") {
                (name, "{name}".len())
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
    fn only_known_variables_are_expanded_once() {
        let template = Template::new("{id}@{node} {name} {\"a\": 1} {").unwrap();
        assert_eq!(
            template.fill("{node}", "/dev/y/x"),
            "{node}@/dev/y/x x {\"a\": 1} {"
        );
        assert_eq!(
            Template::new("{serial}").unwrap_err().to_string(),
            "{serial} is not a known placeholder"
        );
    }

    #[test]
    fn literal_text_is_unchanged() {
        let json = "{\"a\": {serial}}";
        assert_eq!(Template::literal(json).unwrap().fill("x", "/dev/x"), json);
        assert_eq!(Template::literal("of {id}"), None);
    }
}
