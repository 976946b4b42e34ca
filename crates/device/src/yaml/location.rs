//! Finds the place of a field in the document.

use machinist_yaml::{Location, Value};

use super::{YamlNode, set_place};
use crate::Refusal;

/// Sets line and column of refusals that name a field: the position of the field or, if it is absent
/// from the text, of its nearest ancestor that is present.
pub(super) fn locate(document: &YamlNode, refusals: &mut [Refusal]) {
    for refusal in refusals.iter_mut().filter(|one| one.line.is_none()) {
        if let Some(field) = &refusal.field {
            let (_, place) = nearest(document, None, field);
            set_place(refusal, place);
        }
    }
}

/// The place of `path`, which is relative to `node`, or of its nearest ancestor, and the length of
/// the path below that. `key` is the key of `node`.
fn nearest(node: &YamlNode, key: Option<Location>, path: &str) -> (usize, Location) {
    let place = match key {
        // For a map or list on several lines, the position of its key is clearer.
        Some(key) if !path.is_empty() || node.place.line != key.line => key,
        _ => node.place,
    };
    let below: Vec<_> = match &node.value {
        Value::Scalar(_) => Vec::new(),
        Value::List(items) => (items.iter().enumerate())
            .filter_map(|(index, item)| {
                let rest = rest_of(path, &format!("[{index}]"))?;
                Some(nearest(item, None, rest))
            })
            .collect(),
        // A key may contain a dot, so that several keys may match.
        Value::Map(_) => (node.fields().into_iter().flatten())
            .filter_map(|(key, value)| {
                let rest = rest_of(path, key.scalar.as_ref())?;
                Some(nearest(value, Some(key.place), rest))
            })
            .collect(),
    };
    let deepest = below.into_iter().min_by_key(|(rest, _)| *rest);
    deepest.unwrap_or((path.len(), place))
}

/// The path below `part`, if `path` begins with it.
fn rest_of<'p>(path: &'p str, part: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(part)?;
    match rest.strip_prefix('.') {
        Some(below) => Some(below),
        None => (rest.is_empty() || rest.starts_with('[')).then_some(rest),
    }
}
