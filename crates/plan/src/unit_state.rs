//! Provides the facts about a machine's units that the choice of actions depends on.

use super::{
    MachineFacts, UnitEntry, UnitFacts,
    enablement::{UNIT_DIR, merged, unit_name, yes},
    policy::SOFT_REBOOT,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, MachineConfig, Unit, UnitFile, UnitName};

/// Units that a running machine cannot do without: a restart would disconnect all their clients, so
/// changes of these units require a reboot.
const REBOOT_ONLY_UNITS: [&str; 6] = [
    "dbus.service",
    "dbus-broker.service",
    "dbus.socket",
    "-.mount",
    "-.slice",
    "init.scope",
];

/// The observed machine with the units of the desired config.
pub(super) struct MachineUnits<'a> {
    pub(super) observed: &'a MachineFacts,
    pub(super) from: &'a MachineConfig,
    pub(super) to: &'a MachineConfig,
    /// Whether a service manager runs; without one the active units are unknown.
    pub(super) live: bool,
}

/// How a changed unit that runs takes up its new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadMethod {
    Restart,
    Reload,
    /// The daemon-reload is sufficient, or the unit's own settings forbid a restart.
    Nothing(&'static str),
    /// Only a reboot makes it effective.
    Reboot(&'static str),
}

impl<'a> MachineUnits<'a> {
    /// The units for a plan between two configs.
    pub(super) const fn new(
        observed: &'a MachineFacts,
        [from, to]: [&'a MachineConfig; 2],
        live: bool,
    ) -> Self {
        Self {
            observed,
            from,
            to,
            live,
        }
    }

    fn facts(&self, unit: &str) -> Option<&UnitFacts> {
        self.observed.units.get(unit)
    }

    fn asked(&self, unit: &str) -> Option<&Unit> {
        self.to.units.get(&UnitName::new(unit).ok()?)
    }

    /// Whether the config masks the unit.
    pub(super) fn masked(&self, unit: &str) -> bool {
        let masked = |facts: &UnitFacts| facts.load.as_deref() == Some("masked");
        self.asked(unit).is_some_and(|unit| unit.mask)
            || (self.facts(unit).is_some_and(masked)
                && !self.creates_unit(unit)
                && !self.unmasked(unit))
    }

    /// Whether the config removes the mask and no other mask remains until the next boot.
    fn unmasked(&self, unit: &str) -> bool {
        let path = AbsPath::new(format!("/run/systemd/system/{unit}")).ok();
        let other = path.and_then(|path| self.observed.unit_files.get(&path));
        self.asked(unit).is_some_and(Unit::lifts_mask) && !other.is_some_and(UnitEntry::is_mask)
    }

    fn creates_unit(&self, unit: &str) -> bool {
        let asked = self.asked(unit);
        asked.is_some_and(|unit| unit.contents.is_some() && !unit.mask)
            || self.file_text(unit).is_some_and(|text| !text.is_empty())
    }

    /// The unit or drop-in, by its name in changes, that an entry of `storage.files` contains; none for other files,
    /// and if neither config has an entry for the unit in its list of units.
    pub(super) fn unit_at(&self, kind: EntryKind, path: &str) -> Option<(EntryKind, String)> {
        let path = AbsPath::new(path)
            .ok()
            .filter(|_| kind == EntryKind::File)?;
        let mut names = [&self.observed.unit_paths, &self.observed.unit_paths_before].into_iter();
        let path = names.find_map(|names| names.get(&path)).unwrap_or(&path);
        let below = path.as_str().strip_prefix(UNIT_DIR)?.strip_prefix('/')?;
        let (unit, drop_in) = match below.split_once(".d/") {
            Some((unit, file)) => (unit, Some(file)),
            None => (below, None),
        };
        let name = UnitName::new(unit).ok()?;
        let has_entry = |config: &MachineConfig| config.units.contains_key(&name);
        (has_entry(self.to) || has_entry(self.from)).then(|| match drop_in {
            Some(file) => (EntryKind::DropIn, format!("{unit}/{file}")),
            None => (EntryKind::Unit, unit.to_owned()),
        })
    }

    /// The text of a unit that the config contains as a file.
    fn file_text(&self, unit: &str) -> Option<&str> {
        let own = AbsPath::new(format!("{UNIT_DIR}/{unit}")).ok()?;
        let mut names = self.observed.unit_paths.iter();
        let asked = names.find(|(_, path)| **path == own);
        let file = self.to.files.get(asked.map_or(&own, |(asked, _)| asked))?;
        std::str::from_utf8(file.content.as_ref()?.bytes()?).ok()
    }

    /// Whether the unit will exist.
    pub(super) fn exists(&self, unit: &str) -> bool {
        let template = unit_name::template(unit);
        std::iter::once(unit)
            .chain(template.as_deref())
            .any(|name| {
                let known = self.facts(name).is_some_and(|facts| {
                    facts.vendor_file.is_some() || facts.load.as_deref() == Some("loaded")
                });
                known || self.creates_unit(name) || self.own_text(name).is_some()
            })
    }

    /// Whether the service manager supports soft reboots.
    pub(super) fn offers_soft_reboots(&self) -> bool {
        let facts = self.facts(SOFT_REBOOT);
        self.live && facts.is_some_and(|facts| facts.load.as_deref() == Some("loaded"))
    }

    /// Whether a unit file of this name exists in the vendor or runtime directories.
    pub(super) fn has_vendor_file(&self, unit: &str) -> bool {
        self.facts(unit)
            .is_some_and(|facts| facts.vendor_file.is_some())
    }

    /// Whether the unit is active; unknown offline.
    pub(super) fn active(&self, unit: &str) -> Option<bool> {
        if !self.live {
            return None;
        }
        let state = self.facts(unit).and_then(|facts| facts.active.as_deref());
        Some(matches!(
            state,
            Some("active" | "activating" | "reloading" | "refreshing")
        ))
    }

    /// The active instances of a template.
    pub(super) fn instances(&self, template: &str) -> Vec<String> {
        let of = |unit: &&String| {
            *unit != template && unit_name::template(unit).as_deref() == Some(template)
        };
        self.observed
            .units
            .keys()
            .filter(of)
            .filter(|unit| self.active(unit) == Some(true))
            .cloned()
            .collect()
    }

    fn own_text(&self, unit: &str) -> Option<&String> {
        let path = AbsPath::new(format!("{UNIT_DIR}/{unit}")).ok()?;
        let linked = self.observed.linked_texts.get(&path);
        linked.or_else(|| self.observed.texts.get(&path))
    }

    /// The planned unit file and drop-ins, as far as their text is known.
    pub(super) fn content(&self, unit: &str) -> UnitFile {
        let asked = self.asked(unit);
        let vendor = || {
            self.observed
                .texts
                .get(self.facts(unit)?.vendor_file.as_ref()?)
        };
        let main = asked
            .and_then(|unit| unit.contents.as_deref())
            .or_else(|| self.file_text(unit))
            .or_else(|| self.own_text(unit).map(String::as_str))
            .or_else(|| vendor().map(String::as_str));
        let main = match (main, unit_name::template(unit)) {
            (None, Some(template)) if template != unit => return self.content(&template),
            (main, _) => main,
        };
        let dropins = asked.into_iter().flat_map(|unit| unit.dropins.values());
        merged(main.into_iter().chain(dropins.map(String::as_str)))
    }

    /// Whether a reload job would be accepted; true if the unit's file is not known.
    pub(super) fn can_reload(&self, unit: &str) -> bool {
        let content = self.content(unit);
        !content.has_section("Service")
            || content.last("Service", "ExecReload").is_some()
            || matches!(content.last("Service", "Type"), Some("notify-reload"))
    }

    /// Why the unit cannot be restarted on a running machine; none if it can.
    pub(super) fn no_restart(&self, unit: &str) -> Option<&'static str> {
        if REBOOT_ONLY_UNITS.contains(&unit) {
            return Some("stopping it breaks the running system");
        }
        let content = self.content(unit);
        let refuses = |key| content.last("Unit", key).is_some_and(yes);
        if refuses("RefuseManualStop") || refuses("RefuseManualStart") {
            return Some("it has RefuseManualStop=yes or RefuseManualStart=yes");
        }
        None
    }

    /// How a running unit takes up a changed file. Hints: `X-RestartIfChanged=`,
    /// `X-ReloadIfChanged=` in `[Unit]` or `[Service]`.
    pub(super) fn reload_method(&self, unit: &str) -> ReloadMethod {
        let content = self.content(unit);
        let hint = |key| {
            content
                .last("Unit", key)
                .or_else(|| content.last("Service", key))
        };
        if hint("X-RestartIfChanged").is_some_and(|value| !yes(value)) {
            return ReloadMethod::Nothing(
                "it is not restarted, because it has X-RestartIfChanged=false",
            );
        }
        if hint("X-ReloadIfChanged").is_some_and(yes) {
            return ReloadMethod::Reload;
        }
        match unit_name::kind(unit) {
            // Restarting a target would stop and start the units that depend on it.
            "target" | "slice" | "device" => {
                ReloadMethod::Nothing("a daemon-reload applies changes of units of this type")
            }
            // A remount applies the new options without disconnecting the users of the mount.
            "mount" if !REBOOT_ONLY_UNITS.contains(&unit) => ReloadMethod::Reload,
            _ => self
                .no_restart(unit)
                .map_or(ReloadMethod::Restart, ReloadMethod::Reboot),
        }
    }

    /// Whether the unit becomes inactive after its work, so that its inactive state is no sign of
    /// being stopped.
    pub(super) fn runs_once(&self, unit: &str) -> bool {
        let content = self.content(unit);
        content.last("Service", "Type") == Some("oneshot")
    }

    /// The service that a socket activates.
    pub(super) fn service_of(&self, socket: &str) -> Option<String> {
        if unit_name::kind(socket) != "socket" {
            return None;
        }
        let named = self
            .content(socket)
            .last("Socket", "Service")
            .map(str::to_owned);
        Some(named.unwrap_or_else(|| format!("{}.service", unit_name::stem(socket))))
    }
}
