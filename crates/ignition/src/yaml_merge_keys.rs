//! Resolves merge keys (`<<`): a map gets the fields of other maps that it lacks itself.
//!
//! The readers of the API server and of Butane agree unless a field stands *before* the merge key: then the API server's
//! reader takes the merged value and Butane's the field. Such a field counts as a key that is defined twice.

use std::{collections::BTreeMap, rc::Rc};

use machinist_yaml::YamlError;

use super::yaml_tree::{SpelledScalar, TreeEntry, TreeNode, TreeValue};

/// In quotes it is an ordinary key.
fn is_merge(key: &SpelledScalar) -> bool {
    key.plain && key.text == "<<"
}

/// The value with its merge keys resolved.
pub(super) fn resolve(node: &Rc<TreeNode>, faults: &mut Vec<YamlError>) -> Rc<TreeNode> {
    match has_merge_key(node) {
        true => resolved(node, faults),
        false => Rc::clone(node),
    }
}

fn resolved(node: &Rc<TreeNode>, faults: &mut Vec<YamlError>) -> Rc<TreeNode> {
    let value = match &node.value {
        TreeValue::Scalar(_) => return Rc::clone(node),
        TreeValue::List(items) => {
            TreeValue::List(items.iter().map(|item| resolved(item, faults)).collect())
        }
        TreeValue::Map(entries) => TreeValue::Map(fields(entries, faults)),
    };
    Rc::new(TreeNode {
        place: node.place,
        value,
    })
}

fn has_merge_key(node: &TreeNode) -> bool {
    match &node.value {
        TreeValue::Scalar(_) => false,
        TreeValue::List(items) => items.iter().any(|item| has_merge_key(item)),
        TreeValue::Map(entries) => entries
            .iter()
            .any(|(key, value)| is_merge(&key.scalar) || has_merge_key(value)),
    }
}

/// The fields of a map with those that it merges.
fn fields(entries: &[TreeEntry], faults: &mut Vec<YamlError>) -> Vec<TreeEntry> {
    let mut fields: Vec<TreeEntry> = Vec::new();
    // The position of each key, and whether it is merged.
    let mut known: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for (key, value) in entries {
        if !is_merge(&key.scalar) {
            let own = (key.clone(), resolved(value, faults));
            match known.insert(key.scalar.text.clone(), (fields.len(), false)) {
                Some((at, _)) => {
                    known.insert(key.scalar.text.clone(), (at, false));
                    fields[at] = own;
                }
                None => fields.push(own),
            }
            continue;
        }
        for (merged_key, merged_value) in merged(value, faults) {
            match known.get(&merged_key.scalar.text) {
                Some((at, false)) => {
                    let message = format!(
                        "the key {:?} is defined twice, here and by the merge key (<<) after it",
                        merged_key.scalar.text
                    );
                    let place = fields[*at].0.place;
                    faults.push(YamlError::key_duplicate(place, message));
                }
                Some((_, true)) => {}
                None => {
                    known.insert(merged_key.scalar.text.clone(), (fields.len(), true));
                    fields.push((merged_key, merged_value));
                }
            }
        }
    }
    fields
}

/// The fields of the map or maps at a merge key; of several maps the first counts.
fn merged(value: &TreeNode, faults: &mut Vec<YamlError>) -> Vec<TreeEntry> {
    let mut all = Vec::new();
    let maps = match &value.value {
        TreeValue::List(maps) => maps.iter().map(|map| &**map).collect(),
        _ => vec![value],
    };
    for map in maps {
        match &map.value {
            TreeValue::Map(entries) => all.extend(fields(entries, faults)),
            _ => faults.push(YamlError::syntax(
                map.place,
                "the merge key (<<) requires a map",
            )),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{
        super::{disk_layout, yaml_tree},
        resolve,
    };

    fn read(text: &str) -> Result<String, String> {
        let (roots, mut faults) = yaml_tree::read(text);
        let roots: Vec<_> = roots
            .iter()
            .map(|root| resolve(root, &mut faults))
            .collect();
        match faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(disk_layout::json(&roots[0]).unwrap().to_string()),
        }
    }

    /// The expected values are those of `sigs.k8s.io/yaml`, the API server's reader.
    #[test]
    fn merge_keys_have_the_values_of_the_api_server() {
        for (text, expected) in [
            (
                "a: &a {x: 1, z: 2}\nb: {<<: *a, x: 3}\n",
                r#"{"a":{"x":1,"z":2},"b":{"x":3,"z":2}}"#,
            ),
            (
                "a: &a {x: 1}\nb: {z: 3, <<: *a}\n",
                r#"{"a":{"x":1},"b":{"x":1,"z":3}}"#,
            ),
            (
                "b: {<<: [{x: 1}, {x: 2, z: 3}], w: 1}\n",
                r#"{"b":{"w":1,"x":1,"z":3}}"#,
            ),
            (
                "b: {<<: {<<: {x: 2, z: 3}, x: 1}}\n",
                r#"{"b":{"x":1,"z":3}}"#,
            ),
            (
                "b: {<<: {x: {p: 1}}, x: {q: 1}}\n",
                r#"{"b":{"x":{"q":1}}}"#,
            ),
            ("b: {\"<<\": {x: 1}}\n", r#"{"b":{"<<":{"x":1}}}"#),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn merge_keys_with_several_meanings_are_refused() {
        for (text, expected) in [
            ("b: {x: 3, <<: {x: 1}}\n", "the key \"x\" is defined twice"),
            (
                "b: {<<: {x: 1, <<: {x: 2}}}\n",
                "the key \"x\" is defined twice",
            ),
            (
                "b: {<<: {x: 1}, <<: {z: 2}}\n",
                "the key \"<<\" is defined twice",
            ),
            ("b: {<<: ~}\n", "the merge key (<<) requires a map"),
            ("b: {<<: [1]}\n", "the merge key (<<) requires a map"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
