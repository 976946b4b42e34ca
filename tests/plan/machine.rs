//! The machine before any config, for the comparison with systemctl.

use std::{collections::BTreeMap, fs};

use machinist_ignition::{MachineConfig, Unit};

use super::{
    oracle::{UNITS, install},
    support::{Dice, Tree, unit},
};

/// The machine before any config: units that are linked from elsewhere, a template of the vendor,
/// and units whose names others use as an alias.
#[derive(Debug, Default)]
pub(crate) struct Base {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    units: Vec<&'static str>,
    /// Masked units, units of generators, and one without any of this.
    further: Vec<&'static str>,
}

const VENDOR: &str = "/usr/lib/systemd/system";
const PLAIN: &str = "dv.service";

const MASKED_BY_RUN: &str = "mr.socket";

/// Masked units: the name, the directory of the mask, and whether it is an empty file.
const MASKED: [(&str, &str, bool); 4] = [
    ("mv.service", UNITS, false),
    ("me.timer", UNITS, true),
    ("mm.mount", UNITS, false),
    (MASKED_BY_RUN, "/run/systemd/system", false),
];

/// Units that something made at run time, with the directory.
const MADE: [(&str, &str); 5] = [
    ("gen.service", "generator"),
    ("data.mount", "generator"),
    ("early.service", "generator.early"),
    ("late.timer", "generator.late"),
    ("run.service", "transient"),
];

impl Base {
    pub(crate) fn throw(dice: &mut Dice, upheld: bool) -> Self {
        let mut base = Self::default();
        let vendor = VENDOR;
        base.link("/srv/cur".to_owned(), "v1");
        for (unit, directory, target, file) in [
            ("k.service", UNITS, "/opt/k.service", "/opt/k.service"),
            (
                "n.path",
                UNITS,
                "../../../opt/other.path",
                "/opt/other.path",
            ),
            (
                "l@.service",
                UNITS,
                "/srv/cur/l@.service",
                "/srv/v1/l@.service",
            ),
            ("u.timer", vendor, "/srv/cur/u.timer", "/srv/v1/u.timer"),
        ] {
            if dice.one_in(3) {
                base.units.push(unit);
                base.link(format!("{directory}/{unit}"), target);
                // A link may be dangling.
                if !dice.one_in(8) {
                    let text = install(dice, unit, upheld);
                    let text = if unit == "k.service" || unit == "u.timer" {
                        text
                    } else {
                        without_aliases(&text)
                    };
                    base.files.insert(file.to_owned(), text);
                }
            }
        }
        if dice.one_in(3) {
            let place = *dice.pick(&[
                "/etc/systemd/system.attached",
                "/run/systemd/system.control",
            ]);
            base.units.push("w.service");
            base.files.insert(
                format!("{place}/w.service"),
                install(dice, "w.service", upheld),
            );
        }
        if dice.one_in(3) {
            base.units.push("v@.service");
            let text = without_aliases(&install(dice, "v@.service", upheld));
            base.files.insert(format!("{vendor}/v@.service"), text);
        }
        // Companions of units in the configs.
        base.link(format!("{vendor}/z.service"), "zz.service");
        for (name, target) in [("y@.service", "y.target"), ("zz.service", "zz.target")] {
            let text = format!("[Install]\nWantedBy={target}\n");
            base.files.insert(format!("{vendor}/{name}"), text);
        }
        base.take_names(dice);
        base
    }

    fn link(&mut self, path: String, target: &str) {
        self.links.insert(path, target.to_owned());
    }

    fn take_names(&mut self, dice: &mut Dice) {
        for name in [
            "alias-a.service",
            "other-b.timer",
            "alias-c-d.service",
            "templ-d@.service",
            "inst-f@z.timer",
            "alias-k.service",
        ] {
            let path = format!("{UNITS}/{name}");
            let kind = name.rsplit('.').next().unwrap();
            let at = if name.contains('@') { "@" } else { "" };
            match dice.below(18) {
                0 => drop(self.files.insert(path, "[Unit]\n".to_owned())),
                1 => self.link(path, &format!("/usr/lib/systemd/system/s{at}.{kind}")),
                2 => self.link(path, &format!("/opt/gone{at}.{kind}")),
                // A file elsewhere that has the name of the unit.
                4 => {
                    let (_, unit) = name.split_once('-').unwrap();
                    self.link(path, &format!("/srv/{}", unit.replace("@z", "@")));
                }
                3 => self.link(path, "/dev/null"),
                _ => {}
            }
        }
    }

    pub(crate) fn add_to(&self, tree: &Tree) {
        for (path, text) in &self.files {
            tree.write(path, text);
        }
        for (path, target) in &self.links {
            tree.link(path, target);
        }
    }

    /// Adds masked units, units that generators made, and a transient one; some of them exist elsewhere as well.
    pub(crate) fn add_masks_and_generated(&mut self, dice: &mut Dice) {
        let text =
            |name: &str| format!("[Unit]\nDescription=test\n[Install]\nWantedBy={name}.target\n");
        for (name, place, empty) in MASKED {
            if dice.one_in(3) {
                self.further.push(name);
                self.files
                    .insert(format!("{VENDOR}/{name}"), text("masked"));
                let path = format!("{place}/{name}");
                match empty {
                    true => drop(self.files.insert(path, String::new())),
                    false => self.link(path, "/dev/null"),
                }
                if dice.one_in(3) {
                    let wants = format!("{UNITS}/own.target.wants/{name}");
                    self.link(wants, &format!("{VENDOR}/{name}"));
                }
            }
        }
        for (name, directory) in MADE {
            if dice.one_in(4) {
                self.further.push(name);
                let place = format!("/run/systemd/{directory}/{name}");
                self.files.insert(place, text("made"));
                if dice.one_in(2) {
                    self.files
                        .insert(format!("{VENDOR}/{name}"), text("vendor"));
                }
            }
        }
        if dice.one_in(3) {
            self.further.push(PLAIN);
            self.files
                .insert(format!("{VENDOR}/{PLAIN}"), text("plain"));
        }
    }

    /// Entries for these units: enabled, disabled, unmasked, with drop-ins, or with a file of the config's own.
    pub(crate) fn ask_further(&self, config: &mut MachineConfig, dice: &mut Dice, presets: &str) {
        for name in &self.further {
            if dice.one_in(3) {
                continue;
            }
            let masked = MASKED.iter().any(|(masked, ..)| masked == name);
            let unmask = dice.one_in(2);
            let stays_masked = masked && (!unmask || *name == MASKED_BY_RUN);
            let enabled = match dice.pick(&[None, Some(true), Some(true), Some(false)]) {
                // `systemctl disable` leaves links of masked units; see docs/config.md.
                Some(false) if stays_masked => Some(true),
                enabled => *enabled,
            };
            // Without a rule for the unit, its drop-in has no effect on it, unlike `systemctl preset`.
            let by_presets = presets.contains("disable *\n") && !stays_masked;
            let drop_in = (enabled.is_some() || by_presets) && dice.one_in(3);
            let drop_in = drop_in.then(|| {
                let text = "[Install]\nWantedBy=more.target\n".to_owned();
                ("30-more.conf".to_owned(), text)
            });
            let own = !masked && dice.one_in(4);
            let entry = Unit {
                enabled,
                contents: own.then(|| "[Install]\nWantedBy=own.target\n".to_owned()),
                dropins: drop_in.into_iter().collect(),
                unmask,
                ..Unit::default()
            };
            unit(config, name, entry);
        }
    }

    /// Restores links that `systemctl disable` removed although no config created them: in
    /// machinist they stay when their unit is no longer enabled.
    pub(crate) fn put_back(&self, tree: &Tree, there: &BTreeMap<String, String>) {
        for (path, target) in &self.links {
            // A link of the same name that the config created is not restored.
            let was_there = there.get(path.trim_start_matches('/')) == Some(target);
            if was_there && fs::symlink_metadata(tree.at(path)).is_err() {
                tree.link(path, target);
            }
        }
    }

    /// Enables and disables some of the existing units, and instances of the templates.
    pub(crate) fn ask(&self, config: &mut MachineConfig, dice: &mut Dice) {
        for name in &self.units {
            let set_enabled = |config: &mut MachineConfig, name: &str, enabled| {
                let enabled = Some(enabled);
                let output = Unit {
                    enabled,
                    ..Unit::default()
                };
                unit(config, name, output);
            };
            let off = dice.one_in(3);
            if !dice.one_in(4) {
                set_enabled(config, name, !off);
            }
            if name.contains('@') && !off && dice.one_in(2) {
                set_enabled(config, &name.replace('@', "@one"), !dice.one_in(4));
            }
        }
    }
}

/// `systemctl disable` leaves the aliases of an instance, and of a unit whose file has another
/// name; machinist removes the ones it created.
fn without_aliases(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("Alias="));
    lines.map(|line| format!("{line}\n")).collect()
}
