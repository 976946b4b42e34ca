//! Decodes the YAML of spec files like the CDI library that runtimes use: JSON is parsed as YAML,
//! only the first document counts, and the type of a scalar depends on its field.
//!
//! The library decodes YAML 1.1 as Go's yaml package does: `0666` is octal, `08` is 8.0, `on` is true
//! in a boolean field and text in others, and a null in a list of texts is dropped. No Rust library
//! has these rules, including `serde_saphyr`, which reads machinist's own documents. Hence a library
//! parses the YAML into events, and this module interprets them.

mod deserializer;
mod dialect;
mod scalar;

use std::{collections::HashMap, rc::Rc};

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde::de::DeserializeOwned;

use self::{deserializer::Decoder, dialect::DialectChecker, scalar::YamlScalar};

/// The maximum nesting of values; a valid spec has six levels.
const MAX_DEPTH: usize = 64;
/// The maximum number of bytes that aliases may repeat; each value counts as [`VALUE_OVERHEAD_BYTES`] plus its
/// text.
const MAX_ALIASED_BYTES: usize = 8 << 20;
/// The weight of a value in addition to its text, in bytes.
const VALUE_OVERHEAD_BYTES: usize = 16;

/// A value and the line on which it begins.
#[derive(Debug)]
struct YamlNode {
    line: usize,
    weight: usize,
    value: YamlValue,
}

#[derive(Debug)]
enum YamlValue {
    Scalar(YamlScalar),
    List(Vec<Rc<YamlNode>>),
    Map(Vec<YamlEntry>),
}

/// A key and its value.
type YamlEntry = (Rc<YamlNode>, Rc<YamlNode>);

/// Reads the first document of `text`.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let document = first_document(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    T::deserialize(Decoder(&document)).map_err(|error| error.to_string())
}

fn first_document(text: &str) -> Result<Rc<YamlNode>, String> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = YamlTreeBuilder::default();
    let mut dialect = DialectChecker::new(text);
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

/// A list or map that is not complete yet, and its anchor.
struct OpenCollection {
    line: usize,
    anchor: usize,
    is_map: bool,
    items: Vec<Rc<YamlNode>>,
}

#[derive(Default)]
struct YamlTreeBuilder {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, Rc<YamlNode>>,
    repeated: usize,
    root: Option<Rc<YamlNode>>,
}

impl YamlTreeBuilder {
    /// Handles one event. Returns true at the end of the document.
    fn on(&mut self, event: Event<'_>, line: usize) -> Result<bool, String> {
        match event {
            Event::DocumentEnd => return Ok(true),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let weight = VALUE_OVERHEAD_BYTES + text.len();
                let scalar = YamlScalar::new(text.into_owned(), plain, tag_name(tag.as_deref()))?;
                let value = YamlValue::Scalar(scalar);
                self.finish(
                    anchor,
                    YamlNode {
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
                let node = node.ok_or("an alias refers to a value that contains it")?;
                self.repeated = self.repeated.saturating_add(node.weight);
                if self.repeated > MAX_ALIASED_BYTES {
                    return Err(format!(
                        "aliases expand to more than {MAX_ALIASED_BYTES} bytes"
                    ));
                }
                self.attach(node);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Whether the next node is a key of a map.
    fn expects_key(&self) -> bool {
        let open = self.open.last();
        open.is_some_and(|open| open.is_map && open.items.len().is_multiple_of(2))
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) {
        self.open.push(OpenCollection {
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
        let weight = weights.fold(VALUE_OVERHEAD_BYTES, usize::saturating_add);
        let value = if open.is_map {
            YamlValue::Map(entries(open.items)?)
        } else {
            YamlValue::List(open.items)
        };
        let line = open.line;
        self.finish(
            open.anchor,
            YamlNode {
                line,
                weight,
                value,
            },
        );
        Ok(())
    }

    fn finish(&mut self, anchor: usize, node: YamlNode) {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.attach(node);
    }

    fn attach(&mut self, node: Rc<YamlNode>) {
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
    }
}

/// Pairs up the alternating keys and values. Duplicate keys are refused.
fn entries(items: Vec<Rc<YamlNode>>) -> Result<Vec<YamlEntry>, String> {
    let mut seen = std::collections::HashSet::new();
    let mut entries = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        if let YamlValue::Scalar(scalar) = &key.value
            && !seen.insert(scalar.text.clone())
        {
            return Err(format!("the key {:?} is defined twice", scalar.text));
        }
        entries.push((key, value));
    }
    Ok(entries)
}

/// The short form of a tag; none for the non-specific tag `!`.
fn tag_name(tag: Option<&Tag>) -> Option<String> {
    const CORE_SCHEMA_TAGS: [&str; 9] = [
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
    let core = CORE_SCHEMA_TAGS
        .iter()
        .find(|name| tag.is_yaml_core_schema_tag(name));
    let name = core.map_or_else(|| tag.original().to_string(), |name| format!("!!{name}"));
    (name != "!").then_some(name)
}

#[cfg(test)]
mod tests;
