//! Resolves merge keys: at the key `<<`, a map has the fields of other maps that it lacks itself.

use std::collections::BTreeSet;

use crate::{Entry, Key, Node, TypedScalar, Value, YamlError};

/// The fields of a map, each with its key; those that `<<` merges in come last.
pub type Fields<'n, S> = Vec<(&'n Key<S>, &'n Node<S>)>;

impl<S: TypedScalar> Node<S> {
    /// The fields of a map; another value has none.
    pub fn fields(&self) -> Result<Fields<'_, S>, YamlError> {
        let mut fields = Vec::new();
        if let Value::Map(map) = &self.value {
            collect(map, &mut BTreeSet::new(), &mut fields)?;
        }
        Ok(fields)
    }
}

/// Adds the fields of `map` that are not in `seen`.
fn collect<'n, S: TypedScalar>(
    map: &'n [Entry<S>],
    seen: &mut BTreeSet<&'n str>,
    fields: &mut Fields<'n, S>,
) -> Result<(), YamlError> {
    let mut merged = None;
    for (key, value) in map {
        if key.scalar.is_merge() {
            merged = Some(value);
        } else if !key.scalar.is_null() && seen.insert(key.scalar.as_ref()) {
            fields.push((key, &**value));
        }
    }
    let Some(merged) = merged else {
        return Ok(());
    };
    let no_map = || YamlError::syntax(merged.place, "merge key << requires a map");
    match &merged.value {
        Value::Map(map) => collect(map, seen, fields),
        Value::List(maps) => maps.iter().try_for_each(|one| match &one.value {
            Value::Map(map) => collect(map, seen, fields),
            _ => Err(no_map()),
        }),
        Value::Scalar(scalar) if scalar.is_null() && !S::NULL_IS_ABSENT => Ok(()),
        Value::Scalar(_) => Err(no_map()),
    }
}
