//! Validates the health probes of devices.

use super::{
    super::{entry::Probe, written},
    Check,
};
use crate::{machine_config::UnitName, reason::Reason};

/// The maximum number of probes: each one runs for each device.
const MOST_PROBES: usize = 16;

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
                        let expected = "the full name of a unit";
                        self.refuse(Reason::UnitNameInvalid, &field, message, expected);
                    }
                },
            }
        }
        probes
    }
}
