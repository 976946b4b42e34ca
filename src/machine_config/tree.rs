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
pub(super) const LONGEST_TEXT: usize = 8 << 20;

/// The maximum total size of values repeated by aliases, in units of [`WEIGHT_OF_A_NODE`] plus
/// bytes of text: as much as could have been written without aliases. An alias bomb exceeds it
/// after a few hundred steps.
const MOST_REPEATED: usize = LONGEST_TEXT;

/// The size of a value in addition to its text when an alias repeats it.
const WEIGHT_OF_A_NODE: usize = 16;

/// The maximum nesting depth. A List of MachineConfigs nests eleven levels.
const DEEPEST: usize = 64;

/// A fault that hides other values: with merge keys, absent fields cannot be determined.
const MERGE_KEYS: &str = "merge keys (<<) are not supported";

/// A position in the text, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Place {
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
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// The content of a value. Scalars keep their spelling: the meaning of `0644` depends on the field.
#[derive(Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        plain: bool,
        /// A literal block after `|`: each of its lines is a line of the text.
        literal: bool,
    },
    List(Vec<Rc<Node>>),
    Map(Vec<(Key, Rc<Node>)>),
}

/// The key of an entry, with its place.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) place: Place,
}

/// An error that makes a document unreadable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) place: Place,
    pub(super) message: String,
}

/// Parses every document of `text`. A document that ends prematurely is omitted; in a document with
/// other faults only the faulty values are omitted, so that users get all other errors at the same
/// time.
pub(super) fn read(text: &str) -> (Vec<Rc<Node>>, Vec<Fault>) {
    if text.len() > LONGEST_TEXT {
        let message = format!(
            "the text has {} bytes, the limit is {LONGEST_TEXT}",
            text.len()
        );
        let place = Place { line: 1, column: 1 };
        return (Vec::new(), vec![Fault { place, message }]);
    }
    // The parser limits nesting by indentation and by brackets, so that it stops early; the builder
    // also counts, because aliases nest without either.
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: DEEPEST,
        block_nesting_limit: DEEPEST,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::default();
    loop {
        match parser.next_event() {
            None => break,
            Some(Ok((event, span))) => {
                if builder.on(event, span).is_err() {
                    break; // Too big: whatever follows would only cost time.
                }
            }
            Some(Err(error)) => {
                builder.fault(Place::of(*error.marker()), error.info());
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
struct Builder {
    documents: Vec<Rc<Node>>,
    faults: Vec<Fault>,
    open: Vec<Frame>,
    root: Option<Rc<Node>>,
    anchors: HashMap<usize, (Rc<Node>, Size)>,
    repeated: usize,
    incomplete: bool,
}

/// The size and depth of a value when it is repeated.
#[derive(Clone, Copy)]
struct Size {
    weight: usize,
    depth: usize,
}

/// An unfinished list or map.
struct Frame {
    place: Place,
    anchor: usize,
    size: Size,
    contents: Contents,
}

/// The key whose value comes next.
enum Pending {
    None,
    Key(Key),
    /// A faulty key, which is dropped with its value.
    Fault,
}

enum Contents {
    List(Vec<Rc<Node>>),
    Map {
        entries: Vec<(Key, Rc<Node>)>,
        /// The keys, if there are more than [`FEW_KEYS`].
        seen: HashSet<String>,
        key: Pending,
    },
}

/// Up to this number, keys are searched one by one; most maps have fewer.
const FEW_KEYS: usize = 16;

impl Builder {
    fn on(&mut self, event: Event<'_>, span: Span) -> Result<(), TooBig> {
        let place = Place::of(span.start);
        match event {
            Event::DocumentStart(..) => self.abandon(),
            Event::DocumentEnd => self.end_document(),
            Event::Scalar(text, style, anchor, tag) => {
                let forced_text = self.check_tag(place, tag.as_deref(), &["str"]);
                let plain = style == ScalarStyle::Plain && !forced_text;
                let size = Size {
                    weight: WEIGHT_OF_A_NODE + text.len(),
                    depth: 1,
                };
                let text = text.into_owned();
                let literal = style == ScalarStyle::Literal;
                let value = Value::Scalar {
                    text,
                    plain,
                    literal,
                };
                self.add(Node { place, value }, anchor, size)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(place, tag.as_deref(), &["seq"]);
                self.begin(place, anchor, Contents::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(place, tag.as_deref(), &["map"]);
                self.begin(place, anchor, Contents::map())
            }
            Event::SequenceEnd | Event::MappingEnd => return self.end(),
            Event::Alias(anchor) => return self.alias(place, anchor),
            _ => {}
        }
        self.check_depth(place)
    }

    /// Whether the value has one of the `known` standard tags; any other tag is a fault.
    fn check_tag(&mut self, place: Place, tag: Option<&Tag>, known: &[&str]) -> bool {
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

    fn begin(&mut self, place: Place, anchor: usize, contents: Contents) {
        let size = Size {
            weight: WEIGHT_OF_A_NODE,
            depth: 1,
        };
        self.open.push(Frame {
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
            Contents::List(items) => Value::List(items),
            Contents::Map { entries, .. } => Value::Map(entries),
        };
        let place = frame.place;
        self.add(Node { place, value }, frame.anchor, frame.size);
        self.check_depth(place)
    }

    fn alias(&mut self, place: Place, anchor: usize) -> Result<(), TooBig> {
        let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
            self.fault(place, "this alias is inside the value it repeats".into());
            return Err(TooBig);
        };
        self.repeated = self.repeated.saturating_add(size.weight);
        if self.repeated > MOST_REPEATED {
            let message = format!("aliases expand to more than {MOST_REPEATED} bytes");
            self.fault(place, message);
            return Err(TooBig);
        }
        self.attach(node, size);
        self.check_depth(place)
    }

    /// Counts open lists and maps, and those inside an alias.
    fn check_depth(&mut self, place: Place) -> Result<(), TooBig> {
        let below = self.open.last().map_or(0, |frame| frame.size.depth);
        if self.open.len() + below <= DEEPEST {
            return Ok(());
        }
        self.fault(place, format!("values nest deeper than {DEEPEST} levels"));
        Err(TooBig)
    }

    fn add(&mut self, node: Node, anchor: usize, size: Size) {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, (Rc::clone(&node), size));
        }
        self.attach(node, size);
    }

    /// Adds a finished value to its parent.
    fn attach(&mut self, node: Rc<Node>, size: Size) {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        frame.size.weight = frame.size.weight.saturating_add(size.weight);
        frame.size.depth = frame.size.depth.max(size.depth + 1);
        if let Some(fault) = frame.contents.take(node) {
            self.incomplete |= fault.message == MERGE_KEYS;
            self.faults.push(fault);
        }
    }

    fn fault(&mut self, place: Place, message: String) {
        self.faults.push(Fault { place, message });
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

impl Contents {
    fn map() -> Self {
        Self::Map {
            entries: Vec::new(),
            seen: HashSet::new(),
            key: Pending::None,
        }
    }

    fn take(&mut self, node: Rc<Node>) -> Option<Fault> {
        let (entries, seen, key) = match self {
            Self::List(items) => {
                items.push(node);
                return None;
            }
            Self::Map { entries, seen, key } => (entries, seen, key),
        };
        match std::mem::replace(key, Pending::None) {
            Pending::None => {}
            Pending::Fault => return None,
            Pending::Key(key) => {
                if entries.len() >= FEW_KEYS {
                    seen.insert(key.text.clone());
                }
                entries.push((key, node));
                return None;
            }
        }
        let place = node.place;
        let (text, message) = match &node.value {
            // YAML 1.1 merges maps at this key (`<<` in quotes is an ordinary key).
            Value::Scalar {
                text, plain: true, ..
            } if text == "<<" => (text.clone(), Some(MERGE_KEYS.into())),
            Value::Scalar { text, .. } if holds(entries, seen, text) => (
                text.clone(),
                Some(format!("the key {text:?} is defined twice")),
            ),
            Value::Scalar { text, .. } => (text.clone(), None),
            _ => (
                String::new(),
                Some("a key must be a scalar, not a list or a map".into()),
            ),
        };
        let fault = message.map(|message| Fault { place, message });
        *key = match fault {
            Some(_) => Pending::Fault,
            None => Pending::Key(Key { text, place }),
        };
        fault
    }
}

/// Whether a map has that key already.
fn holds(entries: &[(Key, Rc<Node>)], seen: &HashSet<String>, text: &str) -> bool {
    let mut first = entries.iter().take(FEW_KEYS);
    first.any(|(key, _)| key.text == text) || seen.contains(text)
}
