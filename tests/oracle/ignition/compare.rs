//! Accepted configs that the library interprets differently from machinist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use machinist_ignition::{MachineConfig, Owner};
use serde_json::{Value, json};

use super::go_program::{Unit, Verdict};

/// The sections that are compared by presence: machinist keeps their entries verbatim.
const DISK_SECTIONS: [&str; 4] = ["disks", "filesystems", "luks", "raid"];

/// Both results in one form, entry by entry: lines that only one of them has are differences.
pub(super) fn differences(theirs: &Verdict, ours: &MachineConfig) -> Vec<String> {
    let (theirs, ours) = (lines_of_verdict(theirs), lines_of_config(ours));
    let names = theirs.keys().chain(ours.keys());
    let mut found: Vec<String> = names
        .filter(|name| theirs.get(*name) != ours.get(*name))
        .map(|name| {
            let shown =
                |lines: &BTreeMap<String, String>| lines.get(name).cloned().unwrap_or_default();
            format!(
                "{name}: Ignition {}, machinist {}",
                shown(&theirs),
                shown(&ours)
            )
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The fields of a user or group without those that have their default.
fn without_defaults(account: &BTreeMap<String, Value>) -> BTreeMap<&str, &Value> {
    let usual = |field: &str| Value::Bool(field == "shouldExist");
    let fields = account.iter().map(|(field, value)| (field.as_str(), value));
    fields
        .filter(|(field, value)| **value != usual(field))
        .collect()
}

fn lines_of_verdict(verdict: &Verdict) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let mut put = |kind: &str, name: &str, output: &dyn Debug| {
        lines.insert(format!("{kind} {name}"), format!("{output:?}"));
    };
    let owner = |given: &Value| match given {
        given if given == "root" => json!(0),
        given => given.clone(),
    };
    // Ignition's documentation gives defaults of mode and owner for a file that it writes. An
    // existing file keeps those that an entry omits.
    let or_root = |given: Value| if given.is_null() { json!(0) } else { given };
    for (path, file) in &verdict.files {
        let (user, group) = (owner(&file.user), owner(&file.group));
        match &file.content {
            Some(content) => {
                let owners = (or_root(user), or_root(group));
                put(
                    "file",
                    path,
                    &(Some(file.mode.unwrap_or(0o644)), owners, Some(content)),
                );
            }
            None => put("file", path, &(file.mode, (user, group), None::<&String>)),
        }
    }
    for (path, directory) in &verdict.directories {
        let owners = (owner(&directory.user), owner(&directory.group));
        put("directory", path, &(directory.mode, owners));
    }
    for (path, link) in &verdict.links {
        let owners = (or_root(owner(&link.user)), or_root(owner(&link.group)));
        let hard = link.hard.unwrap_or(false);
        put(
            "link",
            path,
            &(owners, link.target.clone().unwrap_or_default(), hard),
        );
    }
    for (name, unit) in &verdict.units {
        put("unit", name, &unit_parts(unit));
    }
    for (name, user) in &verdict.users {
        put("user", name, &keys(&user.keys));
        for (field, value) in without_defaults(&user.account) {
            // Ignition writes `*` for an empty hash.
            let locks = field == "passwordHash" && value == "";
            let value = if locks { &json!("*") } else { value };
            put("user", &format!("{name} {field}"), value);
        }
    }
    for (name, group) in &verdict.groups {
        put("group", name, &without_defaults(group));
    }
    for section in DISK_SECTIONS
        .iter()
        .filter(|name| verdict.others.iter().any(|other| other == *name))
    {
        put("section", section, &"");
    }
    lines
}

/// The lines that sshd reads; their order has no meaning.
fn keys(entries: &[String]) -> BTreeSet<&str> {
    let lines = entries.iter().flat_map(|entry| entry.lines());
    lines.filter(|line| !line.is_empty()).collect()
}

type UnitParts = (Option<String>, Option<bool>, bool, BTreeMap<String, String>);

fn unit_parts(unit: &Unit) -> UnitParts {
    let dropins = unit.dropins.iter();
    let dropins = dropins.map(|(name, text)| (name.clone(), text.clone().unwrap_or_default()));
    let contents = unit.contents.clone().filter(|text| !text.is_empty());
    (
        contents,
        unit.enabled,
        unit.mask.unwrap_or(false),
        dropins.collect(),
    )
}

fn lines_of_config(config: &MachineConfig) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let mut put = |kind: &str, name: &str, output: &dyn Debug| {
        lines.insert(format!("{kind} {name}"), format!("{output:?}"));
    };
    let owner = |owner: &Owner| serde_json::to_value(owner).unwrap();
    let given = |given: &Option<Owner>| serde_json::to_value(given).unwrap();
    for (path, file) in &config.files {
        let owners = (given(&file.user), given(&file.group));
        let content = file.content.as_ref().map(|content| content.digest().hex());
        put("file", path.as_str(), &(file.mode, owners, content));
    }
    for (path, directory) in &config.directories {
        let owners = (given(&directory.user), given(&directory.group));
        put("directory", path.as_str(), &(directory.mode, owners));
    }
    for (path, link) in &config.links {
        let owners = (owner(&link.user), owner(&link.group));
        put("link", path.as_str(), &(owners, &link.target, link.hard));
    }
    for (name, unit) in &config.units {
        let parts: UnitParts = (
            unit.contents.clone(),
            unit.enabled,
            unit.mask,
            unit.dropins.clone(),
        );
        put("unit", name.as_str(), &parts);
    }
    for (name, user) in &config.users {
        put("user", name, &keys(&user.ssh_authorized_keys));
        let account: Option<BTreeMap<String, Value>> =
            serde_json::from_value(serde_json::to_value(&user.account).unwrap()).unwrap();
        for (field, value) in without_defaults(&account.unwrap_or_default()) {
            put("user", &format!("{name} {field}"), value);
        }
    }
    for (name, group) in &config.groups {
        let group = serde_json::to_value(group).unwrap();
        let group: BTreeMap<String, Value> = serde_json::from_value(group).unwrap();
        put("group", name, &without_defaults(&group));
    }
    for section in config.disk_layout.keys() {
        put("section", section, &"");
    }
    lines
}
