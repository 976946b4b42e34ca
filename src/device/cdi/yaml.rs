//! The YAML of spec files, read as the library of the runtimes reads it: JSON is read as YAML, only the first
//! document counts, and the type of a scalar depends on its field.
//!
//! The library decodes YAML 1.1 in Go's way: `0666` is octal, `08` is 8.0, `on` is true in one field and a text in
//! the next, and a null in a list of texts disappears. No Rust library has these rules, `serde_saphyr` included,
//! which reads our own documents. So the parser is a library, and what its events mean is decided here.

mod decode;
mod dialect;
mod scalar;

use std::{collections::HashMap, rc::Rc};

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde::de::DeserializeOwned;

use self::{decode::Decoder, dialect::Dialect, scalar::Scalar};

/// How deep values may nest; a valid spec nests six levels.
const DEEPEST: usize = 64;
/// How many bytes aliases may repeat; a value counts for [`WEIGHT`] and its text.
const MOST_REPEATED: usize = 8 << 20;
/// What a value costs beside its text.
const WEIGHT: usize = 16;

/// A value and the line on which it begins.
#[derive(Debug)]
struct Node {
    line: usize,
    weight: usize,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Map(Vec<Entry>),
}

/// A key and its value.
type Entry = (Rc<Node>, Rc<Node>);

/// Reads the first document of `text`.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let document = first_document(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    T::deserialize(Decoder(&document)).map_err(|error| error.to_string())
}

fn first_document(text: &str) -> Result<Rc<Node>, String> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: DEEPEST,
        block_nesting_limit: DEEPEST,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::default();
    let mut dialect = Dialect::new(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let line = error.marker().line();
            format!("line {line}: {}", error.info())
        })?;
        let line = span.start.line();
        let is_key = matches!(event, Event::Scalar(..)) && builder.expects_key();
        let ended = dialect
            .check(&event, &span, is_key)
            .and_then(|()| builder.on(event, line))
            .map_err(|why| format!("line {line}: {why}"))?;
        if ended {
            break;
        }
    }
    builder.root.ok_or_else(|| "it is empty".to_owned())
}

/// A list or a map that is not finished, and the anchor that names it.
struct Open {
    line: usize,
    anchor: usize,
    is_map: bool,
    items: Vec<Rc<Node>>,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    repeated: usize,
    root: Option<Rc<Node>>,
}

impl Builder {
    /// Takes one event; true at the end of the document.
    fn on(&mut self, event: Event<'_>, line: usize) -> Result<bool, String> {
        match event {
            Event::DocumentEnd => return Ok(true),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let weight = WEIGHT + text.len();
                let scalar = Scalar::new(text.into_owned(), plain, tag_name(tag.as_deref()))?;
                let value = Value::Scalar(scalar);
                self.finish(
                    anchor,
                    Node {
                        line,
                        weight,
                        value,
                    },
                );
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, false),
            Event::MappingStart(_, anchor, _) => self.begin(line, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                let node = node.ok_or("an alias names a value that it is part of")?;
                self.repeated = self.repeated.saturating_add(node.weight);
                if self.repeated > MOST_REPEATED {
                    return Err(format!("aliases repeat more than {MOST_REPEATED} bytes"));
                }
                self.attach(node);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Whether a key of a map comes next.
    fn expects_key(&self) -> bool {
        let open = self.open.last();
        open.is_some_and(|open| open.is_map && open.items.len().is_multiple_of(2))
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) {
        self.open.push(Open {
            line,
            anchor,
            is_map,
            items: Vec::new(),
        });
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let weights = open.items.iter().map(|item| item.weight);
        let weight = weights.fold(WEIGHT, usize::saturating_add);
        let value = if open.is_map {
            Value::Map(entries(open.items)?)
        } else {
            Value::List(open.items)
        };
        let line = open.line;
        self.finish(
            open.anchor,
            Node {
                line,
                weight,
                value,
            },
        );
        Ok(())
    }

    fn finish(&mut self, anchor: usize, node: Node) {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.attach(node);
    }

    fn attach(&mut self, node: Rc<Node>) {
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
    }
}

/// Keys and values, which come in turns. The same key twice is refused.
fn entries(items: Vec<Rc<Node>>) -> Result<Vec<Entry>, String> {
    let mut seen = std::collections::HashSet::new();
    let mut entries = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        if let Value::Scalar(scalar) = &key.value
            && !seen.insert(scalar.text.clone())
        {
            return Err(format!("the key {:?} is there twice", scalar.text));
        }
        entries.push((key, value));
    }
    Ok(entries)
}

/// A tag in its short form; none where it says nothing of the type.
fn tag_name(tag: Option<&Tag>) -> Option<String> {
    const CORE: [&str; 9] = [
        "null",
        "bool",
        "str",
        "int",
        "float",
        "timestamp",
        "binary",
        "seq",
        "map",
    ];
    let tag = tag?;
    let core = CORE.iter().find(|name| tag.is_yaml_core_schema_tag(name));
    let name = core.map_or_else(|| tag.original().to_string(), |name| format!("!!{name}"));
    (name != "!").then_some(name)
}

#[cfg(test)]
mod tests;
