//! Parses YAML, and so JSON, into a tree in which every value has its place in the text.
//!
//! It is built directly from parser events, because refusals of *semantic* errors also need line
//! and column, which a deserialiser does not keep. Aliases share the node that they refer to.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

/// The maximum text length in bytes. A MachineConfig in a cluster is limited to 1.5 MiB (etcd's
/// limit for one object); a directory on a single machine may have a few more in one file.
pub(super) const MAX_TEXT_BYTES: usize = 8 << 20;

/// The maximum total size of values repeated by aliases, in units of [`NODE_OVERHEAD_BYTES`] plus
/// bytes of text: as much as could have been written without aliases. An alias bomb exceeds it
/// after a few hundred steps.
const MAX_ALIASED_BYTES: usize = MAX_TEXT_BYTES;

/// The size of a value in addition to its text when an alias repeats it.
const NODE_OVERHEAD_BYTES: usize = 16;

/// The maximum nesting depth. A List of MachineConfigs nests eleven levels.
const MAX_DEPTH: usize = 64;

/// A fault that hides other values: with merge keys, absent fields cannot be determined.
const MERGE_KEYS_UNSUPPORTED: &str = "merge keys (<<) are not supported";

/// A position in the text, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) line: u32,
    pub(super) column: u32,
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
pub(super) struct TreeNode {
    pub(super) place: Location,
    pub(super) value: TreeValue,
}

/// The content of a value. Scalars keep their spelling: the meaning of `0644` depends on the field.
#[derive(Debug)]
pub(super) enum TreeValue {
    Scalar {
        text: String,
        plain: bool,
        /// A literal block after `|`: each of its lines is a line of the text.
        literal: bool,
    },
    List(Vec<Rc<TreeNode>>),
    Map(Vec<(TreeKey, Rc<TreeNode>)>),
}

/// The key of an entry, with its place.
#[derive(Debug)]
pub(super) struct TreeKey {
    pub(super) text: String,
    pub(super) place: Location,
}

/// An error that makes a document unreadable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) place: Location,
    pub(super) message: String,
}

/// Parses every document of `text`. A document that ends prematurely is omitted; in a document with
/// other faults only the faulty values are omitted, so that users get all other errors at the same
/// time.
pub(super) fn read(text: &str) -> (Vec<Rc<TreeNode>>, Vec<SyntaxError>) {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "the text has {} bytes, the limit is {MAX_TEXT_BYTES}",
            text.len()
        );
        let place = Location { line: 1, column: 1 };
        return (Vec::new(), vec![SyntaxError { place, message }]);
    }
    // The parser limits nesting by indentation and by brackets, so that it stops early; the builder
    // also counts, because aliases nest without either.
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = TreeBuilder::default();
    loop {
        match parser.next_event() {
            None => break,
            Some(Ok((event, span))) => {
                if builder.on(event, span).is_err() {
                    break; // Too big: whatever follows would only cost time.
                }
            }
            Some(Err(error)) => {
                builder.fault(Location::of(*error.marker()), error.info());
                builder.abandon();
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) | Err(_) => break,
                }
            }
        }
    }
    (builder.documents, builder.faults)
}

/// The text exceeds its limits when aliases are expanded.
struct TooBig;

#[derive(Default)]
struct TreeBuilder {
    documents: Vec<Rc<TreeNode>>,
    faults: Vec<SyntaxError>,
    open: Vec<CollectionFrame>,
    root: Option<Rc<TreeNode>>,
    anchors: HashMap<usize, (Rc<TreeNode>, ExpandedSize)>,
    repeated: usize,
    incomplete: bool,
}

/// The size and depth of a value when it is repeated.
#[derive(Clone, Copy)]
struct ExpandedSize {
    weight: usize,
    depth: usize,
}

/// An unfinished list or map.
struct CollectionFrame {
    place: Location,
    anchor: usize,
    size: ExpandedSize,
    contents: CollectionContents,
}

/// The key whose value comes next.
enum PendingKey {
    None,
    Key(TreeKey),
    /// A faulty key, which is dropped with its value.
    Fault,
}

enum CollectionContents {
    List(Vec<Rc<TreeNode>>),
    Map {
        entries: Vec<(TreeKey, Rc<TreeNode>)>,
        /// The keys, if there are more than [`LINEAR_SEARCH_MAX_KEYS`].
        seen: HashSet<String>,
        key: PendingKey,
    },
}

/// Up to this number, keys are searched one by one; most maps have fewer.
const LINEAR_SEARCH_MAX_KEYS: usize = 16;

impl TreeBuilder {
    fn on(&mut self, event: Event<'_>, span: Span) -> Result<(), TooBig> {
        let place = Location::of(span.start);
        match event {
            Event::DocumentStart(..) => self.abandon(),
            Event::DocumentEnd => self.end_document(),
            Event::Scalar(text, style, anchor, tag) => {
                let forced_text = self.check_tag(place, tag.as_deref(), &["str"]);
                let plain = style == ScalarStyle::Plain && !forced_text;
                let size = ExpandedSize {
                    weight: NODE_OVERHEAD_BYTES + text.len(),
                    depth: 1,
                };
                let text = text.into_owned();
                let literal = style == ScalarStyle::Literal;
                let value = TreeValue::Scalar {
                    text,
                    plain,
                    literal,
                };
                self.add(TreeNode { place, value }, anchor, size)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(place, tag.as_deref(), &["seq"]);
                self.begin(place, anchor, CollectionContents::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(place, tag.as_deref(), &["map"]);
                self.begin(place, anchor, CollectionContents::map())
            }
            Event::SequenceEnd | Event::MappingEnd => return self.end(),
            Event::Alias(anchor) => return self.alias(place, anchor),
            _ => {}
        }
        self.check_depth(place)
    }

    /// Whether the value has one of the `known` standard tags; any other tag is a fault.
    fn check_tag(&mut self, place: Location, tag: Option<&Tag>, known: &[&str]) -> bool {
        let Some(tag) = tag else { return false };
        if known.iter().any(|name| tag.is_yaml_core_schema_tag(name)) {
            return true;
        }
        self.fault(
            place,
            format!("the tag {} is not supported", tag.original()),
        );
        false
    }

    fn begin(&mut self, place: Location, anchor: usize, contents: CollectionContents) {
        let size = ExpandedSize {
            weight: NODE_OVERHEAD_BYTES,
            depth: 1,
        };
        self.open.push(CollectionFrame {
            place,
            anchor,
            size,
            contents,
        });
    }

    fn end(&mut self) -> Result<(), TooBig> {
        let Some(frame) = self.open.pop() else {
            return Ok(());
        };
        let value = match frame.contents {
            CollectionContents::List(items) => TreeValue::List(items),
            CollectionContents::Map { entries, .. } => TreeValue::Map(entries),
        };
        let place = frame.place;
        self.add(TreeNode { place, value }, frame.anchor, frame.size);
        self.check_depth(place)
    }

    fn alias(&mut self, place: Location, anchor: usize) -> Result<(), TooBig> {
        let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
            self.fault(place, "this alias is inside the value it repeats".into());
            return Err(TooBig);
        };
        self.repeated = self.repeated.saturating_add(size.weight);
        if self.repeated > MAX_ALIASED_BYTES {
            let message = format!("aliases expand to more than {MAX_ALIASED_BYTES} bytes");
            self.fault(place, message);
            return Err(TooBig);
        }
        self.attach(node, size);
        self.check_depth(place)
    }

    /// Counts open lists and maps, and those inside an alias.
    fn check_depth(&mut self, place: Location) -> Result<(), TooBig> {
        let below = self.open.last().map_or(0, |frame| frame.size.depth);
        if self.open.len() + below <= MAX_DEPTH {
            return Ok(());
        }
        self.fault(place, format!("values nest deeper than {MAX_DEPTH} levels"));
        Err(TooBig)
    }

    fn add(&mut self, node: TreeNode, anchor: usize, size: ExpandedSize) {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, (Rc::clone(&node), size));
        }
        self.attach(node, size);
    }

    /// Adds a finished value to its parent.
    fn attach(&mut self, node: Rc<TreeNode>, size: ExpandedSize) {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        frame.size.weight = frame.size.weight.saturating_add(size.weight);
        frame.size.depth = frame.size.depth.max(size.depth + 1);
        if let Some(fault) = frame.contents.take(node) {
            self.incomplete |= fault.message == MERGE_KEYS_UNSUPPORTED;
            self.faults.push(fault);
        }
    }

    fn fault(&mut self, place: Location, message: String) {
        self.faults.push(SyntaxError { place, message });
    }

    fn end_document(&mut self) {
        let root = self.root.take().filter(|_| !self.incomplete);
        self.documents.extend(root);
        self.abandon();
    }

    /// Drops unfinished values before another document starts.
    fn abandon(&mut self) {
        self.open.clear();
        self.root = None;
        self.anchors.clear();
        self.incomplete = false;
    }
}

impl CollectionContents {
    fn map() -> Self {
        Self::Map {
            entries: Vec::new(),
            seen: HashSet::new(),
            key: PendingKey::None,
        }
    }

    fn take(&mut self, node: Rc<TreeNode>) -> Option<SyntaxError> {
        let (entries, seen, key) = match self {
            Self::List(items) => {
                items.push(node);
                return None;
            }
            Self::Map { entries, seen, key } => (entries, seen, key),
        };
        match std::mem::replace(key, PendingKey::None) {
            PendingKey::None => {}
            PendingKey::Fault => return None,
            PendingKey::Key(key) => {
                if entries.len() >= LINEAR_SEARCH_MAX_KEYS {
                    seen.insert(key.text.clone());
                }
                entries.push((key, node));
                return None;
            }
        }
        let place = node.place;
        let (text, message) = match &node.value {
            // YAML 1.1 merges maps at this key (`<<` in quotes is an ordinary key).
            TreeValue::Scalar {
                text, plain: true, ..
            } if text == "<<" => (text.clone(), Some(MERGE_KEYS_UNSUPPORTED.into())),
            TreeValue::Scalar { text, .. } if holds(entries, seen, text) => (
                text.clone(),
                Some(format!("the key {text:?} is defined twice")),
            ),
            TreeValue::Scalar { text, .. } => (text.clone(), None),
            _ => (
                String::new(),
                Some("a key must be a scalar, not a list or a map".into()),
            ),
        };
        let fault = message.map(|message| SyntaxError { place, message });
        *key = match fault {
            Some(_) => PendingKey::Fault,
            None => PendingKey::Key(TreeKey { text, place }),
        };
        fault
    }
}

/// Whether a map has that key already.
fn holds(entries: &[(TreeKey, Rc<TreeNode>)], seen: &HashSet<String>, text: &str) -> bool {
    let mut first = entries.iter().take(LINEAR_SEARCH_MAX_KEYS);
    first.any(|(key, _)| key.text == text) || seen.contains(text)
}
