//! Random units and preset files.

use std::collections::BTreeMap;

use machinist_ignition::{MachineConfig, Unit, UnitName};

use super::super::support::{Dice, unit};

/// The drop-in of a unit with companions; only the last config has one.
const DROP_IN: &str = "10-also.conf";

pub(super) fn presets(dice: &mut Dice) -> String {
    let lines = [
        "enable a*.service",
        "disable b.*",
        "enable d@.service x y",
        "enable d@.service x a/b",
        "enable ab.socket # why",
        "disable a.service # why",
        "disable [c-e]*",
        "disable *",
    ];
    let mut text = String::new();
    for line in lines {
        if !dice.one_in(3) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Units of all shapes. `Also=` is used only in the last step and refers to units whose enablement
/// is not set: where two settings contradict each other, machinist follows the config of the unit
/// itself, and systemctl the last command.
pub(super) fn units(dice: &mut Dice, upheld: bool, also: bool) -> MachineConfig {
    let mut config = MachineConfig::default();
    let mut companions: BTreeMap<&str, bool> = BTreeMap::new();
    for name in ["x.service", "x.socket", "x@.service"] {
        companions.insert(name, dice.one_in(2));
    }
    for name in [
        "a.service",
        "ab.socket",
        "b.timer",
        "c-d.service",
        "d@.service",
        "e.target",
        "f@.timer",
        "g.mount",
        "h.path",
    ] {
        if dice.one_in(4) {
            continue;
        }
        let (mask, enabled) = match dice.below(7) {
            0 => (true, None),
            1 | 2 => (false, None),
            3 => (false, Some(false)),
            _ => (false, Some(true)),
        };
        let mut contents = install(dice, name, upheld);
        let named = also && dice.one_in(3);
        let dropins = named.then(|| add_companion(dice, &companions, &mut contents));
        let contents = Some(contents);
        unit(
            &mut config,
            name,
            Unit {
                contents,
                dropins: dropins.unwrap_or_default(),
                enabled,
                mask,
                ..Unit::default()
            },
        );
    }
    for (name, there) in companions {
        if there {
            let contents = Some(format!(
                "[Install]\nWantedBy={}\n",
                dice.pick(&["m.target", "n.target"])
            ));
            unit(
                &mut config,
                name,
                Unit {
                    contents,
                    ..Unit::default()
                },
            );
        }
    }
    add_instances(&mut config, dice);
    config
}

/// Names a companion in the unit, or in a drop-in, which is returned.
fn add_companion(
    dice: &mut Dice,
    companions: &BTreeMap<&str, bool>,
    contents: &mut String,
) -> BTreeMap<String, String> {
    let mut names: Vec<&str> = companions.keys().copied().collect();
    // An instance of the template, and the vendor's instance and alias.
    names.extend(["x@i.service", "y@i.service", "z.service"]);
    let line = format!("Also={}\n", dice.pick(&names));
    if dice.one_in(2) {
        return [(DROP_IN.to_owned(), format!("[Install]\n{line}"))].into();
    }
    contents.push_str(&line);
    BTreeMap::new()
}

fn add_instances(config: &mut MachineConfig, dice: &mut Dice) {
    for instance in ["d@one.service", "f@two.timer"] {
        let template = UnitName::new(instance).unwrap().template().unwrap();
        let masked = config.units.get(&template).is_none_or(|unit| unit.mask);
        if !masked && dice.one_in(2) {
            let enabled = Some(!dice.one_in(4));
            unit(
                config,
                instance,
                Unit {
                    enabled,
                    ..Unit::default()
                },
            );
        }
    }
}

pub(crate) fn install(dice: &mut Dice, name: &str, upheld: bool) -> String {
    let (stem, kind) = name.rsplit_once('.').unwrap();
    let mut text = String::from("[Unit]\nDescription=test\n[Install]\n");
    let targets = [
        "m.target",
        "n.target",
        "%p.target",
        "t@.service",
        "o-%j.target",
        "\"q.target\"",
        "r@%i.service",
        "multi-user.target m.target",
        "%m-%o.target",
        "s%h.target %a.target",
    ];
    for (key, chance) in [
        ("WantedBy", 2),
        ("RequiredBy", 4),
        ("WantedBy", 4),
        ("UpheldBy", 4),
    ] {
        if dice.one_in(chance) && (key != "UpheldBy" || upheld) {
            text.push_str(&format!("{key}={}\n", dice.pick(&targets)));
        }
    }
    if dice.one_in(8) {
        text.push_str("WantedBy=\nWantedBy=late.target\n");
    }
    if dice.one_in(3) {
        let base = stem.trim_end_matches('@');
        let aliases = [
            format!("alias-{stem}.{kind}"),
            format!("other-{base}.{kind}"),
            format!("templ-{base}@.{kind}"),
            format!("inst-{base}@z.{kind}"),
            format!("alias-%N.{kind}"),
            format!("alias-{base}.slice"),
            format!("w-{base}.target.wants/%n"),
            format!("v-{base}@.service.requires/{name}"),
        ];
        text.push_str(&format!("Alias={}\n", dice.pick(&aliases)));
    }
    if dice.one_in(3) {
        text.push_str(&format!(
            "DefaultInstance={}\n",
            dice.pick(&["zero", "%p", "one"])
        ));
    }
    text
}
