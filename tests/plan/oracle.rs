//! Compares the links that enable units with those that `systemctl --root` creates for the same
//! units.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal, Unit, UnitName};
use machinist_plan::{Plan, Policies};
use machinist_update::observe::CallerFacts;

use super::{
    machine::Base,
    support::{Dice, OFFLINE, Tree, from_environment, show, unit},
};

pub(crate) const UNITS: &str = "/etc/systemd/system";

/// The drop-in of a unit with companions; only the last config has one.
const DROP_IN: &str = "10-also.conf";

/// systemd's version; `None` without systemctl.
fn systemctl() -> Option<u32> {
    let output = Command::new("systemctl").arg("--version").output().ok()?;
    String::from_utf8(output.stdout)
        .ok()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Runs systemctl; returns whether it refuses a link because its name is taken.
fn run(root: &Path, verb: &str, units: &[String]) -> bool {
    let mut taken = false;
    if !units.is_empty() {
        // Only the resulting links matter, not the exit status.
        let output = Command::new("systemctl")
            .arg(format!("--root={}", root.display()))
            .arg(verb)
            .env("LC_ALL", "C")
            .args(units)
            .output()
            .unwrap();
        taken = String::from_utf8_lossy(&output.stderr).contains("already exists");
        if std::env::var_os("PLAN_VERBOSE").is_some() {
            eprintln!(
                "{verb} {units:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    taken
}

#[test]
fn units_are_enabled_disabled_masked_and_preset_as_by_systemctl() {
    let Some(version) = systemctl() else {
        eprintln!("skipped: no systemctl on this machine");
        return;
    };
    let seed = from_environment("PLAN_SEED", 1);
    let rounds = from_environment("PLAN_ROUNDS", 12);
    for round in from_environment("PLAN_FIRST", 0)..rounds {
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let (ours, theirs) = (Tree::new(), Tree::new());
        let presets = presets(&mut dice);
        for tree in [&ours, &theirs] {
            tree.write("/usr/lib/systemd/system-preset/50-test.preset", &presets);
            fs::create_dir_all(tree.at(UNITS)).unwrap();
            tree.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
            tree.write("/usr/lib/os-release", "ID=fedora\n");
        }
        let base = Base::throw(&mut dice, version >= 254);
        base.add_to(&ours);
        base.add_to(&theirs);
        let mut before = MachineConfig::default();
        for step in 0..3 {
            let mut after = units(&mut dice, version >= 254, step == 2);
            base.ask(&mut after, &mut dice);
            let plan = plan_unless_taken(&ours, &before, &after);
            let taken = by_hand(&theirs, &base, &before, &after);
            assert_eq!(
                taken,
                plan.is_none(),
                "PLAN_SEED={seed}, round {round}, step {step}: a name is taken\n{base:#?}\n{}",
                describe(&before, &after)
            );
            // systemctl creates the other links all the same; machinist creates none.
            let Some(plan) = plan else { break };
            ours.apply(&plan);
            assert_eq!(
                ours.links(UNITS),
                theirs.links(UNITS),
                "PLAN_SEED={seed}, round {round}, step {step}:\n{presets}\n{base:#?}\n{}",
                describe(&before, &after)
            );
            let again = ours.plan(&after, &after);
            assert!(
                again.is_empty(),
                "round {round}, step {step}: {:#?}\n{presets}\n{}",
                again.operations,
                describe(&before, &after)
            );
            before = after;
        }
    }
}

/// The plan; `None` if it is refused because another unit has a name already.
fn plan_unless_taken(tree: &Tree, before: &MachineConfig, after: &MachineConfig) -> Option<Plan> {
    let observed = tree.observed(before, after, CallerFacts::default());
    match machinist_plan::between(before, after, &observed, &Policies::default(), OFFLINE) {
        Ok(plan) => Some(plan),
        Err(refusals) => {
            let taken = |refusal: &Refusal| refusal.reason == Reason::DuplicateTarget;
            assert!(refusals.iter().all(taken), "{}", show(&refusals));
            None
        }
    }
}

/// The commands of an administrator: remove, write, disable, preset, enable. Returns whether a name
/// was taken.
fn by_hand(tree: &Tree, base: &Base, before: &MachineConfig, after: &MachineConfig) -> bool {
    let root = tree.dir.path();
    let there = tree.links("/");
    for (name, unit) in &before.units {
        if unit.mask {
            fs::remove_file(tree.at(&format!("{UNITS}/{name}"))).unwrap();
        } else if !after
            .units
            .get(name)
            .is_some_and(|after| left_alone(unit, after))
        {
            run(root, "disable", &[name.to_string()]);
        }
    }
    base.put_back(tree, &there);
    for (name, unit) in &before.units {
        if unit.contents.is_some() && !unit.mask {
            fs::remove_file(tree.at(&format!("{UNITS}/{name}"))).unwrap();
        }
    }
    let mut preset = Vec::new();
    for (name, unit) in &after.units {
        for (file, text) in &unit.dropins {
            tree.write(&format!("{UNITS}/{name}.d/{file}"), text);
        }
        if unit.mask {
            tree.link(&format!("{UNITS}/{name}"), "/dev/null");
        } else if let Some(text) = &unit.contents {
            tree.write(&format!("{UNITS}/{name}"), text);
            let known = before
                .units
                .get(name)
                .is_some_and(|before| left_alone(before, unit));
            if unit.enabled.is_none() && !known {
                preset.push(name.to_string());
            }
        }
    }
    let units_set_to = |wanted: bool| -> Vec<String> {
        after
            .units
            .iter()
            .filter(|(_, unit)| !unit.mask && unit.enabled == Some(wanted))
            .map(|(name, _)| name.to_string())
            .collect()
    };
    run(root, "disable", &units_set_to(false));
    let mut taken = run(root, "preset", &preset);
    for name in units_set_to(true) {
        taken |= run(root, "enable", &[name]);
    }
    // The config of an instance takes precedence over that of the template, whose links are created
    // after it. Another `disable` would affect the links of `Also=` a second time.
    let off = units_set_to(false);
    for link in tree.links(UNITS).into_keys() {
        let link = tree.dir.path().join(link);
        let name = link.file_name().unwrap().to_str().unwrap();
        if name.contains('@') && !name.contains("@.") && off.iter().any(|off| off == name) {
            fs::remove_file(&link).unwrap();
        }
    }
    taken
}

/// A unit whose enablement neither config sets keeps its links.
fn left_alone(before: &Unit, after: &Unit) -> bool {
    let silent = |unit: &Unit| unit.contents.is_some() && unit.enabled.is_none() && !unit.mask;
    silent(before) && silent(after)
}

fn describe(before: &MachineConfig, after: &MachineConfig) -> String {
    let one = |config: &MachineConfig| -> String {
        let line = |(name, unit): (&UnitName, &Unit)| {
            format!(
                "{name} enabled={:?} mask={}\n{}\n",
                unit.enabled,
                unit.mask,
                unit.contents.as_deref().unwrap_or("-")
            ) + &unit.dropins.values().cloned().collect::<String>()
        };
        config.units.iter().map(line).collect()
    };
    format!("BEFORE\n{}AFTER\n{}", one(before), one(after))
}

fn presets(dice: &mut Dice) -> String {
    let lines = [
        "enable a*.service",
        "disable b.*",
        "enable d@.service x y",
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
fn units(dice: &mut Dice, upheld: bool, also: bool) -> MachineConfig {
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
