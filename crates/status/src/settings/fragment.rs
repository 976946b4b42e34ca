//! Parses the settings of one source (one file, the environment or the flags) into dotted keys with
//! positions.
//!
//! Only the form is checked here (valid YAML, a mapping at the top). Only `settings.rs` knows the
//! keys and their values, so that every problem of a file is reported and not only the first.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Options, Spanned};

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

/// The settings of one file, the environment or the flags. Only their syntax has been checked.
#[derive(Clone, Debug, Default)]
pub struct Fragment {
    pub(super) leaves: Vec<Leaf>,
}

impl Fragment {
    /// Parses one settings file; problems refer to it as `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, SettingsProblem> {
        let top: Spanned<RawYaml> = serde_saphyr::from_str_with_options(text, dialect())
            .map_err(|error| syntax(name, &error))?;
        let top = node(name, top);
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
                ValueShape::Nothing => {}
                ValueShape::Map(below) => self.flatten(&key, below),
                ValueShape::Text(_) | ValueShape::List(_) => self.leaves.push(Leaf { key, node }),
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
    let parsed = serde_saphyr::from_str_with_options::<Spanned<RawYaml>>(text, dialect());
    let mut node = match parsed {
        Ok(raw) => node("", raw),
        Err(_) => ValueNode {
            shape: ValueShape::Text(text.to_owned()),
            at: at.clone(),
        },
    };
    relocate(&mut node, at);
    node
}

fn relocate(node: &mut ValueNode, at: &SettingOrigin) {
    node.at = at.clone();
    match &mut node.shape {
        ValueShape::List(items) => items.iter_mut().for_each(|item| relocate(item, at)),
        ValueShape::Map(entries) => entries.iter_mut().for_each(|(_, item)| relocate(item, at)),
        ValueShape::Nothing | ValueShape::Text(_) => {}
    }
}

/// YAML 1.2 booleans only: `off` is a gate's effect and must stay a string.
fn dialect() -> Options {
    serde_saphyr::options! { strict_booleans: true, with_snippet: false }
}

fn syntax(name: &str, error: &serde_saphyr::Error) -> SettingsProblem {
    let (line, column) = error
        .location()
        .map_or((1, 1), |place| (place.line(), place.column()));
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let place = format!(" at line {line}, column {column}");
    SettingsProblem {
        at: SettingOrigin::File {
            name: name.to_owned(),
            line,
            column,
        },
        field: String::new(),
        reason: Reason::SyntaxInvalid,
        message: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
        expected: "YAML".to_owned(),
    }
}

fn node(file: &str, raw: Spanned<RawYaml>) -> ValueNode {
    let shape = match raw.value {
        RawYaml::Nothing => ValueShape::Nothing,
        RawYaml::Text(text) => ValueShape::Text(text),
        RawYaml::List(items) => {
            ValueShape::List(items.into_iter().map(|item| node(file, item)).collect())
        }
        RawYaml::Map(entries) => ValueShape::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key, node(file, value)))
                .collect(),
        ),
    };
    let at = SettingOrigin::File {
        name: file.to_owned(),
        line: raw.referenced.line(),
        column: raw.referenced.column(),
    };
    ValueNode { shape, at }
}

/// A YAML value of any shape, with the positions that `serde_saphyr` records.
enum RawYaml {
    Nothing,
    Text(String),
    List(Vec<Spanned<RawYaml>>),
    Map(Vec<(String, Spanned<RawYaml>)>),
}

impl<'de> Deserialize<'de> for RawYaml {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(RawYamlVisitor)
    }
}

struct RawYamlVisitor;

impl<'de> Visitor<'de> for RawYamlVisitor {
    type Value = RawYaml;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<RawYaml, E> {
        Ok(RawYaml::Nothing)
    }

    fn visit_none<E>(self) -> Result<RawYaml, E> {
        Ok(RawYaml::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawYaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(RawYaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawYaml, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(RawYaml::Map(map))
    }
}
