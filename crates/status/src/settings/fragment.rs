//! Parses the settings of one source (one file, the environment or the flags) into dotted keys with
//! positions.
//!
//! Only the form is checked here (valid YAML, a mapping at the top). Only `settings.rs` knows the
//! keys and their values, so that every problem of a file is reported and not only the first.

use machinist_yaml::{
    CoreScalar, CoreSchema, Location, Node, ScalarValue, TypedScalar as _, Value, YamlError,
    YamlFault,
};

use super::error::{SettingOrigin, SettingsProblem};
use machinist_base::reason::Reason;

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct ValueNode {
    pub(super) shape: ValueShape,
    pub(super) at: SettingOrigin,
}

/// The shapes of a settings value. Scalars stay text, because their type depends on the key.
#[derive(Clone, Debug)]
pub(super) enum ValueShape {
    Nothing,
    Text(String),
    List(Vec<ValueNode>),
    Map(Vec<(String, ValueNode)>),
}

/// The maximum number of characters of an invalid value to quote: enough to recognise it, on one line.
const MAX_QUOTED_CHARS: usize = 60;

pub(super) fn describe(shape: &ValueShape) -> String {
    match shape {
        ValueShape::Nothing => "nothing".to_owned(),
        ValueShape::Text(text) if text.chars().count() > MAX_QUOTED_CHARS => {
            let start: String = text.chars().take(MAX_QUOTED_CHARS).collect();
            format!("{start:?}…")
        }
        ValueShape::Text(text) => format!("{text:?}"),
        ValueShape::List(_) => "a list".to_owned(),
        ValueShape::Map(_) => "a mapping".to_owned(),
    }
}

/// One key of a fragment.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Dotted, as written: `update.reboot`. From the environment: upper case, see [`env_name`].
    pub(super) key: String,
    pub(super) node: ValueNode,
}

impl Leaf {
    /// Whether it is a key or section that a file leaves without a value (`key:`), which sets nothing.
    pub(super) fn is_left_empty(&self) -> bool {
        let in_file = matches!(self.node.at, SettingOrigin::File { .. });
        let is_empty = match &self.node.shape {
            ValueShape::Nothing => true,
            ValueShape::Map(below) => below.is_empty(),
            ValueShape::Text(_) | ValueShape::List(_) => false,
        };
        in_file && is_empty
    }
}

/// The settings of one file, the environment or the flags. Only their syntax has been checked.
#[derive(Clone, Debug, Default)]
pub struct Fragment {
    pub(super) leaves: Vec<Leaf>,
}

impl Fragment {
    /// Parses one settings file; problems refer to it as `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, SettingsProblem> {
        let top = read(text, &|place| SettingOrigin::File {
            name: name.to_owned(),
            line: place.line.into(),
            column: place.column.into(),
        })?;
        let mut fragment = Self::default();
        match top.shape {
            ValueShape::Nothing => {}
            ValueShape::Map(entries) => fragment.flatten("", entries),
            ValueShape::Text(_) | ValueShape::List(_) => {
                return Err(SettingsProblem {
                    at: top.at,
                    field: String::new(),
                    reason: Reason::SyntaxInvalid,
                    message: "the settings are not a mapping".to_owned(),
                    expected: "keys with values, such as `update: {reboot: ask}`".to_owned(),
                });
            }
        }
        Ok(fragment)
    }

    /// Collects the variables that name settings: `MACHINIST_` and either a `__` or a key without
    /// sections.
    ///
    /// Other `MACHINIST_…` variables are ignored: the kubelet sets some for every Service, such as
    /// `MACHINIST_SERVICE_HOST`, and none of those contains a double underscore.
    pub fn from_env(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut fragment = Self::default();
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix("MACHINIST_") else {
                continue;
            };
            if !rest.contains("__") && !UNSECTIONED_KEYS.contains(&rest) {
                continue;
            }
            let key = rest.replace("__", ".");
            let at = SettingOrigin::Environment { name };
            let node = inline(&at, &value);
            fragment.leaves.push(Leaf { key, node });
        }
        fragment.leaves.sort_by(|a, b| a.key.cmp(&b.key));
        fragment
    }

    /// Adds the value of a flag for `key`.
    #[must_use]
    pub fn with_flag(mut self, flag: &str, key: &str, value: impl Into<String>) -> Self {
        let at = SettingOrigin::Flag {
            name: flag.to_owned(),
        };
        self.leaves.push(Leaf {
            key: key.to_owned(),
            node: ValueNode {
                shape: ValueShape::Text(value.into()),
                at,
            },
        });
        self
    }

    fn flatten(&mut self, above: &str, entries: Vec<(String, ValueNode)>) {
        for (name, node) in entries {
            // A key that contains a dot would look like two keys.
            let name = match name.contains('.') {
                true => format!("{name:?}"),
                false => name,
            };
            let key = match above {
                "" => name,
                // `source` is a string, or a section with the string in `from`.
                "source" if name == "from" => above.to_owned(),
                above => format!("{above}.{name}"),
            };
            match node.shape {
                ValueShape::Map(below) if !below.is_empty() => self.flatten(&key, below),
                _ => self.leaves.push(Leaf { key, node }),
            }
        }
    }
}

/// Keys without a section, as spelled in the environment. The last is a former name, which is refused.
const UNSECTIONED_KEYS: &[&str] = &["SOURCE", "ROLES", "OWNERS", "JOBS"];

/// `readiness.gates.DiskSpace` in the spelling of the environment: `READINESS.GATES.DISK_SPACE`.
pub(super) fn env_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 8);
    let mut last = '.';
    for letter in key.chars() {
        if letter.is_ascii_uppercase() && last != '.' {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
        last = letter;
    }
    name
}

/// The value of a variable is parsed as YAML, so that it may be a list; if that fails, it is a
/// string.
fn inline(at: &SettingOrigin, text: &str) -> ValueNode {
    read(text, &|_| at.clone()).unwrap_or_else(|_| ValueNode {
        shape: ValueShape::Text(text.to_owned()),
        at: at.clone(),
    })
}

/// The origin of the value at a place.
type OriginOf<'o> = &'o dyn Fn(Location) -> SettingOrigin;

/// Reads the only document of `text`. Booleans are those of YAML 1.2: `off` is a gate's effect and
/// must stay a string.
fn read(text: &str, origin: OriginOf<'_>) -> Result<ValueNode, SettingsProblem> {
    let document = machinist_yaml::read_only(text, CoreSchema);
    let read = document.and_then(|document| value(&document, origin));
    read.map_err(|error| SettingsProblem {
        at: origin(error.place),
        field: String::new(),
        reason: Reason::SyntaxInvalid,
        message: error.message,
        expected: match error.fault {
            YamlFault::KeyDuplicate => "each key once".to_owned(),
            _ if error.expected.is_empty() => "YAML".to_owned(),
            _ => error.expected,
        },
    })
}

fn value(node: &Node<CoreScalar>, origin: OriginOf<'_>) -> Result<ValueNode, YamlError> {
    let shape = match &node.value {
        Value::List(items) => {
            let items = items.iter().map(|item| value(item, origin));
            ValueShape::List(items.collect::<Result<_, _>>()?)
        }
        Value::Map(_) => {
            let fields = node.fields()?.into_iter();
            let entries = fields
                .map(|(key, below)| Ok((key.scalar.as_ref().to_owned(), value(below, origin)?)));
            ValueShape::Map(entries.collect::<Result<_, _>>()?)
        }
        Value::Scalar(scalar) => {
            let read = scalar.value();
            match read.map_err(|message| YamlError::syntax(node.place, message))? {
                ScalarValue::Null => ValueShape::Nothing,
                ScalarValue::Flag(flag) => ValueShape::Text(flag.to_string()),
                ScalarValue::Integer(number) => ValueShape::Text(number.to_string()),
                ScalarValue::Float(number) => ValueShape::Text(number.to_string()),
                ScalarValue::Text(text) => ValueShape::Text(text.to_owned()),
            }
        }
    };
    let at = origin(node.place);
    Ok(ValueNode { shape, at })
}
