//! From what was written to what may be relied on: every rule that the shape alone cannot say.

mod container;
mod quiesce;

use super::{
    Allowances, Declaration, KIND, Numa,
    written::{self, File},
};
use crate::{
    device::{
        Refusal, document::Refusals, glob::Glob, inventory::Share, name::ResourceName,
        rules::HIGHEST_NUMA,
    },
    reason::Reason,
};

/// One declaration is one kind of device; a list longer than this is generated, and can as well
/// be a pattern.
const MOST_MATCHES: usize = 64;
/// Shares are for light devices such as /dev/fuse: a thousand are "as many as pods fit".
const MOST_SHARES: u32 = 1024;

/// Collects refusals, so that a file's author sees all of them at once.
struct Check<'a> {
    allowances: &'a Allowances,
    refusals: Refusals,
}

pub(super) fn check(file: File, allowances: &Allowances) -> Result<Declaration, Vec<Refusal>> {
    let mut check = Check {
        allowances,
        refusals: Refusals::default(),
    };
    let name = check.head(&file);
    let spec = file.spec;
    check.later(&spec);
    let resource = check.resource(&spec.resource);
    let paths = check.matches(spec.matches);
    let share = check.share(spec.share);
    let recipe = check.container(spec.container, resource.as_ref());
    let numa = check.numa(spec.numa);
    check.health(spec.health);
    let stop_units = check.quiesce(spec.quiesce);
    match resource {
        Some(resource) if check.refusals.0.is_empty() => Ok(Declaration {
            name,
            resource,
            paths,
            share,
            recipe,
            numa,
            stop_units,
        }),
        _ => Err(check.refusals.0),
    }
}

impl Check<'_> {
    fn refuse(&mut self, reason: Reason, field: &str, message: impl Into<String>, expected: &str) {
        self.refusals.refuse(reason, field, message, expected);
    }

    fn value(&mut self, field: &str, message: impl Into<String>, expected: &str) {
        self.refuse(Reason::ValueInvalid, field, message, expected);
    }

    fn head(&mut self, file: &File) -> String {
        self.refusals.head((&file.api_version, &file.kind), KIND);
        let name = &file.metadata.name;
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(plain) {
            let expected = "1 to 253 lower-case letters, digits, - and .";
            self.value("metadata.name", format!("{name:?} is no name"), expected);
        }
        name.clone()
    }

    /// Parts of the schema that this version reads and cannot do.
    fn later(&mut self, spec: &written::Spec) {
        let mut fields: Vec<String> = Vec::new();
        for (at, one) in spec.matches.iter().enumerate() {
            for (name, given) in [
                ("usb", one.usb.is_some()),
                ("pci", one.pci.is_some()),
                ("subsystem", one.subsystem.is_some()),
                ("cdi", one.cdi.is_some()),
            ] {
                fields.extend(given.then(|| format!("spec.match[{at}].{name}")));
            }
        }
        for (at, probe) in spec.health.iter().flatten().enumerate() {
            let name = match probe {
                written::Probe::Exists => continue,
                written::Probe::Sysfs(_) => "sysfs",
                written::Probe::Unit(_) => "unit",
            };
            fields.push(format!("spec.health[{at}].{name}"));
        }
        for (name, given) in [
            ("group", spec.group.is_some()),
            ("taint", spec.taint.is_some()),
        ] {
            fields.extend(given.then(|| format!("spec.{name}")));
        }
        for field in fields {
            let message = "not supported yet by this version".to_owned();
            self.refuse(Reason::FeatureUnsupported, &field, message, "");
        }
    }

    fn resource(&mut self, given: &str) -> Option<ResourceName> {
        ResourceName::new(given)
            .map_err(|error| {
                self.value("spec.resource", error.to_string(), "vendor domain/name");
            })
            .ok()
    }

    fn matches(&mut self, given: Vec<written::Match>) -> Vec<Glob> {
        if given.is_empty() || given.len() > MOST_MATCHES {
            let message = format!("{} entries", given.len());
            self.value("spec.match", message, "1 to 64 entries");
        }
        let mut globs = Vec::new();
        for (at, one) in given.into_iter().enumerate() {
            let field = format!("spec.match[{at}]");
            let other = one.usb.is_some() || one.pci.is_some();
            match one.path {
                Some(path) => globs.extend(self.glob(&format!("{field}.path"), &path)),
                None if other || one.subsystem.is_some() || one.cdi.is_some() => {}
                None => self.value(&field, "the entry is empty", "path: /dev/…"),
            }
        }
        globs
    }

    fn glob(&mut self, field: &str, given: &str) -> Option<Glob> {
        let expected = "an absolute path below /dev, with *, ? or [a-z] within components";
        match Glob::new(given) {
            Ok(glob) if glob.as_str().starts_with("/dev/") => Some(glob),
            Ok(_) => {
                let message = format!("{given:?} is not below /dev");
                self.refuse(Reason::PathInvalid, field, message, expected);
                None
            }
            Err(error) => {
                self.refuse(Reason::PathInvalid, field, error.to_string(), expected);
                None
            }
        }
    }

    fn share(&mut self, given: Option<written::Share>) -> Share {
        let Some(given) = given else {
            return Share::ALONE;
        };
        if !(1..=MOST_SHARES).contains(&given.replicas) {
            let message = format!("{} shares", given.replicas);
            self.value("spec.share.replicas", message, "1 to 1024");
        }
        Share {
            replicas: given.replicas,
            policy: given.policy,
            strict: given.strict,
        }
    }

    fn numa(&mut self, given: Option<written::Numa>) -> Numa {
        let expected = "auto, none or a list of NUMA nodes such as [0]";
        match given {
            None => Numa::Auto,
            Some(written::Numa::Word(word)) => match word.as_str() {
                "auto" => Numa::Auto,
                "none" => Numa::None,
                _ => {
                    self.value("spec.numa", format!("{word:?} is not known"), expected);
                    Numa::None
                }
            },
            Some(written::Numa::Nodes(mut nodes)) => {
                if nodes.is_empty() || nodes.iter().any(|node| *node > HIGHEST_NUMA) {
                    self.value(
                        "spec.numa",
                        format!("{nodes:?} are no NUMA nodes"),
                        expected,
                    );
                }
                nodes.sort_unstable();
                nodes.dedup();
                Numa::Fixed(nodes)
            }
        }
    }

    fn health(&mut self, given: Option<Vec<written::Probe>>) {
        if given.is_some_and(|probes| probes.is_empty()) {
            self.value("spec.health", "the list is empty", "exists");
        }
    }
}
