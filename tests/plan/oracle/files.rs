//! Units and preset files that a config has as files.

use std::borrow::Cow;

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{Content, EntryOrigin, File, MachineConfig, Owner, Unit, UnitName};

use super::{
    super::support::{Dice, path, unit},
    UNITS,
    generate::install,
};

const LOCAL: &str = "/usr/local/lib/systemd/system";

/// Adds unit files, drop-ins and preset files, and entries for the units.
pub(super) fn add(config: &mut MachineConfig, dice: &mut Dice, upheld: bool) {
    for name in [
        "p.service",
        "p.timer",
        "p-q.mount",
        "p.socket",
        "pt@.service",
    ] {
        if !dice.one_in(3) {
            continue;
        }
        let directory = *dice.pick(&[UNITS, UNITS, LOCAL]);
        let text = install(dice, name, upheld);
        add_file(config, &format!("{directory}/{name}"), text);
        let drop_in = dice
            .one_in(4)
            .then_some("[Install]\nWantedBy=drop.target\n");
        if let Some(text) = drop_in {
            add_file(
                config,
                &format!("{UNITS}/{name}.d/20-file.conf"),
                text.to_owned(),
            );
        }
        let enabled = *dice.pick(&[None, None, Some(true), Some(true), Some(false)]);
        if dice.one_in(5) {
            continue;
        }
        let entry = Unit {
            enabled,
            unmask: dice.one_in(4),
            ..Unit::default()
        };
        unit(config, name, entry);
        if name == "pt@.service" && enabled != Some(false) && dice.one_in(2) {
            let enabled = Some(!dice.one_in(4));
            let entry = Unit {
                enabled,
                ..Unit::default()
            };
            unit(config, "pt@one.service", entry);
        }
    }
    for name in ["20-own.preset", "70-own.preset"] {
        if dice.one_in(4) {
            let text = *dice.pick(&[
                "enable b.*\ndisable p.*\n",
                "disable a*\nenable *.mount\n",
                "enable pt@.service x y\ndisable p*\n",
                "disable *\n",
            ]);
            let place = format!("/etc/systemd/system-preset/{name}");
            add_file(config, &place, text.to_owned());
        }
    }
}

fn add_file(config: &mut MachineConfig, place: &str, text: String) {
    let file = File {
        content: Some(Content::new(text.into_bytes())),
        mode: Some(0o644),
        user: Some(Owner::ROOT),
        group: Some(Owner::ROOT),
        origin: EntryOrigin::default(),
    };
    config.files.insert(path(place), file);
}

/// The files of a config with their texts.
pub(super) fn texts(config: &MachineConfig) -> impl Iterator<Item = (&AbsPath, Cow<'_, str>)> {
    let files = config.files.iter();
    files.map(|(path, file)| {
        let bytes = file.content.as_ref().and_then(Content::bytes);
        (path, String::from_utf8_lossy(bytes.unwrap_or_default()))
    })
}

/// Whether the config has the file of this unit, as a unit or as a file.
pub(super) fn has_file(config: &MachineConfig, name: &UnitName) -> bool {
    let entry = config.units.get(name);
    let places = [UNITS, LOCAL].map(|directory| path(&format!("{directory}/{name}")));
    entry.is_some_and(|unit| unit.contents.is_some())
        || places.iter().any(|place| config.files.contains_key(place))
}
