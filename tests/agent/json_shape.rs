//! The shapes of the documents that scripts read, as `docs/interface.md` promises them.
//!
//! `tests/golden/<document>/shape.json` has every key. Words: `string`, `number`, `bool`, `time`,
//! `digest` (`sha256:…` or empty), `A|B` one of these, `=text` this exact text; a `?` in front
//! allows null. An object with the one key `?` may be null; a list contains the shape of its
//! elements.

use std::collections::BTreeSet;

use serde_json::Value;

/// Compares `document` with its shape: no key is missing, none is new, each has its type, and every
/// part of the shape occurs except the lists in `unseen`.
pub(crate) fn check(name: &str, document: &Value, unseen: &[&str]) {
    let path = format!(
        "{}/tests/golden/{name}/shape.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let shape: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut check = Check::default();
    check.walk("", &shape, document);
    assert!(check.wrong.is_empty(), "{:#?} in {document:#}", check.wrong);
    let mut all = Check::default();
    all.expect("", &shape);
    let missed: Vec<_> = all
        .seen
        .difference(&check.seen)
        .filter(|at| !unseen.iter().any(|prefix| at.starts_with(prefix)))
        .collect();
    assert!(
        missed.is_empty(),
        "not observed: {missed:?} in {document:#}"
    );
}

#[derive(Default)]
struct Check {
    seen: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Check {
    /// Records every path that a complete document has.
    fn expect(&mut self, at: &str, shape: &Value) {
        match shape {
            Value::Object(keys) if keys.contains_key("?") => self.expect(at, &keys["?"]),
            Value::Object(keys) => {
                for (key, shape) in keys {
                    self.expect(&format!("{at}.{key}"), shape);
                }
            }
            Value::Array(element) => self.expect(&format!("{at}[]"), &element[0]),
            _ => drop(self.seen.insert(at.trim_start_matches('.').to_owned())),
        }
    }

    fn walk(&mut self, at: &str, shape: &Value, found: &Value) {
        match (shape, found) {
            (Value::Object(keys), found) if keys.contains_key("?") => {
                if !found.is_null() {
                    self.walk(at, &keys["?"], found);
                }
            }
            (Value::Object(keys), Value::Object(found)) => {
                for (key, shape) in keys {
                    let at = format!("{at}.{key}");
                    match found.get(key) {
                        Some(found) => self.walk(&at, shape, found),
                        None => self.wrong.push(format!("{at} is left out")),
                    }
                }
                for key in found.keys().filter(|key| !keys.contains_key(*key)) {
                    self.wrong.push(format!("{at}.{key} is not in the shape"));
                }
            }
            (Value::Array(element), Value::Array(found)) => {
                for found in found {
                    self.walk(&format!("{at}[]"), &element[0], found);
                }
            }
            (Value::String(word), found) => self.leaf(at, word, found),
            (shape, found) => self.wrong.push(format!("{at} is {found}, not {shape}")),
        }
    }

    fn leaf(&mut self, at: &str, word: &str, found: &Value) {
        self.seen.insert(at.trim_start_matches('.').to_owned());
        let (word, nullable) = match word.strip_prefix('?') {
            Some(word) => (word, true),
            None => (word, false),
        };
        let text = found.as_str();
        let fits = match (word, found) {
            (_, Value::Null) => nullable,
            ("string", _) => text.is_some(),
            ("number", found) => found.is_u64(),
            ("bool", found) => found.is_boolean(),
            ("time", _) => text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
            ("digest", _) => text.is_some_and(is_digest),
            (word, _) => match word.strip_prefix('=') {
                Some(exact) => text == Some(exact),
                None => text.is_some_and(|text| word.split('|').any(|one| one == text)),
            },
        };
        if !fits {
            self.wrong.push(format!("{at} is {found}, not {word}"));
        }
    }
}

fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:");
    text.is_empty()
        || hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[test]
fn json_shape_check_detects_missing_extra_and_mistyped_keys() {
    let shape = serde_json::json!({"a": "?string", "b": [{"c": "X|Y"}], "d": {"?": {"e": "time"}}});
    let wrong = |found: Value| {
        let mut check = Check::default();
        check.walk("", &shape, &found);
        check.wrong.len()
    };
    use serde_json::json;
    assert_eq!(wrong(json!({"a": null, "b": [{"c": "Y"}], "d": null})), 0);
    for bad in [
        json!({"b": [], "d": null}),
        json!({"a": null, "b": [], "d": null, "f": 1}),
        json!({"a": 1, "b": [], "d": null}),
        json!({"a": null, "b": [{"c": "Z"}], "d": null}),
        json!({"a": null, "b": null, "d": null}),
        json!({"a": null, "b": [], "d": {"e": "yesterday"}}),
    ] {
        assert_eq!(wrong(bad.clone()), 1, "{bad}");
    }
}
