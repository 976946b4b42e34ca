//! Reads the state that machine-config-daemon keeps on disk.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::HandoverError;
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::{ConfigRules, MachineConfig, MergeOrder, Refusal, TextSource};
use machinist_rootfs::{FileKind, Root, Stat};

/// The API server limits a MachineConfig to 1.5 MiB; its JSON may be escaped.
const MAX_MACHINE_CONFIG_BYTES: u64 = 32 << 20;

/// machine-config-daemon's directory. All paths in this file are that daemon's.
const MCD_DIR: &str = "/etc/machine-config-daemon";
/// Suffix of the original of a path.
const ORIGINAL_SUFFIX: &str = ".mcdorig";
/// Suffix of the note that a path had no original.
const NO_ORIGINAL_SUFFIX: &str = ".mcdnoorig";

/// The text of a MachineConfig in a file or an API object.
pub type MachineConfigText = Vec<u8>;

/// The config that machine-config-daemon records for the disk.
#[derive(Clone, Debug)]
pub struct McdConfigState {
    /// The config.
    pub config: Arc<MachineConfig>,
    /// Its digest.
    pub digest: Digest,
    /// Warnings from parsing it.
    pub warnings: Vec<String>,
}

pub(super) fn current_config() -> Result<AbsPath, HandoverError> {
    Ok(AbsPath::new(format!("{MCD_DIR}/currentconfig"))?)
}

/// Returns the path of the original that the daemon keeps for a path, as its config spells it.
pub(super) fn original_of(path: &AbsPath) -> Result<AbsPath, HandoverError> {
    Ok(AbsPath::new(format!(
        "{MCD_DIR}/orig{path}{ORIGINAL_SUFFIX}"
    ))?)
}

/// Returns the path of the note that a path had no original.
pub(super) fn stamp_of(path: &AbsPath) -> Result<AbsPath, HandoverError> {
    Ok(AbsPath::new(format!(
        "{MCD_DIR}/noorig{path}{NO_ORIGINAL_SUFFIX}"
    ))?)
}

/// Files that show that the daemon has unfinished work, with their meaning.
const UNFINISHED_WORK_FILES: [(&str, &str); 5] = [
    (
        "/etc/machine-config-daemon/node-annotations.json",
        "machine-config-daemon has not finished the first boot",
    ),
    (
        "/etc/ignition-machine-config-encapsulated.json",
        "the first boot is not finished",
    ),
    (
        "/run/machine-config-daemon-force",
        "a full rewrite by machine-config-daemon is requested; remove the file first",
    ),
    (
        "/etc/mco/machineconfig-revert.json",
        "machine-config-daemon has an OS image rollback pending for the next boot",
    ),
    (
        "/etc/machine-config-daemon/currentimage",
        "the OS image of this node is built in the cluster; machinist cannot change it",
    ),
];

/// Files that count even if they are empty: one is created by `touch`, and the other is empty if the first boot was
/// interrupted. The remaining ones are truncated when the work is done.
const EMPTY_MARKER_FILES: [&str; 2] = [
    "/etc/machine-config-daemon/node-annotations.json",
    "/run/machine-config-daemon-force",
];

/// Reads the daemon's config; returns an error if the daemon has unfinished work.
pub fn find(root: &Root, rules: &ConfigRules) -> Result<McdConfigState, HandoverError> {
    for (path, what) in UNFINISHED_WORK_FILES {
        let path = AbsPath::new(path)?;
        let counts_empty = EMPTY_MARKER_FILES.contains(&path.as_str());
        let counts = |stat: Stat| counts_empty || stat.size > 0 || stat.kind != FileKind::File;
        if root.stat(&path)?.is_some_and(counts) {
            return Err(HandoverError::Unfinished { path, what });
        }
    }
    match read(root, rules)? {
        Some(found) => Ok(found),
        None => Err(HandoverError::NotManaged(current_config()?)),
    }
}

/// Reads the daemon's config of the disk; returns `None` if the file does not exist.
pub(super) fn read(
    root: &Root,
    rules: &ConfigRules,
) -> Result<Option<McdConfigState>, HandoverError> {
    let path = current_config()?;
    match root.read(&path, MAX_MACHINE_CONFIG_BYTES) {
        Ok(text) => parse(&text, path.as_str(), rules).map(Some),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Parses a MachineConfig in JSON. `kind` and `apiVersion` may be missing, because Go clients drop them from
/// objects of a known type, and the daemon writes its config that way.
pub fn parse(
    text: &[u8],
    shown: &str,
    rules: &ConfigRules,
) -> Result<McdConfigState, HandoverError> {
    let refuse = |message: String| {
        let refusal = Refusal::new(Reason::SyntaxInvalid, message).file(shown);
        HandoverError::Refused(vec![refusal.expected("a MachineConfig in JSON")])
    };
    let mut object: Value =
        serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
    let Some(fields) = object.as_object_mut() else {
        return Err(refuse("not an object".to_owned()));
    };
    for (field, value) in [
        ("kind", "MachineConfig"),
        ("apiVersion", "machineconfiguration.openshift.io/v1"),
    ] {
        let there = fields.get(field).and_then(Value::as_str);
        if there.unwrap_or_default().is_empty() {
            fields.insert(field.to_owned(), json!(value));
        }
    }
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        return Err(refuse("metadata.name is missing".to_owned()));
    }
    let rules = ConfigRules {
        source: TextSource::ApiServer,
        ..rules.clone()
    };
    let (mut config, warnings) = machinist_ignition::parse(&object.to_string(), shown, &rules)
        .and_then(|documents| machinist_ignition::merge(documents, &name, MergeOrder::AsGiven))
        .map_err(HandoverError::Refused)?;
    config.name = name;
    let digest = machinist_ignition::digest(&config);
    Ok(McdConfigState {
        config: Arc::new(config),
        digest,
        warnings: warnings.iter().map(ToString::to_string).collect(),
    })
}

/// Lists the daemon's originals: canonical path and path of the copy.
pub(super) fn originals(root: &Root) -> Result<BTreeMap<AbsPath, AbsPath>, HandoverError> {
    let top = AbsPath::new(format!("{MCD_DIR}/orig"))?;
    let mut found = BTreeMap::new();
    let mut todo = vec![top.clone()];
    while let Some(dir) = todo.pop() {
        let entries = match root.list(&dir) {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            let at = dir.join(&entry.name)?;
            let below = at.as_str().strip_prefix(top.as_str());
            let path = below.and_then(|below| below.strip_suffix(ORIGINAL_SUFFIX));
            match (entry.kind, path) {
                (FileKind::File | FileKind::Link, Some(path)) => {
                    let path = root.canonical(&AbsPath::new(path)?)?;
                    found.insert(path, at);
                }
                (FileKind::Directory, _) => todo.push(at),
                _ => {}
            }
        }
    }
    Ok(found)
}
