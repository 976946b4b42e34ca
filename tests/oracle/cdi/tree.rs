//! A spec as a tree, and its output as JSON and as YAML.

use crate::support::Dice;

/// A value before it is written; a scalar is written verbatim.
#[derive(Clone)]
pub(super) enum Tree {
    Scalar(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

const ODD: [&str; 22] = [
    "null",
    "~",
    "Null",
    "true",
    "yes",
    "off",
    "[]",
    "{}",
    "\"\"",
    "0",
    "1.0",
    "<<",
    "!!str 5",
    "!!null ~",
    "!x y",
    "2001-01-01",
    "\"a\\nb\"",
    "[null]",
    "{a: b}",
    ".nan",
    "=",
    "!!bool on",
];
const KEYS: [&str; 8] = [
    "path",
    "name",
    "env",
    "Path",
    "hostpath",
    "permission",
    "\"path\"",
    "<<",
];

impl Tree {
    /// A random scalar of these.
    pub(super) fn one(dice: &mut Dice, from: &[&str]) -> Self {
        Self::Scalar((*dice.pick(from)).to_owned())
    }

    /// Introduces one defect.
    pub(super) fn spoil(&mut self, dice: &mut Dice) {
        match self {
            Self::Map(fields) if !fields.is_empty() && !dice.one_in(6) => {
                let at = dice.below(fields.len());
                match dice.below(8) {
                    0 => drop(fields.remove(at)),
                    1 => fields[at].0 = (*dice.pick(&KEYS)).to_owned(),
                    2 => {
                        let twice = fields[at].clone();
                        fields.push(twice);
                    }
                    _ => fields[at].1.spoil(dice),
                }
            }
            Self::List(items) if !items.is_empty() && !dice.one_in(4) => {
                let at = dice.below(items.len());
                items[at].spoil(dice);
            }
            other => *other = Self::one(dice, &ODD),
        }
    }

    /// As JSON, or nearly: scalars are written verbatim.
    pub(super) fn flow(&self, newline: &str, indent: &str) -> String {
        let inner = format!("{newline}{indent}");
        let deeper = match newline {
            "" => String::new(),
            newline => format!("{newline}{indent}"),
        };
        match self {
            Self::Scalar(text) if text.starts_with(['"', '\'', '[', '{']) || is_number(text) => {
                text.clone()
            }
            Self::Scalar(text) if KEPT.contains(&text.as_str()) || text.starts_with('!') => {
                text.clone()
            }
            Self::Scalar(text) => format!("\"{text}\""),
            Self::List(items) => {
                let items: Vec<String> = items
                    .iter()
                    .map(|item| item.flow(&deeper, indent))
                    .collect();
                format!("[{inner}{}{newline}]", items.join(&format!(",{inner}")))
            }
            Self::Map(fields) => {
                let field = |(name, value): &(String, Self)| {
                    let name = name.trim_matches('"');
                    format!("\"{name}\": {}", value.flow(&deeper, indent))
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("{{{inner}{}{newline}}}", fields.join(&format!(",{inner}")))
            }
        }
    }

    /// As YAML in blocks.
    pub(super) fn block(&self, text: &mut String, depth: usize, dice: &mut Dice) {
        let indent = "  ".repeat(depth);
        match self {
            Self::Scalar(scalar) => {
                *text += scalar;
                text.push('\n');
            }
            Self::List(items) => {
                for item in items {
                    *text += &format!("{indent}- ");
                    item.below(text, depth + 1, dice);
                }
            }
            Self::Map(fields) => {
                for (name, value) in fields {
                    *text += &format!("{indent}{name}:{}", dice.pick(&[" ", " ", " ", "  ", "\t"]));
                    value.below(text, depth + 1, dice);
                }
            }
        }
    }

    fn below(&self, text: &mut String, depth: usize, dice: &mut Dice) {
        match self {
            Self::Scalar(_) => self.block(text, depth, dice),
            _ if dice.one_in(4) => {
                *text += &self.flow("", "");
                text.push('\n');
            }
            _ => {
                text.push('\n');
                self.block(text, depth, dice);
            }
        }
    }
}

const KEPT: [&str; 9] = [
    "null", "~", "true", "false", "yes", "off", "y", ".inf", ".nan",
];

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+')) && !text.contains('=')
}
