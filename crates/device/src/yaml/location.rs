//! Maps fields of a document to lines and columns, and back.

use std::fmt;

use serde::{
    Deserialize,
    de::{self, Deserializer, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Error, Location, Spanned};

use super::error::{LIST, MAP, NUMBER, TEXT, list_of, value, wanted};
use crate::Refusal;
use machinist_base::reason::Reason;

/// The maximum number of values that all aliases together may expand to: a document of the maximum
/// size has fewer values than this.
const MAX_ALIASED_VALUES: usize = 10_000;

/// The parser options: one document, and every value is typed by its field. Alias expansion is
/// limited, since a few lines of aliases can expand to millions of values.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_VALUES },
    }
}

/// One field of the text.
struct LocatedField {
    path: String,
    key: Option<Location>,
    value: Location,
    /// The type of its value, for messages.
    found: &'static str,
}

/// The error for a value of the wrong type. The position is that of the value; a map begins at its
/// first key, and the error is then about the map and not about that key.
fn other_shape(
    entries: &[LocatedField],
    place: Option<Location>,
    expected: &'static str,
) -> Refusal {
    let here = |at: Location| place.is_some_and(|place| is_same(at, place));
    let entry = entries.iter().rfind(|entry| here(entry.value));
    let found = entry.map_or("something else", |entry| entry.found);
    let refusal = Refusal::new(Reason::ValueInvalid, format!("this is {found}"));
    let mut refusal = refusal.expected(expected);
    refusal.field = entry.map(|entry| entry.path.clone());
    refusal.field = refusal.field.filter(|field| !field.is_empty());
    if let Some(place) = place {
        set_place(&mut refusal, place);
    }
    refusal
}

fn is_same(one: Location, other: Location) -> bool {
    (one.line(), one.column()) == (other.line(), other.column())
}

/// Any YAML value, kept only for its positions.
enum PositionTree {
    Leaf(&'static str),
    List(Vec<Spanned<PositionTree>>),
    Map(Vec<(Spanned<String>, Spanned<PositionTree>)>),
}

fn index(text: &str) -> Vec<LocatedField> {
    let mut entries = Vec::new();
    if let Ok(tree) = serde_saphyr::from_str_with_options::<Spanned<PositionTree>>(text, options())
    {
        walk("", None, &tree, &mut entries);
    }
    entries
}

fn walk(
    path: &str,
    key: Option<Location>,
    tree: &Spanned<PositionTree>,
    into: &mut Vec<LocatedField>,
) {
    into.push(LocatedField {
        path: path.to_owned(),
        key,
        value: tree.referenced,
        found: match &tree.value {
            PositionTree::Leaf(found) => found,
            PositionTree::List(_) => LIST,
            PositionTree::Map(_) => MAP,
        },
    });
    match &tree.value {
        PositionTree::Leaf(_) => {}
        PositionTree::List(items) => {
            for (at, item) in items.iter().enumerate() {
                walk(&format!("{path}[{at}]"), None, item, into);
            }
        }
        PositionTree::Map(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                let below = format!("{path}{dot}{}", name.value);
                walk(&below, Some(name.referenced), value, into);
            }
        }
    }
}

/// Sets line and column of refusals that name a field: the position of the field or, if it is absent
/// from the text, of its nearest ancestor that is present.
pub(super) fn locate(text: &str, refusals: &mut [Refusal]) {
    if refusals.iter().all(|refusal| refusal.line.is_some()) {
        return;
    }
    let entries = index(text);
    for refusal in refusals.iter_mut().filter(|refusal| refusal.line.is_none()) {
        let Some(field) = &refusal.field else {
            continue;
        };
        let above = |entry: &&LocatedField| is_at_or_above(&entry.path, field);
        if let Some(entry) = entries
            .iter()
            .filter(above)
            .max_by_key(|entry| entry.path.len())
        {
            let place = match entry.key {
                // For a map or list on several lines, the position of its key is clearer.
                Some(key) if entry.path != *field || entry.value.line() != key.line() => key,
                _ => entry.value,
            };
            set_place(refusal, place);
        }
    }
}

fn is_at_or_above(path: &str, field: &str) -> bool {
    let rest = field.strip_prefix(path);
    rest.is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

fn set_place(refusal: &mut Refusal, place: Location) {
    refusal.line = u32::try_from(place.line()).ok().filter(|line| *line > 0);
    refusal.column = u32::try_from(place.column())
        .ok()
        .filter(|column| *column > 0);
}

/// Converts a parser error into a refusal, with a clearer message where possible.
pub(super) fn refusal(text: &str, error: &Error) -> Refusal {
    let error = error.without_snippet();
    let place = error.location().filter(|place| place.line() > 0);
    let entries = index(text);
    match wanted(error) {
        Some(wanted) => other_shape(&entries, place, wanted),
        None => as_read(&entries, place, error),
    }
}

fn as_read(entries: &[LocatedField], place: Option<Location>, error: &Error) -> Refusal {
    let field = place.and_then(|place| field_at(entries, place));
    let inside = |name: &str| match &field {
        Some(above) if !above.is_empty() => format!("{above}.{name}"),
        _ => name.to_owned(),
    };
    let mut refusal = match error {
        Error::SerdeUnknownField {
            field: name,
            expected,
            ..
        } => {
            let written = match &field {
                Some(path) if path.ends_with(name.as_str()) => path.clone(),
                _ => inside(name),
            };
            Refusal::new(Reason::FieldUnknown, "unknown field")
                .field(written)
                .expected(list_of(expected))
        }
        Error::SerdeMissingField { field: name, .. } => {
            let message = format!("{name} is missing");
            let place = missing_from(entries, field.as_deref().unwrap_or_default(), name);
            // The parser's position is the end of the map; the position of the map itself is clearer.
            return Refusal::new(Reason::ValueInvalid, message).field(place);
        }
        other => value(other),
    };
    refusal.field = refusal.field.or(field).filter(|field| !field.is_empty());
    if let Some(place) = place {
        set_place(&mut refusal, place);
    }
    refusal
}

/// The path of the absent field `name`, which the parser missed at `field`: in the nearest enclosing
/// map that has no such field.
fn missing_from(entries: &[LocatedField], field: &str, name: &str) -> String {
    let join = |map: &str| {
        if map.is_empty() {
            name.to_owned()
        } else {
            format!("{map}.{name}")
        }
    };
    let maps = entries
        .iter()
        .filter(|entry| entry.found == MAP && is_at_or_above(&entry.path, field));
    let lacking = maps.filter(|map| entries.iter().all(|entry| entry.path != join(&map.path)));
    let nearest = lacking.max_by_key(|map| map.path.len());
    join(nearest.map_or("", |map| map.path.as_str()))
}

/// The field whose key or value begins at `place`; the innermost if there are several.
fn field_at(entries: &[LocatedField], place: Location) -> Option<String> {
    let here = |at: Location| is_same(at, place);
    let hits = entries
        .iter()
        .filter(|entry| here(entry.value) || entry.key.is_some_and(here));
    hits.map(|entry| &entry.path)
        .max_by_key(|path| path.len())
        .cloned()
}

impl<'de> Deserialize<'de> for PositionTree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PositionTreeVisitor)
    }
}

struct PositionTreeVisitor;

/// Only the type of scalars is needed here.
macro_rules! leaves {
    ($($visit:ident($($value:ty)?) = $found:expr),+ $(,)?) => {$(
        fn $visit<E: de::Error>(self $(, _: $value)?) -> Result<PositionTree, E> {
            Ok(PositionTree::Leaf($found))
        }
    )+};
}

impl<'de> Visitor<'de> for PositionTreeVisitor {
    type Value = PositionTree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    leaves!(
        visit_bool(bool) = "true or false",
        visit_i64(i64) = NUMBER,
        visit_u64(u64) = NUMBER,
        visit_i128(i128) = NUMBER,
        visit_u128(u128) = NUMBER,
        visit_f64(f64) = NUMBER,
        visit_str(&str) = TEXT,
        visit_bytes(&[u8]) = TEXT,
        visit_unit() = "nothing",
        visit_none() = "nothing",
    );

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<PositionTree, D::Error> {
        PositionTree::deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PositionTree, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(PositionTree::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<PositionTree, A::Error> {
        let mut all = Vec::new();
        while let Some(field) = fields.next_entry()? {
            all.push(field);
        }
        Ok(PositionTree::Map(all))
    }
}
