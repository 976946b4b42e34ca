//! Validates the units that a declaration wants stopped.

use super::{DeclarationValidator, schema};
use machinist_base::reason::Reason;
use machinist_ignition::UnitName;

/// The maximum number of units. One kind of device is not used by more programs.
const MAX_UNITS: usize = 16;

/// The allowed unit types. Stopping a target or a slice would stop other units as well.
const UNIT_SUFFIXES: [&str; 4] = [".service", ".socket", ".timer", ".path"];

/// Without these units the machine would stop being a node, or nothing could start units again.
const PROTECTED_UNITS: [&str; 5] = ["kubelet", "crio", "containerd", "dbus", "machinist"];

impl DeclarationValidator<'_> {
    /// The units to stop, each once.
    pub(super) fn quiesce(&mut self, given: Option<schema::QuiesceDoc>) -> Vec<String> {
        let Some(given) = given else {
            return Vec::new();
        };
        let field = "spec.quiesce.stopUnits";
        if given.stop_units.is_empty() || given.stop_units.len() > MAX_UNITS {
            let message = format!("{} units", given.stop_units.len());
            self.value(field, message, "1 to 16 units");
        }
        let mut units = Vec::new();
        for (at, unit) in given.stop_units.into_iter().enumerate() {
            let field = format!("{field}[{at}]");
            let expected = "the full name of a .service, .socket, .timer or .path";
            if let Err(error) = UnitName::new(unit.as_str()) {
                self.refuse(Reason::UnitNameInvalid, &field, error.to_string(), expected);
            } else if !UNIT_SUFFIXES.iter().any(|kind| unit.ends_with(kind)) {
                self.value(
                    &field,
                    format!("{unit} cannot be stopped for a device"),
                    expected,
                );
            } else if is_kept(&unit) {
                let message = format!("{unit} is required by the node and is never stopped");
                self.value(&field, message, "a unit that uses the device");
            } else if !units.contains(&unit) {
                units.push(unit);
            }
        }
        units
    }
}

fn is_kept(unit: &str) -> bool {
    let name = unit.split_once(['.', '@']).map_or(unit, |(name, _)| name);
    let ours = name.starts_with("machinist-") || name.starts_with("systemd-");
    ours || PROTECTED_UNITS.contains(&name)
}
