//! The tags of scalars.

use granit_parser::Tag;

/// The tag of a scalar, as far as it decides about its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarTag {
    /// No tag.
    None,
    /// A tag that the core schema does not define.
    Unknown,
    /// `!`, which makes an untyped scalar a text.
    NonSpecific,
    /// `!!null`
    Null,
    /// `!!bool`
    Boolean,
    /// `!!int`
    Integer,
    /// `!!float`
    Float,
    /// `!!str`
    Text,
    /// `!!merge`
    Merge,
}

/// The standard tags that no scalar of a document may have.
const UNSUPPORTED_TAGS: [&str; 4] = ["binary", "timestamp", "seq", "map"];

impl ScalarTag {
    /// Refuses the standard tags that are not supported.
    pub fn of(tag: Option<&Tag>) -> Result<Self, String> {
        const KNOWN: [(&str, ScalarTag); 6] = [
            ("null", ScalarTag::Null),
            ("bool", ScalarTag::Boolean),
            ("int", ScalarTag::Integer),
            ("float", ScalarTag::Float),
            ("str", ScalarTag::Text),
            ("merge", ScalarTag::Merge),
        ];
        let Some(tag) = tag else {
            return Ok(Self::None);
        };
        let is = |name: &str| is_standard(tag, name);
        if UNSUPPORTED_TAGS.into_iter().any(is) {
            return Err(unsupported(tag));
        }
        let known = KNOWN.iter().find(|(name, _)| is(name));
        Ok(match known {
            Some((_, known)) => *known,
            None if tag.original() == "!" => Self::NonSpecific,
            None => Self::Unknown,
        })
    }
}

pub(crate) fn is_standard(tag: &Tag, name: &str) -> bool {
    let suffix = tag.suffix_in_namespace("tag:yaml.org,2002:");
    suffix.is_some_and(|suffix| suffix == name)
}

pub(crate) fn unsupported(tag: &Tag) -> String {
    format!("the tag {} is not supported here", tag.original())
}
