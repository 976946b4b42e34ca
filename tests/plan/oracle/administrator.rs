//! The commands of an administrator who makes by hand what a config asks for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Output},
};

use machinist_ignition::{MachineConfig, Unit, UnitName};

use super::{
    super::{machine::Base, support::Tree},
    UNITS, files,
};

/// systemd's version; `None` without systemctl.
pub(super) fn systemctl_version() -> Option<u32> {
    let output = Command::new("systemctl").arg("--version").output().ok()?;
    String::from_utf8(output.stdout)
        .ok()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn systemctl(root: &Path, verb: &str, units: &[String]) -> Output {
    Command::new("systemctl")
        .arg(format!("--root={}", root.display()))
        .arg(verb)
        .env("LC_ALL", "C")
        .args(units)
        .output()
        .unwrap()
}

/// Runs systemctl; returns whether it refuses a link because its name is taken.
fn run(root: &Path, verb: &str, units: &[String]) -> bool {
    let mut taken = false;
    if !units.is_empty() {
        // Only the resulting links matter, not the exit status.
        let output = systemctl(root, verb, units);
        let complaints = String::from_utf8_lossy(&output.stderr);
        taken = complaints.contains("already exists");
        if std::env::var_os("PLAN_VERBOSE").is_some() {
            eprintln!("{verb} {units:?}: {complaints}");
        }
    }
    taken
}

/// The answers of `systemctl is-enabled` for the units of the config and of the tree.
pub(super) fn states(tree: &Tree, config: &MachineConfig) -> BTreeMap<String, String> {
    let mut names: BTreeSet<String> = config.units.keys().map(ToString::to_string).collect();
    let paths = tree.dump().into_keys();
    let paths = paths.filter(|path| path.contains("/systemd/"));
    names.extend(paths.filter_map(|path| {
        let (_, name) = path.rsplit_once('/')?;
        UnitName::new(name).ok().map(|name| name.to_string())
    }));
    let mut rest: Vec<String> = names.into_iter().collect();
    let mut states = BTreeMap::new();
    while !rest.is_empty() {
        let output = systemctl(tree.dir.path(), "is-enabled", &rest);
        let words = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = words.lines().collect();
        // The command ends at the first unit that it does not find.
        let asked = rest.len().min(words.len() + 1);
        for (at, name) in rest.drain(..asked).enumerate() {
            let word = words.get(at).copied().unwrap_or("not-found");
            states.insert(name, word.to_owned());
        }
    }
    states
}

/// The commands of an administrator: remove, write, disable, unmask, preset, enable. Returns whether
/// a name was taken.
pub(super) fn by_hand(
    tree: &Tree,
    base: &Base,
    before: &MachineConfig,
    after: &MachineConfig,
) -> bool {
    let root = tree.dir.path();
    leave(tree, base, before, after);
    write(tree, after);
    let names = |is: &dyn Fn(&UnitName, &Unit) -> bool| -> Vec<String> {
        let units = after.units.iter().filter(|(name, unit)| is(name, unit));
        units.map(|(name, _)| name.to_string()).collect()
    };
    let said = |wanted| names(&|_, unit| !unit.mask && unit.enabled == Some(wanted));
    run(root, "unmask", &names(&|_, unit| unit.lifts_mask()));
    let off = said(false);
    run(root, "disable", &off);
    let preset = names(&|name, unit| is_preset(before, after, name, unit));
    let mut taken = run_each(root, "preset", &preset);
    taken |= run_each(root, "enable", &said(true));
    // The config of an instance takes precedence over that of the template, whose links are created
    // after it. Another `disable` would affect the links of `Also=` a second time.
    for link in tree.links(UNITS).into_keys() {
        let link = root.join(link);
        let name = link.file_name().unwrap().to_str().unwrap();
        if name.contains('@') && !name.contains("@.") && off.iter().any(|off| off == name) {
            fs::remove_file(&link).unwrap();
        }
    }
    taken
}

/// Runs systemctl for all units. It may end at the first unit that it refuses: then it runs once for those that it
/// accepts in a copy of the tree, since the result of `preset` differs from that of one command for each unit, and
/// then for each of the others.
fn run_each(root: &Path, verb: &str, units: &[String]) -> bool {
    if units.is_empty() {
        return false;
    }
    let accepted = |units: &[String]| {
        let copy = tempfile::tempdir().unwrap();
        let mut copying = Command::new("cp");
        copying
            .args(["-a", "--"])
            .arg(root.join("."))
            .arg(copy.path());
        assert!(copying.status().unwrap().success());
        systemctl(copy.path(), verb, units).status.success()
    };
    if accepted(units) {
        return run(root, verb, units);
    }
    let (together, alone): (Vec<String>, Vec<String>) = units
        .iter()
        .cloned()
        .partition(|unit| accepted(std::slice::from_ref(unit)));
    let taken = run(root, verb, &together);
    alone
        .into_iter()
        .fold(taken, |taken, unit| run(root, verb, &[unit]) | taken)
}

/// Disables and removes what the config before had.
fn leave(tree: &Tree, base: &Base, before: &MachineConfig, after: &MachineConfig) {
    let there = tree.links("/");
    let mut gone = Vec::new();
    for (name, unit) in &before.units {
        if unit.mask {
            fs::remove_file(tree.at(&format!("{UNITS}/{name}"))).unwrap();
        } else if !is_left_alone(before, after, name) {
            gone.push(name.to_string());
        }
    }
    run(tree.dir.path(), "disable", &gone);
    base.put_back(tree, &there);
    for (name, unit) in &before.units {
        if unit.contents.is_some() && !unit.mask {
            fs::remove_file(tree.at(&format!("{UNITS}/{name}"))).unwrap();
        }
        for file in unit.dropins.keys() {
            fs::remove_file(tree.at(&format!("{UNITS}/{name}.d/{file}"))).unwrap();
        }
    }
    for path in before.files.keys() {
        fs::remove_file(tree.at(path.as_str())).unwrap();
    }
}

fn write(tree: &Tree, after: &MachineConfig) {
    for (path, text) in files::texts(after) {
        tree.write(path.as_str(), &text);
    }
    for (name, unit) in &after.units {
        for (file, text) in &unit.dropins {
            tree.write(&format!("{UNITS}/{name}.d/{file}"), text);
        }
        let path = format!("{UNITS}/{name}");
        if unit.mask {
            tree.link(&path, "/dev/null");
        } else if let Some(text) = &unit.contents {
            tree.write(&path, text);
        }
    }
}

/// Whether the config leaves the enablement of a unit to the presets.
fn is_preset(before: &MachineConfig, after: &MachineConfig, name: &UnitName, unit: &Unit) -> bool {
    let silent = !unit.mask && unit.enabled.is_none();
    let given = files::has_file(after, name) || !unit.dropins.is_empty();
    silent && given && !is_left_alone(before, after, name)
}

/// A unit whose enablement neither config sets keeps its links.
fn is_left_alone(before: &MachineConfig, after: &MachineConfig, name: &UnitName) -> bool {
    let silent = |config: &MachineConfig| {
        let unit = config.units.get(name);
        let unit = unit.filter(|unit| unit.enabled.is_none() && !unit.mask)?;
        let file = files::has_file(config, name);
        (file || !unit.dropins.is_empty()).then_some(file)
    };
    silent(before).is_some() && silent(before) == silent(after)
}
