//! Builds trees from parser events, within the limits for depth and for aliases.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use granit_parser::{Event, Span};

use crate::{
    Dialect, Documents, Entry, Key, Location, MAX_DEPTH, NODE_OVERHEAD_BYTES, Node, Value,
    YamlError, YamlFault,
};

/// Up to this number, keys are searched one by one; most maps have fewer.
const LINEAR_SEARCH_MAX_KEYS: usize = 16;

/// The rest of the text is not read: it exceeds a limit, and would only cost time.
pub(crate) struct Stop;

/// The trees of one text so far.
pub(crate) struct TreeBuilder<D: Dialect> {
    dialect: D,
    documents: Vec<Rc<Node<D::Scalar>>>,
    faults: Vec<YamlError>,
    open: Vec<CollectionFrame<D::Scalar>>,
    root: Option<Rc<Node<D::Scalar>>>,
    anchors: HashMap<usize, AnchoredNode<D::Scalar>>,
    repeated: usize,
    incomplete: bool,
}

/// A value that aliases may repeat.
type AnchoredNode<S> = (Rc<Node<S>>, ExpandedSize);

/// The size and depth of a value when it is repeated.
#[derive(Clone, Copy)]
struct ExpandedSize {
    weight: usize,
    depth: usize,
}

impl ExpandedSize {
    const fn of(text_bytes: usize) -> Self {
        Self {
            weight: NODE_OVERHEAD_BYTES + text_bytes,
            depth: 1,
        }
    }
}

/// An unfinished list or map.
struct CollectionFrame<S> {
    place: Location,
    anchor: usize,
    size: ExpandedSize,
    contents: CollectionContents<S>,
}

enum CollectionContents<S> {
    List(Vec<Rc<Node<S>>>),
    Map(MapContents<S>),
}

struct MapContents<S> {
    entries: Vec<Entry<S>>,
    /// The keys, if there are more than [`LINEAR_SEARCH_MAX_KEYS`].
    seen: HashSet<String>,
    key: PendingKey<S>,
}

/// The key whose value comes next.
enum PendingKey<S> {
    None,
    Key(Key<S>),
    /// A faulty key, which is dropped with its value.
    Fault,
}

impl<D: Dialect> TreeBuilder<D> {
    pub(crate) fn new(dialect: D) -> Self {
        Self {
            dialect,
            documents: Vec::new(),
            faults: Vec::new(),
            open: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            repeated: 0,
            incomplete: false,
        }
    }

    pub(crate) fn into_documents(self) -> Documents<D::Scalar> {
        (self.documents, self.faults)
    }

    pub(crate) const fn has_document(&self) -> bool {
        !self.documents.is_empty()
    }

    pub(crate) const fn has_fault(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Adds one event. Faults are collected.
    pub(crate) fn on(&mut self, event: Event<'_>, span: Span) -> Result<(), Stop> {
        let place = Location::of(span.start);
        let is_key = matches!(event, Event::Scalar(..)) && self.expects_key();
        if let Err(message) = self.dialect.check(&event, &span, is_key) {
            self.fault(place, message);
        }
        match event {
            Event::DocumentStart(..) => self.abandon(),
            Event::DocumentEnd => self.end_document(),
            Event::Scalar(text, style, anchor, tag) => {
                let size = ExpandedSize::of(text.len());
                match D::scalar(text.into_owned(), style, tag.as_deref()) {
                    Ok(scalar) => self.add(place, Value::Scalar(scalar), anchor, size),
                    Err(message) => {
                        self.fault(place, message);
                        return Err(Stop);
                    }
                }
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(place, anchor, CollectionContents::List(Vec::new()));
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(place, anchor, CollectionContents::Map(MapContents::new()));
            }
            Event::SequenceEnd | Event::MappingEnd => return self.end(),
            Event::Alias(anchor) => return self.alias(place, anchor),
            _ => {}
        }
        self.check_depth(place)
    }

    /// Whether the next value is the key of a map.
    fn expects_key(&self) -> bool {
        self.open.last().is_some_and(|frame| {
            matches!(&frame.contents, CollectionContents::Map(map)
                if matches!(map.key, PendingKey::None))
        })
    }

    fn begin(&mut self, place: Location, anchor: usize, contents: CollectionContents<D::Scalar>) {
        self.open.push(CollectionFrame {
            place,
            anchor,
            size: ExpandedSize::of(0),
            contents,
        });
    }

    fn end(&mut self) -> Result<(), Stop> {
        let Some(frame) = self.open.pop() else {
            return Ok(());
        };
        let value = match frame.contents {
            CollectionContents::List(items) => Value::List(items),
            CollectionContents::Map(map) => Value::Map(map.entries),
        };
        self.add(frame.place, value, frame.anchor, frame.size);
        self.check_depth(frame.place)
    }

    fn alias(&mut self, place: Location, anchor: usize) -> Result<(), Stop> {
        let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
            self.fault(place, "this alias is inside the value it repeats".into());
            return Err(Stop);
        };
        self.repeated = self.repeated.saturating_add(size.weight);
        if self.repeated > D::MAX_ALIASED_BYTES {
            let most = D::MAX_ALIASED_BYTES;
            self.fault(place, format!("aliases expand to more than {most} bytes"));
            return Err(Stop);
        }
        let value = node.value.clone();
        self.attach(Rc::new(Node { place, value }), size);
        self.check_depth(place)
    }

    /// Counts open lists and maps, and those inside an alias.
    fn check_depth(&mut self, place: Location) -> Result<(), Stop> {
        let below = self.open.last().map_or(0, |frame| frame.size.depth);
        if self.open.len() + below <= MAX_DEPTH {
            return Ok(());
        }
        self.fault(place, format!("values nest deeper than {MAX_DEPTH} levels"));
        Err(Stop)
    }

    fn add(&mut self, place: Location, value: Value<D::Scalar>, anchor: usize, size: ExpandedSize) {
        let node = Rc::new(Node { place, value });
        if anchor != 0 {
            self.anchors.insert(anchor, (Rc::clone(&node), size));
        }
        self.attach(node, size);
    }

    /// Adds a finished value to its parent.
    fn attach(&mut self, node: Rc<Node<D::Scalar>>, size: ExpandedSize) {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        frame.size.weight = frame.size.weight.saturating_add(size.weight);
        frame.size.depth = frame.size.depth.max(size.depth + 1);
        let map = match &mut frame.contents {
            CollectionContents::List(items) => return items.push(node),
            CollectionContents::Map(map) => map,
        };
        match std::mem::replace(&mut map.key, PendingKey::None) {
            PendingKey::None => self.set_key(&node),
            PendingKey::Fault => {}
            PendingKey::Key(key) => map.push(key, node),
        }
    }

    /// Makes `node` the key of the map's next value.
    fn set_key(&mut self, node: &Node<D::Scalar>) {
        let Some(CollectionContents::Map(map)) =
            self.open.last_mut().map(|open| &mut open.contents)
        else {
            return;
        };
        let place = node.place;
        let key = match &node.value {
            Value::Scalar(scalar) => match D::key_fault(scalar) {
                Some(fault) => {
                    self.incomplete = true;
                    Err(YamlError::syntax(place, fault))
                }
                None if map.has(scalar.as_ref()) => {
                    let message = format!("the key {:?} is defined twice", scalar.as_ref());
                    Err(YamlError::new(YamlFault::KeyDuplicate, message).at(place))
                }
                None => Ok(scalar.clone()),
            },
            _ => {
                let message = "a key must be a scalar, not a list or a map";
                Err(YamlError::syntax(place, message))
            }
        };
        match key {
            Ok(scalar) => map.key = PendingKey::Key(Key { scalar, place }),
            Err(fault) => {
                map.key = PendingKey::Fault;
                self.faults.push(fault);
            }
        }
    }

    fn fault(&mut self, place: Location, message: String) {
        self.faults.push(YamlError::syntax(place, message));
    }

    fn end_document(&mut self) {
        let root = self.root.take().filter(|_| !self.incomplete);
        self.documents.extend(root);
        self.abandon();
    }

    /// Drops unfinished values because of a fault.
    pub(crate) fn abandon_with(&mut self, fault: YamlError) {
        self.faults.push(fault);
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

impl<S: AsRef<str>> MapContents<S> {
    fn new() -> Self {
        Self {
            entries: Vec::new(),
            seen: HashSet::new(),
            key: PendingKey::None,
        }
    }

    fn push(&mut self, key: Key<S>, value: Rc<Node<S>>) {
        if self.entries.len() >= LINEAR_SEARCH_MAX_KEYS {
            self.seen.insert(key.scalar.as_ref().to_owned());
        }
        self.entries.push((key, value));
    }

    /// Whether the map has that key already.
    fn has(&self, text: &str) -> bool {
        let mut first = self.entries.iter().take(LINEAR_SEARCH_MAX_KEYS);
        first.any(|(key, _)| key.scalar.as_ref() == text) || self.seen.contains(text)
    }
}
