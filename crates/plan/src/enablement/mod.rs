//! Computes the links that enable a unit from its `[InstallSection]` section, like `systemctl enable`.
//!
//! Rules: systemd.unit(5), "[INSTALL] SECTION OPTIONS", and the behaviour of `systemctl --root`,
//! which `tests/plan.rs` compares this module with.

mod install_section;
mod specifiers;
pub(crate) mod unit_name;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(crate) use install_section::{InstallSection, merged};
use install_section::{alias_path, below};

use self::unit_name::UnitNameShape;
use super::machine_facts::SpecifierFacts;
use machinist_base::abs_path::AbsPath;

/// The directory of the administrator's units and of the links that enable units.
pub const UNIT_DIR: &str = "/etc/systemd/system";

/// The location of a unit file and the texts with its `[InstallSection]` section.
#[derive(Clone, Debug)]
pub(crate) struct UnitSource {
    /// The path of the file, for an instance that of its template.
    pub(crate) path: String,
    /// The texts in parsing order: the unit file, then its drop-ins.
    pub(crate) texts: Vec<String>,
    /// Whether the file is outside the unit directories and is linked as a unit (`systemctl link`).
    pub(crate) linked: bool,
    /// The target of the additional link that must exist for such a file if something other than
    /// that link makes the unit known: its template, or a link of the vendor.
    pub(crate) link: Option<String>,
    /// The values of specifiers.
    pub(crate) specifiers: Arc<SpecifierFacts>,
}

/// The result of looking up a unit name.
#[derive(Clone, Debug)]
pub(crate) enum UnitLookup {
    /// The unit has a file.
    Found(UnitSource),
    /// The name is an alias of this unit.
    Alias(String),
    /// The unit is masked.
    Masked,
    /// The unit is transient or a generator created it; links cannot enable it.
    Generated,
    /// The unit does not exist on this machine.
    Missing,
}

/// Link targets by the path of the link.
pub(crate) type LinkTargets = BTreeMap<AbsPath, String>;

/// The effect of enabling some units.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LinkSet {
    /// The links that must exist.
    pub(crate) links: LinkTargets,
    /// The unit behind each alias that links beside unit files create, by alias.
    pub(crate) names: BTreeMap<String, String>,
    /// Units added by `Also=`, without the requested one.
    pub(crate) also: BTreeSet<String>,
    /// The warnings that systemctl would print, one sentence each.
    pub(crate) complaints: Vec<String>,
}

/// The links that `systemctl enable unit` creates, including those of `Also=`.
///
/// Units that `stop` matches are skipped: the config sets their enablement itself, so `Also=` has
/// no effect on them.
pub(crate) fn enable(
    unit: &str,
    find: &dyn Fn(&str) -> UnitLookup,
    stop: &dyn Fn(&str) -> bool,
) -> LinkSet {
    let mut set = LinkSet::default();
    walk(unit, find, stop, &mut |found, source, install| {
        if found != unit {
            set.also.insert(found.to_owned());
        }
        set.complaints.extend(install.complaints.iter().cloned());
        if install.is_invalid {
            return;
        }
        links_of(found, source, install, find, &mut set);
    });
    set
}

/// The unit and all units in its `Also=`, which `systemctl disable unit` disables as well.
pub(crate) fn family(
    unit: &str,
    find: &dyn Fn(&str) -> UnitLookup,
    stop: &dyn Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut names = BTreeSet::from([unit.to_owned()]);
    walk(unit, find, stop, &mut |found, _, _| {
        names.insert(found.to_owned());
    });
    names
}

/// Visits a unit and its `Also=` units transitively, each once.
fn walk(
    unit: &str,
    find: &dyn Fn(&str) -> UnitLookup,
    stop: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, &UnitSource, &InstallSection),
) {
    let mut seen = BTreeSet::from([unit.to_owned()]);
    let mut todo = vec![unit.to_owned()];
    while let Some(next) = todo.pop() {
        let source = match find(&next) {
            UnitLookup::Found(source) => source,
            UnitLookup::Alias(real) if !stop(&real) && seen.insert(real.clone()) => {
                todo.push(real);
                continue;
            }
            _ => continue,
        };
        let texts = source.texts.iter().map(String::as_str);
        let install = InstallSection::read(&next, texts, &source.specifiers);
        visit(&next, &source, &install);
        for also in &install.also {
            if !stop(also) && seen.insert(also.clone()) {
                todo.push(also.clone());
            }
        }
    }
}

fn links_of(
    unit: &str,
    source: &UnitSource,
    install: &InstallSection,
    find: &dyn Fn(&str) -> UnitLookup,
    set: &mut LinkSet,
) {
    let LinkSet {
        links,
        complaints,
        names,
        ..
    } = set;
    if let (Some(text), Some(path)) = (&source.link, below(unit)) {
        links.insert(path, text.clone());
    }
    let real = match source.linked {
        true => unit,
        false => source.path.rsplit('/').next().unwrap_or(unit),
    };
    for alias in &install.aliases {
        match alias_path(unit, alias) {
            // systemctl also leaves an existing link in place.
            Ok(Some(path)) if links.get(&path).is_some_and(|first| *first != source.path) => {
                complaints.push(format!(
                    "{unit} cannot have the alias {alias:?}: it belongs to another unit that is \
                     enabled with it"
                ));
            }
            Ok(Some(path)) => {
                if path.directory() == UNIT_DIR {
                    names.insert(path.file_name().to_owned(), real.to_owned());
                }
                links.insert(path, source.path.clone());
            }
            Ok(None) => {}
            Err(why) => complaints.push(why),
        }
    }
    let Some((enabled, shapes)) = instance_to_enable(unit, install, find, complaints) else {
        return;
    };
    for (list, suffix) in install.dependencies() {
        for target in list {
            let fits = unit_name::shape(target).is_some_and(|shape| shapes.contains(&shape));
            match below(&format!("{target}{suffix}/{enabled}")) {
                Some(path) if fits => {
                    links.insert(path, source.path.clone());
                }
                _ => complaints.push(format!(
                    "{unit} cannot be enabled for {target:?}: {}",
                    if unit_name::shape(target).is_some() {
                        "a template without a default instance has no instance to enable"
                    } else {
                        "not a valid unit name"
                    }
                )),
            }
        }
    }
}

/// The link name below `*.wants`, and the allowed shapes of the names of its wanters.
fn instance_to_enable(
    unit: &str,
    install: &InstallSection,
    find: &dyn Fn(&str) -> UnitLookup,
    complaints: &mut Vec<String>,
) -> Option<(String, &'static [UnitNameShape])> {
    const ANY_SHAPE: &[UnitNameShape] = &[
        UnitNameShape::Plain,
        UnitNameShape::Template,
        UnitNameShape::Instance,
    ];
    match (unit_name::shape(unit)?, &install.default_instance) {
        (UnitNameShape::Template, Some(instance)) => {
            let instance = unit_name::with_instance(unit, instance);
            if matches!(find(&instance), UnitLookup::Masked) {
                complaints.push(format!("{instance} is masked"));
                return None;
            }
            Some((instance, ANY_SHAPE))
        }
        (UnitNameShape::Template, None) => {
            let shapes: &[_] = &[UnitNameShape::Template, UnitNameShape::Instance];
            Some((unit.to_owned(), shapes))
        }
        _ => Some((unit.to_owned(), ANY_SHAPE)),
    }
}

/// The links among `all` that enable one of `units` and that `systemctl disable` removes: links
/// named like a unit (or an instance of it), links to a unit, and links to a link that is removed.
pub(crate) fn links_naming(units: &BTreeSet<String>, all: &LinkTargets) -> BTreeSet<AbsPath> {
    let mut gone: BTreeSet<AbsPath> = BTreeSet::new();
    loop {
        let before = gone.len();
        for (path, text) in all {
            if !gone.contains(path) && names_unit(path, text, units, all, &gone) {
                gone.insert(path.clone());
            }
        }
        if gone.len() == before {
            return gone;
        }
    }
}

fn names_unit(
    path: &AbsPath,
    text: &str,
    units: &BTreeSet<String>,
    all: &LinkTargets,
    gone: &BTreeSet<AbsPath>,
) -> bool {
    let link = path.file_name();
    if unit_name::shape(link).is_none() || text == "/dev/null" {
        // A mask is not an enablement link: `disable` does not remove it.
        return false;
    }
    let named = units.contains(link)
        || unit_name::template(link).is_some_and(|template| units.contains(&template));
    named || {
        let end = follow(path, text, all);
        units.contains(end.file_name()) || gone.contains(&end)
    }
}

/// The final target of a link, followed through other links of the same set.
pub(crate) fn follow(path: &AbsPath, text: &str, all: &LinkTargets) -> AbsPath {
    let mut at = resolve(path, text);
    // The kernel's limit on followed links (path_resolution(7)).
    for _ in 0..40 {
        match all.get(&at) {
            Some(next) => at = resolve(&at, next),
            None => break,
        }
    }
    at
}

/// systemd's booleans (systemd.syntax(7)).
pub(crate) fn yes(value: &str) -> bool {
    ["1", "yes", "y", "true", "t", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// The absolute path of a link target, inside the root, for a link at `path`.
pub fn resolve(path: &AbsPath, text: &str) -> AbsPath {
    let mut parts: Vec<&str> = Vec::new();
    let parent = path.parent().unwrap_or_else(AbsPath::root);
    if !text.starts_with('/') {
        parts.extend(parent.components());
    }
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    AbsPath::new(format!("/{}", parts.join("/"))).unwrap_or_else(|_| path.clone())
}
