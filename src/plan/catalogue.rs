//! Where unit names lead, in the tree as planned.

use super::{
    Observed,
    desired::Side,
    linkset::{Lookup, UNIT_DIR, UnitSource, name},
};
use crate::{
    machine_config::{MachineConfig, Unit, UnitName},
    path::AbsPath,
};

/// Where unit names lead: to the config's own units first, then to those of the machine.
pub(super) struct Catalogue<'a> {
    pub(super) config: &'a MachineConfig,
    pub(super) observed: &'a Observed,
    pub(super) side: Side<'a>,
}

impl Catalogue<'_> {
    fn unit(&self, name: &str) -> Option<&Unit> {
        self.config.units.get(&UnitName::new(name).ok()?)
    }

    /// Whether the config itself says if this unit is enabled; then no other unit's `Also=` does.
    pub(super) fn says(&self, name: &str) -> bool {
        self.unit(name).is_some_and(|unit| unit.enabled.is_some())
    }

    /// What a unit name leads to.
    pub(super) fn find(&self, name: &str) -> Lookup {
        match (self.file(name), name::template(name)) {
            (Lookup::Missing, Some(template)) if template != name => match self.file(&template) {
                Lookup::Found(mut source) => {
                    source.texts.extend(self.dropins(name));
                    Lookup::Found(source)
                }
                other => other,
            },
            (found, _) => found,
        }
    }

    fn file(&self, name: &str) -> Lookup {
        let own = format!("{UNIT_DIR}/{name}");
        let (path, text) = match self.unit(name) {
            Some(unit) if unit.mask => return Lookup::Masked,
            Some(Unit {
                contents: Some(text),
                ..
            }) => (own, text.clone()),
            _ => match self.on_disk(name, own) {
                Ok(found) => found,
                Err(lookup) => return lookup,
            },
        };
        let mut texts = vec![text];
        texts.extend(self.dropins(name));
        Lookup::Found(UnitSource { path, texts })
    }

    /// A unit file that the config does not bring: the administrator's, else the vendor's.
    fn on_disk(&self, name: &str, own: String) -> Result<(String, String), Lookup> {
        let facts = self.observed.units.get(name);
        if let Ok(path) = AbsPath::new(own) {
            // What will stand there: nothing, what was there before machinist, or what is there now.
            let place = if self.leaves(name) {
                self.observed.originals.get(&path)
            } else {
                Some(&path)
            };
            let masked = facts.and_then(|facts| facts.links.get(&path));
            if place == Some(&path) && masked.is_some_and(|target| target == "/dev/null") {
                return Err(Lookup::Masked);
            }
            if let Some(text) = place.and_then(|place| self.observed.texts.get(place)) {
                return Ok((path.to_string(), text.clone()));
            }
        }
        let vendor = facts
            .and_then(|facts| facts.vendor_file.as_ref())
            .ok_or(Lookup::Missing)?;
        let text = self.observed.texts.get(vendor).cloned().unwrap_or_default();
        Ok((vendor.to_string(), text))
    }

    /// Whether what stands in the administrator's directory came with the config before and goes.
    fn leaves(&self, name: &str) -> bool {
        let Side::After(from) = self.side else {
            return false;
        };
        UnitName::new(name)
            .ok()
            .and_then(|name| from.units.get(&name))
            .is_some_and(|unit| unit.mask || unit.contents.is_some())
    }

    fn dropins(&self, name: &str) -> Vec<String> {
        self.unit(name)
            .map(|unit| unit.dropins.values().cloned().collect())
            .unwrap_or_default()
    }
}
