//! Validates the health probes of devices.

use super::{
    super::{matcher::HealthProbe, schema},
    DeclarationValidator,
};
use machinist_base::reason::Reason;
use machinist_ignition::UnitName;

/// The maximum number of probes: each one runs for each device.
const MAX_PROBES: usize = 16;

impl DeclarationValidator<'_> {
    pub(super) fn health(&mut self, given: Option<Vec<schema::ProbeDoc>>) -> Vec<HealthProbe> {
        let Some(given) = given else {
            return Vec::new();
        };
        if given.is_empty() || given.len() > MAX_PROBES {
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
                schema::ProbeDoc::Exists => {}
                schema::ProbeDoc::Sysfs(sysfs) => {
                    self.attribute(&format!("{field}.sysfs.file"), &sysfs.file);
                    probes.push(HealthProbe::Sysfs {
                        file: sysfs.file,
                        equals: sysfs.equals.trim().to_owned(),
                    });
                }
                schema::ProbeDoc::Unit(unit) => match UnitName::new(unit.as_str()) {
                    Ok(_) => probes.push(HealthProbe::Unit(unit)),
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
