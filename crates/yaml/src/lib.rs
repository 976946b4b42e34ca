//! Reads YAML, and so JSON, into a tree in which every value has its place in the text.
//!
//! It is built directly from parser events, because refusals of *semantic* errors also need line
//! and column, which a deserialiser does not keep, and because a [`Dialect`] decides what a scalar
//! means. Aliases share the node that they refer to.

mod tree_builder;

use std::{fmt, rc::Rc};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use self::tree_builder::{Stop, TreeBuilder};

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
    fn of(mark: granit_parser::Marker) -> Self {
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
#[derive(Debug)]
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
#[derive(Debug)]
pub struct Key<S> {
    /// The key itself.
    pub scalar: S,
    /// Where it begins.
    pub place: Location,
}

/// An error that makes a value or the rest of a text unreadable.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The place of the value.
    pub place: Location,
    /// The error at this place.
    pub message: String,
}

impl SyntaxError {
    fn of(error: &ScanError) -> Self {
        Self {
            place: Location::of(*error.marker()),
            message: error.info().to_owned(),
        }
    }
}

/// What one kind of text accepts, and what its scalars mean.
pub trait Dialect {
    /// A scalar, with its text.
    type Scalar: AsRef<str> + Clone + fmt::Debug;

    /// Checks an event before it is added to the tree. `is_key` is set for a scalar that is the key
    /// of a map.
    fn check(&mut self, event: &Event<'_>, span: &Span, is_key: bool) -> Result<(), String>;

    /// Reads a scalar. After an error the rest of the text is not read.
    fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Self::Scalar, String>;

    /// A fault in a key that hides other values, so that the document cannot be used.
    fn key_fault(key: &Self::Scalar) -> Option<&'static str>;
}

/// The documents of a text, and its faults.
pub type Documents<S> = (Vec<Rc<Node<S>>>, Vec<SyntaxError>);

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
                builder.abandon_with(SyntaxError::of(&error));
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
) -> Result<Option<Rc<Node<D::Scalar>>>, SyntaxError> {
    let mut parser = Parser::new_from_str_with_options(text, options());
    let mut builder = TreeBuilder::new(dialect);
    while !builder.has_document_or_fault()
        && let Some(event) = parser.next_event()
    {
        match event {
            Ok((event, span)) => {
                if let Err(Stop) = builder.on(event, span) {
                    break;
                }
            }
            Err(error) => builder.abandon_with(SyntaxError::of(&error)),
        }
    }
    let (documents, faults) = builder.into_documents();
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(documents.into_iter().next()),
    }
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
