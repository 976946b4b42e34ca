//! Stores the disks, partitions, file systems, RAID and LUKS of an Ignition config. They are set up
//! when a machine is installed, so they are only compared and never interpreted.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    scalar::ScalarValue,
    yaml_tree::{SpelledScalar, TreeNode, TreeValue},
};

/// The sections of `storage`.
pub(super) const LAYOUT_SECTIONS: [&str; 4] = ["disks", "filesystems", "luks", "raid"];

/// The entries by section. Sections without entries are omitted.
pub type DiskLayout = BTreeMap<String, Vec<Value>>;

/// Overlays a later config on an earlier one by Ignition's merge rules: entries are matched by key
/// and merged field by field, plain lists are concatenated.
pub(super) fn override_with(below: &mut DiskLayout, above: DiskLayout) {
    for (section, entries) in above {
        merge_lists(below.entry(section).or_default(), entries);
    }
}

fn merge_lists(below: &mut Vec<Value>, above: Vec<Value>) {
    for entry in above {
        let known = key(&entry).and_then(|wanted| {
            let mut entries = below.iter_mut();
            entries.find(|known| key(known).as_ref() == Some(&wanted))
        });
        match known {
            Some(known) => merge(known, entry),
            None => below.push(entry),
        }
    }
}

fn merge(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (field, value) in above {
                match below.get_mut(&field) {
                    Some(known) => merge(known, value),
                    None => drop(below.insert(field, value)),
                }
            }
        }
        (Value::Array(below), Value::Array(above)) => merge_lists(below, above),
        (below, above) => *below = above,
    }
}

/// The key that identifies an entry: a name for RAID and LUKS, a device for disks and file systems,
/// a number or a label for partitions.
fn key(entry: &Value) -> Option<(&'static str, Value)> {
    let field = |name| Some((name, entry.get(name)?.clone()));
    let keys = ["name", "device", "number", "label"].into_iter();
    keys.filter_map(field).find(|(_, value)| *value != 0)
}

/// The entry as JSON, without empty fields; none if it is empty.
pub(super) fn json(node: &TreeNode) -> Option<Value> {
    without_empty(&to_json(node))
}

fn to_json(node: &TreeNode) -> Value {
    match &node.value {
        TreeValue::Scalar(SpelledScalar { text, plain, .. }) => match ScalarValue::of(text, *plain)
        {
            ScalarValue::Null => Value::Null,
            ScalarValue::Flag(flag) => flag.into(),
            ScalarValue::Integer(number) => number.into(),
            ScalarValue::Number => text
                .parse::<f64>()
                .map_or_else(|_| text.as_str().into(), Into::into),
            ScalarValue::Text(text) => text.into(),
        },
        TreeValue::List(items) => items.iter().map(|item| to_json(item)).collect(),
        TreeValue::Map(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (key.scalar.text.clone(), to_json(value)));
            Value::Object(entries.collect())
        }
    }
}

/// The value without empty fields; none if it is empty.
pub(super) fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields =
                fields.filter_map(|(key, value)| Some((key.clone(), without_empty(value)?)));
            let fields: serde_json::Map<_, _> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        scalar => Some(scalar.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disk_layout_entries_for_one_object_are_merged() {
        let layout = |value: Value| serde_json::from_value::<DiskLayout>(value).unwrap();
        let mut below = layout(json!({
            "disks": [{"device": "/dev/a", "wipeTable": true, "partitions": [{"number": 1, "sizeMiB": 5}, {"label": "x"}]}],
            "raid": [{"name": "r", "devices": ["/dev/b"], "level": "raid0"}],
        }));
        let above = layout(json!({
            "disks": [{"device": "/dev/a", "partitions": [{"number": 1, "sizeMiB": 6}, {"number": 0, "label": "x", "startMiB": 1}]}, {"device": "/dev/c"}],
            "luks": [{"name": "l", "device": "/dev/a"}],
            "raid": [{"name": "r", "devices": ["/dev/d"]}],
        }));
        override_with(&mut below, above);
        let expected = layout(json!({
            "disks": [{"device": "/dev/a", "wipeTable": true, "partitions": [{"number": 1, "sizeMiB": 6}, {"number": 0, "label": "x", "startMiB": 1}]}, {"device": "/dev/c"}],
            "luks": [{"name": "l", "device": "/dev/a"}],
            "raid": [{"name": "r", "devices": ["/dev/b", "/dev/d"], "level": "raid0"}],
        }));
        assert_eq!(below, expected);
    }
}
