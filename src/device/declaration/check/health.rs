//! What a device must be besides there, and whom a node with it keeps away.

use super::{
    super::{
        entry::{Probe, Taint},
        written,
    },
    Check,
};
use crate::{machine_config::UnitName, reason::Reason};

/// Each is asked for each device; more are a mistake.
const MOST_PROBES: usize = 16;
/// As Kubernetes limits a taint's value and the name in its key.
const LONGEST_LABEL: usize = 63;
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl Check<'_> {
    pub(super) fn health(&mut self, given: Option<Vec<written::Probe>>) -> Vec<Probe> {
        let Some(given) = given else {
            return Vec::new();
        };
        if given.is_empty() || given.len() > MOST_PROBES {
            let message = match given.len() {
                0 => "the list is empty".to_owned(),
                count => format!("{count} probes"),
            };
            self.value("spec.health", message, "1 to 16 of exists, sysfs and unit");
        }
        let mut probes = Vec::new();
        for (at, probe) in given.into_iter().enumerate() {
            let field = format!("spec.health[{at}]");
            match probe {
                written::Probe::Exists => {}
                written::Probe::Sysfs(sysfs) => {
                    self.attribute(&format!("{field}.sysfs.file"), &sysfs.file);
                    probes.push(Probe::Sysfs {
                        file: sysfs.file,
                        equals: sysfs.equals.trim().to_owned(),
                    });
                }
                written::Probe::Unit(unit) => match UnitName::new(unit.as_str()) {
                    Ok(_) => probes.push(Probe::Unit(unit)),
                    Err(error) => {
                        let (field, message) = (format!("{field}.unit"), error.to_string());
                        let expected = "the whole name of a unit";
                        self.refuse(Reason::UnitNameInvalid, &field, message, expected);
                    }
                },
            }
        }
        probes
    }

    pub(super) fn taint(&mut self, given: Option<written::Taint>) -> Option<Taint> {
        let given = given?;
        if !is_key(&given.key) {
            let message = format!("{:?} is no key of a taint", given.key);
            self.value(
                "spec.taint.key",
                message,
                "domain/name, such as acme.dev/serial",
            );
        } else if is_reserved(&given.key) {
            let message = format!("{:?} belongs to Kubernetes or to machinist", given.key);
            self.value(
                "spec.taint.key",
                message,
                "a key of the vendor's own domain",
            );
        }
        let value = given.value.unwrap_or_default();
        if !value.is_empty() && !is_label(&value) {
            let expected = "at most 63 letters, digits, -, _ and .";
            self.value(
                "spec.taint.value",
                format!("{value:?} is no value"),
                expected,
            );
        }
        if !EFFECTS.contains(&given.effect.as_str()) {
            let message = format!("{:?} is no effect", given.effect);
            let expected = "NoSchedule, PreferNoSchedule or NoExecute";
            self.value("spec.taint.effect", message, expected);
        }
        Some(Taint {
            key: given.key,
            value,
            effect: given.effect,
        })
    }
}

/// With a domain, so that nobody else's taint is ever taken for ours.
fn is_key(key: &str) -> bool {
    let Some((domain, name)) = key.split_once('/') else {
        return false;
    };
    let plain = |part: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !part.is_empty() && part.bytes().all(inner)
    };
    domain.len() <= 253 && domain.contains('.') && domain.split('.').all(plain) && is_label(name)
}

fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["kubernetes.io", "k8s.io", "machinist.dev", "openshift.io"]
        .iter()
        .any(|reserved| domain == *reserved || domain.ends_with(&format!(".{reserved}")))
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    !text.is_empty()
        && text.len() <= LONGEST_LABEL
        && text.chars().all(inner)
        && text.starts_with(outer)
        && text.ends_with(outer)
}
