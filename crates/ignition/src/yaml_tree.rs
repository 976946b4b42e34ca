//! The YAML of configs: scalars keep their spelling, because the meaning of `0644` depends on the field.

use std::rc::Rc;

use machinist_yaml::{
    Dialect, Entry, Event, Location, Node, ScalarStyle, Span, Tag, Value, YamlError,
};

/// The maximum text length in bytes. A MachineConfig in a cluster is limited to 1.5 MiB (etcd's
/// limit for one object); a directory on a single machine may have a few more in one file.
pub(super) const MAX_TEXT_BYTES: usize = 8 << 20;

pub(super) type TreeNode = Node<SpelledScalar>;
pub(super) type TreeValue = Value<SpelledScalar>;
pub(super) type TreeEntry = Entry<SpelledScalar>;

/// A scalar in its spelling.
#[derive(Clone, Debug)]
pub(super) struct SpelledScalar {
    pub(super) text: String,
    pub(super) plain: bool,
    /// A literal block after `|`: each of its lines is a line of the text.
    pub(super) literal: bool,
}

impl AsRef<str> for SpelledScalar {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Parses every document of `text`; see [`machinist_yaml::read_all`].
pub(super) fn read(text: &str) -> (Vec<Rc<TreeNode>>, Vec<YamlError>) {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "the text has {} bytes, the limit is {MAX_TEXT_BYTES}",
            text.len()
        );
        let place = Location { line: 1, column: 1 };
        return (Vec::new(), vec![YamlError::syntax(place, message)]);
    }
    machinist_yaml::read_all(text, ConfigDialect)
}

struct ConfigDialect;

impl Dialect for ConfigDialect {
    type Scalar = SpelledScalar;

    /// Only the standard tag of each kind of value is supported.
    fn check(&mut self, event: &Event<'_>, _: &Span, _: bool) -> Result<(), String> {
        let (tag, known) = match event {
            Event::Scalar(.., tag) => (tag, "str"),
            Event::SequenceStart(.., tag) => (tag, "seq"),
            Event::MappingStart(.., tag) => (tag, "map"),
            _ => return Ok(()),
        };
        match tag {
            Some(tag) if !tag.is_yaml_core_schema_tag(known) => {
                Err(format!("the tag {} is not supported", tag.original()))
            }
            _ => Ok(()),
        }
    }

    fn scalar(
        text: String,
        style: ScalarStyle,
        tag: Option<&Tag>,
    ) -> Result<SpelledScalar, String> {
        let forced_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        Ok(SpelledScalar {
            text,
            plain: style == ScalarStyle::Plain && !forced_text,
            literal: style == ScalarStyle::Literal,
        })
    }
}
