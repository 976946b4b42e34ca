//! Reads YAML, and so JSON, into a tree in which every value has its place in the text, and decodes
//! trees into Rust types.
//!
//! The tree is built directly from parser events, because refusals of *semantic* errors also need
//! line and column, which a deserialiser does not keep, and because a [`Dialect`] decides what a
//! scalar means. An alias has a place of its own and shares the values below it with the node that
//! it refers to.

mod core_schema;
mod decode;
mod error;
mod merge_keys;
mod scalar_tag;
mod spelling;
mod tree_builder;

use std::{fmt, rc::Rc};

/// What a [`Dialect`] judges.
pub use granit_parser::{Event, Marker, ScalarStyle, Span, StructureStyle, Tag};
use granit_parser::{Parser, ScanError};

use self::tree_builder::{Stop, TreeBuilder};
pub use self::{
    core_schema::{CoreScalar, CoreSchema},
    decode::decode,
    error::{YamlError, YamlFault},
    merge_keys::Fields,
    scalar_tag::ScalarTag,
    spelling::{is_null, parse_flag, parse_flag_word, parse_float, parse_integer},
};

/// The maximum total size of values repeated by aliases, in units of [`NODE_OVERHEAD_BYTES`] plus
/// bytes of text: as much as the largest text has without aliases. An alias bomb exceeds it after a
/// few hundred steps.
const MAX_ALIASED_BYTES: usize = 8 << 20;

/// The size of a value in addition to its text when an alias repeats it.
const NODE_OVERHEAD_BYTES: usize = 16;

/// The maximum nesting depth. A List of MachineConfigs nests eleven levels, a CDI spec six.
const MAX_DEPTH: usize = 64;

/// A position in the text, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Location {
    /// The place of an error before it is known.
    const UNKNOWN: Self = Self { line: 0, column: 0 };

    fn of(mark: Marker) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            line: small(mark.line()),
            column: small(mark.col().saturating_add(1)),
        }
    }
}

/// A value with its place.
#[derive(Debug)]
pub struct Node<S> {
    /// Where it begins.
    pub place: Location,
    /// Its content.
    pub value: Value<S>,
}

/// The content of a value.
#[derive(Clone, Debug)]
pub enum Value<S> {
    /// A scalar as its dialect reads it.
    Scalar(S),
    /// The items of a list.
    List(Vec<Rc<Node<S>>>),
    /// The entries of a map in their order; no two keys have the same text.
    Map(Vec<Entry<S>>),
}

/// A key and its value.
pub type Entry<S> = (Key<S>, Rc<Node<S>>);

/// The key of an entry, with its place.
#[derive(Clone, Debug)]
pub struct Key<S> {
    /// The key itself.
    pub scalar: S,
    /// Where it begins.
    pub place: Location,
}

/// What one kind of text accepts, and what its scalars mean.
pub trait Dialect {
    /// A scalar, with its text.
    type Scalar: AsRef<str> + Clone + fmt::Debug;

    /// The maximum total size of values repeated by aliases.
    const MAX_ALIASED_BYTES: usize = MAX_ALIASED_BYTES;

    /// Checks an event before it is added to the tree. `is_key` is set for a scalar that is the key
    /// of a map.
    fn check(&mut self, event: &Event<'_>, span: &Span, is_key: bool) -> Result<(), String>;

    /// Reads a scalar. After an error the rest of the text is not read.
    fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Self::Scalar, String>;

    /// A fault in a key that hides other values, so that the document cannot be used.
    fn key_fault(_: &Self::Scalar) -> Option<&'static str> {
        None
    }
}

/// A scalar whose value depends on the type of its field.
pub trait TypedScalar: AsRef<str> + Clone + fmt::Debug {
    /// Whether a field of a struct that is null counts as absent, and a merge key needs a map.
    const NULL_IS_ABSENT: bool;

    /// Whether it is the absence of a value.
    fn is_null(&self) -> bool;

    /// Whether it is the key that merges another map into this one.
    fn is_merge(&self) -> bool;

    /// The value for a text field.
    fn text(&self) -> Option<&str>;

    /// The value for a boolean field.
    fn flag(&self) -> Option<bool>;

    /// The value for an integer field.
    fn integer(&self) -> Option<i128>;

    /// The value for a field of any type.
    fn value(&self) -> Result<ScalarValue<'_>, String>;
}

/// The value of a scalar in a field of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarValue<'t> {
    /// No value.
    Null,
    /// A boolean.
    Flag(bool),
    /// A number that a signed or an unsigned 64-bit integer holds.
    Integer(i128),
    /// A finite number.
    Float(f64),
    /// A text.
    Text(&'t str),
}

/// The documents of a text, and its faults.
pub type Documents<S> = (Vec<Rc<Node<S>>>, Vec<YamlError>);

/// Parses every document of `text`. A document that ends prematurely is omitted; in a document with
/// other faults only the faulty values are omitted, so that users get all other errors at the same
/// time.
pub fn read_all<D: Dialect>(text: &str, dialect: D) -> Documents<D::Scalar> {
    let mut parser = Parser::new_from_str_with_options(text, options());
    let mut builder = TreeBuilder::new(dialect);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => {
                if let Err(Stop) = builder.on(event, span) {
                    break;
                }
            }
            Err(error) => {
                builder.abandon_with(scan_error(&error));
                if !matches!(parser.proceed_next_document(), Ok(true)) {
                    break;
                }
            }
        }
    }
    builder.into_documents()
}

/// Parses the first document of `text`, up to its first fault. Returns none if there is no document.
pub fn read_first<D: Dialect>(
    text: &str,
    dialect: D,
) -> Result<Option<Rc<Node<D::Scalar>>>, YamlError> {
    read_one(text, dialect, false)
}

/// Parses `text`, up to its first fault; a second document is one. A text without a document is a
/// null.
pub fn read_only<D: Dialect>(text: &str, dialect: D) -> Result<Rc<Node<D::Scalar>>, YamlError> {
    if let Some(document) = read_one(text, dialect, true)? {
        return Ok(document);
    }
    let place = Location { line: 1, column: 1 };
    let null = D::scalar(String::new(), ScalarStyle::Plain, None);
    let value = Value::Scalar(null.map_err(|message| YamlError::syntax(place, message))?);
    Ok(Rc::new(Node { place, value }))
}

fn read_one<D: Dialect>(
    text: &str,
    dialect: D,
    to_end: bool,
) -> Result<Option<Rc<Node<D::Scalar>>>, YamlError> {
    let mut parser = Parser::new_from_str_with_options(text, options());
    let mut builder = TreeBuilder::new(dialect);
    while !builder.has_fault()
        && (to_end || !builder.has_document())
        && let Some(event) = parser.next_event()
    {
        match event {
            Ok((Event::DocumentStart(..), span)) if builder.has_document() => {
                let message = "a second YAML document starts here";
                return Err(YamlError::value(message, "one document in each file")
                    .at(Location::of(span.start)));
            }
            Ok((event, span)) => {
                if let Err(Stop) = builder.on(event, span) {
                    break;
                }
            }
            Err(error) => builder.abandon_with(scan_error(&error)),
        }
    }
    let (documents, faults) = builder.into_documents();
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(documents.into_iter().next()),
    }
}

fn scan_error(error: &ScanError) -> YamlError {
    YamlError::syntax(Location::of(*error.marker()), error.info())
}

/// The parser limits nesting by indentation and by brackets, so that it stops early; the builder
/// also counts, because aliases nest without either.
fn options() -> granit_parser::Options {
    granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    }
}

#[cfg(test)]
mod tests;
