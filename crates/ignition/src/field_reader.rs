//! Reads fields of a located tree and adds errors to [`Diagnostics`].

use std::{borrow::Cow, rc::Rc};

use super::{
    EntryOrigin, Refusal,
    diagnostics::Diagnostics,
    disk_layout,
    field_path::FieldPath,
    scalar::{ScalarValue, expected_integer},
    yaml_tree::{SpelledScalar, TreeEntry, TreeNode, TreeValue},
};
use machinist_base::reason::Reason;

/// An existing value with its path.
#[derive(Clone, Debug)]
pub(super) struct FieldValue<'n> {
    node: &'n TreeNode,
    pub(super) path: FieldPath<'n>,
}

impl<'n> FieldValue<'n> {
    /// A whole document; none if it is empty.
    pub(super) fn root(node: &'n TreeNode) -> Option<Self> {
        let field = Self {
            node,
            path: FieldPath::default(),
        };
        (!field.is_null()).then_some(field)
    }

    fn is_null(&self) -> bool {
        matches!(&self.node.value, TreeValue::Scalar(SpelledScalar { text, plain, .. })
            if ScalarValue::of(text, *plain) == ScalarValue::Null)
    }

    /// Whether it is effectively empty: null, or lists and maps without content, as exports write
    /// them.
    pub(super) fn is_hollow(&self) -> bool {
        hollow(self.node)
    }

    pub(super) fn is_empty_text(&self) -> bool {
        matches!(&self.node.value, TreeValue::Scalar(SpelledScalar { text, .. }) if text.is_empty())
    }

    /// Whether it is a string of spaces only.
    pub(super) fn is_blank(&self) -> bool {
        matches!(&self.node.value, TreeValue::Scalar(SpelledScalar { text, plain, .. })
            if text.trim().is_empty() && !*plain)
    }

    pub(super) fn origin(&self, problems: &Diagnostics) -> EntryOrigin {
        problems.origin(self.node.place, Some(&self.path.to_string()))
    }

    /// A refusal of this field.
    pub(super) fn refuse(
        &self,
        problems: &mut Diagnostics,
        reason: Reason,
        message: impl Into<String>,
        expected: Option<&str>,
    ) {
        let mut refusal = Refusal::new(reason, message).at(&self.origin(problems));
        refusal.expected = expected.map(Box::from);
        problems.push(refusal);
    }

    /// A warning about this field.
    pub(super) fn warn(&self, problems: &mut Diagnostics, message: impl Into<String>) {
        let origin = self.origin(problems);
        problems.warn(&origin, message);
    }

    /// A refusal of one line (from 1) of a text, with that line's own place if the text is a
    /// literal block.
    pub(super) fn refuse_line(
        &self,
        problems: &mut Diagnostics,
        reason: Reason,
        line: usize,
        message: impl Into<String>,
    ) {
        let mut origin = self.origin(problems);
        if let TreeValue::Scalar(SpelledScalar {
            text,
            literal: true,
            ..
        }) = &self.node.value
        {
            // The place of the text is that of its first non-blank line.
            let blank = text.len() - text.trim_start_matches('\n').len();
            let offset = u32::try_from(line.saturating_sub(1 + blank)).unwrap_or(0);
            origin.line = origin.line.map(|first| first.saturating_add(offset));
        }
        problems.push(Refusal::new(reason, message).at(&origin));
    }

    fn words(&self) -> &'static str {
        match &self.node.value {
            TreeValue::Scalar(SpelledScalar { text, plain, .. }) => {
                ScalarValue::of(text, *plain).words()
            }
            TreeValue::List(_) => "a list",
            TreeValue::Map(_) => "a map",
        }
    }

    fn wrong_type<T>(&self, problems: &mut Diagnostics, expected: &str) -> Option<T> {
        // A scalar is shown only if one is expected: in place of a map or list it may be a secret.
        let scalar_belongs = !expected.starts_with("a map") && !expected.starts_with("a list");
        let message = match &self.node.value {
            TreeValue::Scalar(SpelledScalar { text, .. }) if scalar_belongs && text.len() <= 40 => {
                format!("{text:?} is {}", self.words())
            }
            _ => format!("is {}", self.words()),
        };
        self.refuse(problems, Reason::ValueInvalid, message, Some(expected));
        None
    }

    pub(super) fn scalar(&self) -> Option<ScalarValue<'n>> {
        match &self.node.value {
            TreeValue::Scalar(SpelledScalar { text, plain, .. }) => {
                Some(ScalarValue::of(text, *plain))
            }
            _ => None,
        }
    }

    /// The text of a scalar; empty for anything else.
    pub(super) fn spelling(&self) -> &'n str {
        match &self.node.value {
            TreeValue::Scalar(SpelledScalar { text, .. }) => text,
            _ => "",
        }
    }

    pub(super) fn text(&self, problems: &mut Diagnostics) -> Option<&'n str> {
        match self.scalar() {
            Some(ScalarValue::Text(text)) => Some(text),
            Some(ScalarValue::Null) => self.wrong_type(problems, "text (put it in quotes)"),
            Some(_) if problems.accepts_plain_texts() => Some(self.spelling()),
            Some(_) => self.wrong_type(problems, "text (put it in quotes)"),
            None => self.wrong_type(problems, "text"),
        }
    }

    pub(super) fn flag(&self, problems: &mut Diagnostics) -> Option<bool> {
        match self.scalar() {
            Some(ScalarValue::Flag(flag)) => Some(flag),
            _ => self.wrong_type(problems, "true or false"),
        }
    }

    /// Whether the value is true; its expected type is checked elsewhere.
    pub(super) fn is_true(&self) -> bool {
        self.scalar() == Some(ScalarValue::Flag(true))
    }

    pub(super) fn integer(&self, problems: &mut Diagnostics) -> Option<i64> {
        match self.scalar() {
            Some(ScalarValue::Integer(number)) => Some(number),
            _ => self.wrong_type(problems, expected_integer(self.spelling())),
        }
    }

    /// The items of a list; a value that is not a list is refused and has none.
    pub(super) fn items(&self, problems: &mut Diagnostics) -> Vec<Self> {
        let TreeValue::List(items) = &self.node.value else {
            self.wrong_type::<()>(problems, "a list");
            return Vec::new();
        };
        let field = |(index, node): (usize, &'n Rc<TreeNode>)| Self {
            node,
            path: self.path.item(index),
        };
        items.iter().enumerate().map(field).collect()
    }

    /// The whole value in JSON; none if it is empty.
    pub(super) fn json(&self) -> Option<serde_json::Value> {
        disk_layout::json(self.node)
    }

    pub(super) fn object(&self, problems: &mut Diagnostics) -> Option<ObjectReader<'n>> {
        let TreeValue::Map(entries) = &self.node.value else {
            return self.wrong_type(problems, "a map");
        };
        Some(ObjectReader {
            field: self.clone(),
            entries,
            known: Vec::new(),
        })
    }
}

fn hollow(node: &TreeNode) -> bool {
    match &node.value {
        TreeValue::Scalar(SpelledScalar { text, plain, .. }) => {
            text.is_empty() || ScalarValue::of(text, *plain) == ScalarValue::Null
        }
        TreeValue::List(items) => items.iter().all(|item| hollow(item)),
        TreeValue::Map(entries) => entries.iter().all(|(_, value)| hollow(value)),
    }
}

/// A map whose fields are read one by one; fields that are not read are unknown.
#[derive(Debug)]
pub(super) struct ObjectReader<'n> {
    pub(super) field: FieldValue<'n>,
    entries: &'n [TreeEntry],
    pub(super) known: Vec<Cow<'static, str>>,
}

impl<'n> ObjectReader<'n> {
    /// Whether the field of that name has a value; this does not count as reading it.
    pub(super) fn has(&self, key: &str) -> bool {
        let mut fields = self.entries();
        fields.any(|(have, field)| have == key && !field.is_null())
    }

    /// The field of that name; none if it is missing or null.
    pub(super) fn get(&mut self, key: impl Into<Cow<'static, str>>) -> Option<FieldValue<'n>> {
        let key = key.into();
        let found = self
            .entries
            .iter()
            .find(|(have, _)| have.scalar.text == key);
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let (key, node) = found?;
        let path = self.field.path.key(&key.scalar.text);
        let field = FieldValue { node, path };
        (!field.is_null()).then_some(field)
    }

    /// The field of that name; it is refused if it is missing.
    pub(super) fn need(
        &mut self,
        key: &'static str,
        problems: &mut Diagnostics,
    ) -> Option<FieldValue<'n>> {
        let found = self.get(key);
        if found.is_none() {
            let message = format!("{key} is missing");
            self.field
                .refuse(problems, Reason::ValueInvalid, message, None);
        }
        found
    }

    pub(super) fn flag(&mut self, key: &'static str, problems: &mut Diagnostics) -> Option<bool> {
        self.get(key)?.flag(problems)
    }

    pub(super) fn items(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        problems: &mut Diagnostics,
    ) -> Vec<FieldValue<'n>> {
        self.get(key)
            .map(|list| list.items(problems))
            .unwrap_or_default()
    }

    pub(super) fn object(
        &mut self,
        key: &'static str,
        problems: &mut Diagnostics,
    ) -> Option<ObjectReader<'n>> {
        self.get(key)?.object(problems)
    }

    /// All entries of a map with free keys, such as labels.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'n str, FieldValue<'n>)> {
        self.entries.iter().map(|(key, node)| {
            let path = self.field.path.key(&key.scalar.text);
            (key.scalar.text.as_str(), FieldValue { node, path })
        })
    }

    /// Accepts all fields that were not read.
    pub(super) fn ignore_rest(self) {}

    /// The place of a key of the map.
    pub(super) fn origin_of(&self, key: &str, problems: &Diagnostics) -> EntryOrigin {
        let entry = self
            .entries
            .iter()
            .find(|(have, _)| have.scalar.text == key);
        let place = entry.map_or(self.field.node.place, |(key, _)| key.place);
        let path = self.field.path.key(key).to_string();
        problems.origin(place, Some(&path))
    }
}
