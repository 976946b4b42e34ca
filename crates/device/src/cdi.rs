//! Container Device Interface (CDI) specs, in which a vendor's toolkit describes what a container
//! needs.
//!
//! Container runtimes apply these specs. Here they are read for the names of devices and their nodes,
//! and for the edits of a container whose runtime does not read specs. The rules are those of the CDI
//! specification, version 1.1.0, as implemented by the library that runtimes use: of two directories
//! the later one wins, and a device that is defined twice in one directory cannot be used, even if
//! another directory defines it too.

mod edits;
mod spec;
mod to_device_plugin;
mod yaml;

use std::{collections::BTreeMap, fmt};

pub use self::{
    spec::{CdiSpec, CdiSpecDevice, MAX_SPEC_BYTES, parse},
    to_device_plugin::{ContainerEdits, ContainerNode, HostNode},
};
use super::Refusal;
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The directories of specs, in rising priority.
pub const SPEC_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The name by which many toolkits offer all devices at once; it is no device itself.
pub const ALL_DEVICES: &str = "all";

/// A CDI kind, `vendor/class`, such as `nvidia.com/gpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CdiKind(String);

/// The error for a text that is no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid CDI kind; expected vendor/class, such as nvidia.com/gpu")]
pub struct BadKind(String);

impl CdiKind {
    /// Parses a kind.
    pub fn new(given: &str) -> Result<Self, BadKind> {
        let good = given.split_once('/').is_some_and(|(vendor, class)| {
            let part = |part: &str| {
                part.starts_with(|c: char| c.is_ascii_alphabetic())
                    && is_word(part, &['-', '_', '.'])
            };
            part(vendor) && part(class)
        });
        if good {
            Ok(Self(given.to_owned()))
        } else {
            Err(BadKind(given.to_owned()))
        }
    }

    /// The kind as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CdiKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text starts and ends with a letter or digit, and contains only these and `others`.
fn is_word(text: &str, others: &[char]) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || others.contains(&c))
}

/// A parsed spec file.
#[derive(Clone, Debug)]
pub struct CdiFile {
    /// Its path.
    pub path: AbsPath,
    /// The index of its directory in [`SPEC_DIRS`].
    pub priority: usize,
    /// Its content.
    pub spec: CdiSpec,
}

/// The devices of one kind from all specs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiDevices {
    /// The usable devices, by name.
    pub devices: BTreeMap<String, CdiSpecDevice>,
    /// One problem for each file that is involved in a conflict.
    pub conflicts: Vec<Refusal>,
    /// The devices that cannot be used because of a conflict, by name, with the reason as text.
    pub contested: BTreeMap<String, String>,
}

/// The devices of `kind` in these files.
pub fn offered(files: &[CdiFile], kind: &str) -> CdiDevices {
    let mut named: BTreeMap<&str, Vec<(&CdiFile, &CdiSpecDevice)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.spec.kind.as_str() == kind) {
        for device in &file.spec.devices {
            named.entry(&device.name).or_default().push((file, device));
        }
    }
    let mut offered = CdiDevices::default();
    for (name, mut places) in named {
        if name == ALL_DEVICES {
            continue;
        }
        let beside = |one: &CdiFile| {
            let others = places
                .iter()
                .filter(|(other, _)| other.priority == one.priority);
            others.count() > 1
        };
        let twice: Vec<bool> = places.iter().map(|(file, _)| beside(file)).collect();
        if !twice.contains(&true) {
            let highest = places.iter().max_by_key(|(file, _)| file.priority);
            let highest = highest.map(|(_, device)| (*device).clone());
            offered
                .devices
                .extend(highest.map(|device| (name.to_owned(), device)));
            continue;
        }
        let mut twice = twice.into_iter();
        places.retain(|_| twice.next() == Some(true));
        let all: Vec<&str> = places.iter().map(|(file, _)| file.path.as_str()).collect();
        let message = format!(
            "{kind}={name} is defined by {}: conflict, none is used",
            all.join(" and ")
        );
        offered.contested.insert(name.to_owned(), message.clone());
        for (file, _) in places {
            let refusal = Refusal::new(Reason::EntryDuplicate, message.clone());
            offered.conflicts.push(refusal.file(file.path.as_str()));
        }
    }
    offered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, priority: usize, names: &[&str]) -> CdiFile {
        let devices: Vec<String> = names
            .iter()
            .map(|name| {
                format!(
                    r#"{{"name": "{name}", "containerEdits": {{"deviceNodes": [{{"path": "/dev/{priority}{name}"}}]}}}}"#
                )
            })
            .collect();
        let text = format!(
            r#"{{"cdiVersion": "0.6.0", "kind": "acme.dev/gpu", "devices": [{}]}}"#,
            devices.join(",")
        );
        CdiFile {
            path: path.parse().unwrap(),
            priority,
            spec: parse(path, &text).unwrap(),
        }
    }

    #[test]
    fn the_later_directory_wins_and_duplicates_in_one_conflict() {
        let files = [
            file("/etc/cdi/a.json", 0, &["0", "1", "all"]),
            file("/etc/cdi/b.json", 0, &["1", "2"]),
            file("/var/run/cdi/c.json", 1, &["2"]),
        ];
        let offered = offered(&files, "acme.dev/gpu");
        let nodes: Vec<_> = offered
            .devices
            .values()
            .map(|device| device.nodes[0].as_str())
            .collect();
        assert_eq!(nodes, ["/dev/00", "/dev/12"]);
        let conflicting_files: Vec<_> = offered
            .conflicts
            .iter()
            .map(|one| one.file.clone())
            .collect();
        assert_eq!(
            conflicting_files,
            [
                Some("/etc/cdi/a.json".into()),
                Some("/etc/cdi/b.json".into())
            ]
        );
        assert!(offered.contested.keys().eq(["1"]), "{offered:?}");
        assert_eq!(
            super::offered(&files, "acme.dev/other"),
            CdiDevices::default()
        );
    }

    #[test]
    fn duplicates_in_one_directory_conflict_despite_a_later_definition() {
        let files = [
            file("/etc/cdi/a.json", 0, &["0"]),
            file("/etc/cdi/b.json", 0, &["0"]),
            file("/var/run/cdi/c.json", 1, &["0", "1"]),
        ];
        let offered = offered(&files, "acme.dev/gpu");
        assert!(offered.devices.keys().eq(["1"]));
        assert_eq!(offered.conflicts.len(), 2, "both files, and not the third");
    }

    #[test]
    fn cdi_kinds_are_validated() {
        for good in [
            "nvidia.com/gpu",
            "acme.dev/a_b.c-d",
            "vendor/class",
            "A.b_c/d",
            "a..b/c",
        ] {
            assert!(CdiKind::new(good).is_ok(), "{good}");
        }
        for bad in [
            "gpu", "/gpu", "a/", "a/b/c", "a/-b", "1a/b", "a/1b", "a_/b", "a/b.",
        ] {
            assert!(CdiKind::new(bad).is_err(), "{bad}");
        }
    }
}
