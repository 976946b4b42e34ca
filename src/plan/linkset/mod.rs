//! The links that enable a unit, computed from its `[Install]` section as `systemctl enable` does.
//!
//! Rules: systemd.unit(5), "[INSTALL] SECTION OPTIONS", and the behaviour of `systemctl --root`,
//! which `tests/plan.rs` holds this room against.

mod install;
pub(in crate::plan) mod name;

use std::collections::{BTreeMap, BTreeSet};

pub(in crate::plan) use install::{Install, merged};
use install::{alias_path, below};

use self::name::Shape;
use crate::path::AbsPath;

/// Where the administrator's units and the links that enable units live.
pub const UNIT_DIR: &str = "/etc/systemd/system";

/// Where a unit's file is and what its `[Install]` section says.
#[derive(Clone, Debug)]
pub(in crate::plan) struct UnitSource {
    /// The file, or the template's for an instance.
    pub(in crate::plan) path: String,
    /// The texts in the order in which they count: the unit file, then its drop-ins.
    pub(in crate::plan) texts: Vec<String>,
    /// Whether the file lies outside the unit directories, and a link to it makes it a unit (`systemctl link`).
    pub(in crate::plan) linked: bool,
    /// The text of the link to such a file that must be beside the others, where something else than that link
    /// makes the unit known: its template, or a link of the vendor.
    pub(in crate::plan) link: Option<String>,
}

/// What is known of a unit name.
#[derive(Clone, Debug)]
pub(in crate::plan) enum Lookup {
    /// It has a file.
    Found(UnitSource),
    /// It is another name of this unit.
    Alias(String),
    /// It is masked.
    Masked,
    /// A generator made it: links cannot enable it.
    Generated,
    /// There is no such unit on this machine.
    Missing,
}

/// Links by path, with their text.
pub(in crate::plan) type Links = BTreeMap<AbsPath, String>;

/// What enabling some units comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::plan) struct LinkSet {
    /// The links to be there.
    pub(in crate::plan) links: Links,
    /// The units that links beside unit files give other names to, by these names.
    pub(in crate::plan) names: BTreeMap<String, String>,
    /// Units that `Also=` brought in, the one asked for excluded.
    pub(in crate::plan) also: BTreeSet<String>,
    /// What systemctl would complain about, one sentence each.
    pub(in crate::plan) complaints: Vec<String>,
}

/// The links that `systemctl enable unit` makes, those of `Also=` included.
///
/// Units that `stop` names keep what was said of them: `Also=` does not reach them.
pub(in crate::plan) fn enable(
    unit: &str,
    find: &dyn Fn(&str) -> Lookup,
    stop: &dyn Fn(&str) -> bool,
) -> LinkSet {
    let mut set = LinkSet::default();
    walk(unit, find, stop, &mut |found, source, install| {
        if found != unit {
            set.also.insert(found.to_owned());
        }
        links_of(found, source, install, find, &mut set);
    });
    set
}

/// The unit and all that its `Also=` names, as `systemctl disable unit` treats them.
pub(in crate::plan) fn family(
    unit: &str,
    find: &dyn Fn(&str) -> Lookup,
    stop: &dyn Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut names = BTreeSet::from([unit.to_owned()]);
    walk(unit, find, stop, &mut |found, _, _| {
        names.insert(found.to_owned());
    });
    names
}

/// Visits a unit and, through `Also=`, its companions, each once.
fn walk(
    unit: &str,
    find: &dyn Fn(&str) -> Lookup,
    stop: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, &UnitSource, &Install),
) {
    let mut seen = BTreeSet::from([unit.to_owned()]);
    let mut todo = vec![unit.to_owned()];
    while let Some(next) = todo.pop() {
        let source = match find(&next) {
            Lookup::Found(source) => source,
            Lookup::Alias(real) if !stop(&real) && seen.insert(real.clone()) => {
                todo.push(real);
                continue;
            }
            _ => continue,
        };
        let install = Install::read(&next, source.texts.iter().map(String::as_str));
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
    install: &Install,
    find: &dyn Fn(&str) -> Lookup,
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
            // As systemctl, which leaves a link that is there.
            Ok(Some(path)) if links.get(&path).is_some_and(|first| *first != source.path) => {
                complaints.push(format!(
                    "{unit} cannot have the alias {alias:?}, which another unit that is enabled with it has"
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
            let fits = name::shape(target).is_some_and(|shape| shapes.contains(&shape));
            match below(&format!("{target}{suffix}/{enabled}")) {
                Some(path) if fits => {
                    links.insert(path, source.path.clone());
                }
                _ => complaints.push(format!(
                    "{unit} cannot be enabled for {target:?}: {}",
                    if name::shape(target).is_some() {
                        "a template without a default instance has no instance to enable"
                    } else {
                        "that is no unit name"
                    }
                )),
            }
        }
    }
}

/// The name that goes below `*.wants`, and which shapes its wanters may have.
fn instance_to_enable(
    unit: &str,
    install: &Install,
    find: &dyn Fn(&str) -> Lookup,
    complaints: &mut Vec<String>,
) -> Option<(String, &'static [Shape])> {
    const ANY: &[Shape] = &[Shape::Plain, Shape::Template, Shape::Instance];
    match (name::shape(unit)?, &install.default_instance) {
        (Shape::Template, Some(instance)) => {
            let instance = name::with_instance(unit, instance);
            if matches!(find(&instance), Lookup::Masked) {
                complaints.push(format!("{instance} is masked"));
                return None;
            }
            Some((instance, ANY))
        }
        (Shape::Template, None) => Some((unit.to_owned(), &[Shape::Template])),
        _ => Some((unit.to_owned(), ANY)),
    }
}

/// The links among `all` that stand for one of `units`, as `systemctl disable` removes them: named
/// like one (or like an instance of one), leading to one, or leading to a link that goes.
pub(in crate::plan) fn standing_for(units: &BTreeSet<String>, all: &Links) -> BTreeSet<AbsPath> {
    let mut gone: BTreeSet<AbsPath> = BTreeSet::new();
    loop {
        let before = gone.len();
        for (path, text) in all {
            if !gone.contains(path) && stands_for(path, text, units, all, &gone) {
                gone.insert(path.clone());
            }
        }
        if gone.len() == before {
            return gone;
        }
    }
}

fn stands_for(
    path: &AbsPath,
    text: &str,
    units: &BTreeSet<String>,
    all: &Links,
    gone: &BTreeSet<AbsPath>,
) -> bool {
    let link = path.file_name();
    if name::shape(link).is_none() || text == "/dev/null" {
        // A mask is no enablement: `disable` leaves it alone.
        return false;
    }
    let named = units.contains(link)
        || name::template(link).is_some_and(|template| units.contains(&template));
    named || {
        let end = follow(path, text, all);
        units.contains(end.file_name()) || gone.contains(&end)
    }
}

/// Where a link ends, as far as other links of the same set lead on.
pub(in crate::plan) fn follow(path: &AbsPath, text: &str, all: &Links) -> AbsPath {
    let mut at = resolve(path, text);
    // As many links as the kernel follows (path_resolution(7)).
    for _ in 0..40 {
        match all.get(&at) {
            Some(next) => at = resolve(&at, next),
            None => break,
        }
    }
    at
}

/// systemd's booleans (systemd.syntax(7)).
pub(in crate::plan) fn yes(value: &str) -> bool {
    ["1", "yes", "y", "true", "t", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// The path that the text of a link at `path` names, inside the root.
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
