//! Reads key after key from the fragments and collects problems.

use serde::Serialize;

use super::{
    error::{SettingOrigin, SettingsProblem},
    fragment::{Fragment, Leaf, ValueNode, ValueShape, describe, env_name},
    unknown_key::unknown,
};
use machinist_base::reason::Reason;

/// One effective value and its origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectiveSetting {
    /// Dotted: `update.reboot`.
    pub key: &'static str,
    /// As written in a file.
    pub value: serde_json::Value,
    /// Its origin.
    pub from: SettingOrigin,
}

/// A value that is a single scalar in a file.
pub(super) trait Scalar: Sized {
    /// A description of the valid values, to follow "expected".
    fn expected() -> String;
    fn parse(text: &str) -> Option<Self>;
    /// Like [`Scalar::parse`]; differs only if the flag's value refers to the caller's file system.
    fn parse_flag(text: &str) -> Option<Self> {
        Self::parse(text)
    }
    /// The message for a value that this version knows and does not support yet.
    fn later(_text: &str) -> Option<&'static str> {
        None
    }
    fn show(&self) -> String;
}

/// A value of any shape.
pub(super) trait Setting: Sized {
    /// Reads the value, or returns every mistake in it.
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>>;
    fn show(&self) -> serde_json::Value;
}

/// Why a node is not a valid value of its key.
pub(super) struct ValueMismatch {
    pub(super) at: SettingOrigin,
    /// The path below the key, for example `[2].path`.
    pub(super) below: String,
    pub(super) reason: Reason,
    pub(super) found: String,
    pub(super) expected: String,
}

impl ValueMismatch {
    pub(super) fn new(node: &ValueNode, expected: impl Into<String>) -> Self {
        Self {
            at: node.at.clone(),
            below: String::new(),
            reason: Reason::ValueInvalid,
            found: describe(&node.shape),
            expected: expected.into(),
        }
    }

    fn not_yet(mut self, why: &str) -> Self {
        self.reason = Reason::FeatureUnsupported;
        self.found = format!("{}: {why}", self.found);
        self
    }

    pub(super) fn below(mut self, part: &str) -> Self {
        self.below.insert_str(0, part);
        self
    }
}

/// Collects the mistakes of the parts of a value.
#[derive(Default)]
pub(super) struct Mismatches(Vec<ValueMismatch>);

impl Mismatches {
    /// The value of a part; none if it is wrong. `below` is the path of the part in the value.
    pub(super) fn take<T>(
        &mut self,
        below: &str,
        read: Result<T, Vec<ValueMismatch>>,
    ) -> Option<T> {
        let wrong = |wrong: Vec<ValueMismatch>| {
            let below = wrong.into_iter().map(|one| one.below(below));
            self.0.extend(below);
        };
        read.map_err(wrong).ok()
    }

    /// Adds a mistake of a part.
    pub(super) fn add(&mut self, below: &str, node: &ValueNode, expected: impl Into<String>) {
        self.0.push(ValueMismatch::new(node, expected).below(below));
    }

    /// The value made of the parts. If none of the parts is wrong and there is no value, `whole` is its mistake.
    pub(super) fn or<T>(
        self,
        value: Option<T>,
        whole: impl FnOnce() -> ValueMismatch,
    ) -> Result<T, Vec<ValueMismatch>> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ if self.0.is_empty() => Err(vec![whole()]),
            _ => Err(self.0),
        }
    }
}

impl<T: Scalar> Setting for T {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let ValueShape::Text(text) = &node.shape else {
            return Err(vec![ValueMismatch::new(node, T::expected())]);
        };
        let value = match node.at {
            SettingOrigin::Flag { .. } => T::parse_flag(text),
            _ => T::parse(text),
        };
        value.ok_or_else(|| {
            let misfit = ValueMismatch::new(node, T::expected());
            vec![match T::later(text) {
                Some(why) => misfit.not_yet(why),
                None => misfit,
            }]
        })
    }

    fn show(&self) -> serde_json::Value {
        Scalar::show(self).into()
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let whole = || ValueMismatch::new(node, "a list");
        let ValueShape::List(items) = &node.shape else {
            return Err(vec![whole()]);
        };
        let mut wrong = Mismatches::default();
        let item = |(number, item): (usize, _)| wrong.take(&format!("[{number}]"), T::read(item));
        let read = items.iter().enumerate().filter_map(item).collect();
        wrong.or(Some(read), whole)
    }

    fn show(&self) -> serde_json::Value {
        self.iter().map(Setting::show).collect()
    }
}

/// Whether a list contains a value twice.
pub(super) fn has_duplicates<T: PartialEq>(all: &[T]) -> bool {
    all.iter()
        .enumerate()
        .any(|(i, one)| all[..i].contains(one))
}

/// Reads keys from fragments; later fragments win.
pub(super) struct FragmentReader {
    /// Each leaf with whether its key has been read.
    leaves: Vec<(Leaf, bool)>,
    pub(super) effective: Vec<EffectiveSetting>,
    pub(super) problems: Vec<SettingsProblem>,
}

impl FragmentReader {
    pub(super) fn new(fragments: impl IntoIterator<Item = Fragment>) -> Self {
        let leaves = fragments.into_iter().flat_map(|fragment| fragment.leaves);
        Self {
            leaves: leaves.map(|leaf| (leaf, false)).collect(),
            effective: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// The value of `key`. Every source's value is checked, even if a later one wins.
    pub(super) fn take<T: Setting>(&mut self, key: &'static str, default: T) -> T {
        self.take_if(key, default, |_| Ok(()))
    }

    /// Like [`FragmentReader::take`]; `judge` returns the expected value if a well-formed value is not acceptable.
    pub(super) fn take_if<T: Setting>(
        &mut self,
        key: &'static str,
        default: T,
        judge: impl Fn(&T) -> Result<(), &'static str>,
    ) -> T {
        let in_env = env_name(key);
        let (mut value, mut from) = (default, SettingOrigin::Default);
        for (leaf, asked) in &mut self.leaves {
            let name = match leaf.node.at {
                SettingOrigin::Environment { .. } => in_env.as_str(),
                _ => key,
            };
            if leaf.key != name {
                continue;
            }
            *asked = true;
            if leaf.is_left_empty() {
                continue;
            }
            let read = T::read(&leaf.node).and_then(|read| match judge(&read) {
                Ok(()) => Ok(read),
                Err(expected) => Err(vec![ValueMismatch::new(&leaf.node, expected)]),
            });
            match read {
                Ok(read) => (value, from) = (read, leaf.node.at.clone()),
                Err(wrong) => {
                    let wrong = wrong.into_iter().map(|misfit| problem(key, misfit));
                    self.problems.extend(wrong);
                }
            }
        }
        self.effective.push(EffectiveSetting {
            key,
            value: value.show(),
            from,
        });
        value
    }

    /// Whether a source sets `key`, which must have been read before.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.effective
            .iter()
            .any(|one| one.key == key && one.from != SettingOrigin::Default)
    }

    /// Ends the reading: keys that were not read are unknown.
    pub(super) fn finish(mut self) -> (Vec<EffectiveSetting>, Vec<SettingsProblem>) {
        let known: Vec<_> = self.effective.iter().map(|one| one.key).collect();
        let is_section = |leaf: &Leaf| {
            let section = format!("{}.", leaf.key);
            leaf.is_left_empty() && known.iter().any(|key| key.starts_with(&section))
        };
        let strangers = self.leaves.iter();
        let strangers = strangers.filter(|(leaf, asked)| !asked && !is_section(leaf));
        let strangers = strangers.map(|(leaf, _)| unknown(leaf, &known));
        self.problems.extend(strangers);
        self.effective.sort_by_key(|one| one.key);
        (self.effective, self.problems)
    }
}

fn problem(key: &str, misfit: ValueMismatch) -> SettingsProblem {
    SettingsProblem {
        at: misfit.at,
        field: format!("{key}{}", misfit.below),
        reason: misfit.reason,
        message: format!("found {}", misfit.found),
        expected: misfit.expected,
    }
}
