//! Compares the paths of a file with the table.

use std::collections::BTreeSet;

use crate::{
    paths::{FullPath, paths},
    table::{OUTSIDE, Outside, WALLS, Wall},
};

/// Every violation of a layering rule in `file`, one line each.
pub(crate) fn violations(file: &str, text: &str) -> Vec<String> {
    judged(file, text).filter_map(Result::err).collect()
}

/// Every allowance that `file` uses.
pub(crate) fn uses(file: &str, text: &str) -> BTreeSet<String> {
    judged(file, text)
        .filter_map(Result::ok)
        .flatten()
        .collect()
}

/// For each path of the file the allowance it needs, if it needs one, or an error.
fn judged(file: &str, text: &str) -> impl Iterator<Item = Result<Option<String>, String>> {
    let tests = file.ends_with("tests.rs") || file.contains("/tests/");
    let module = file
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .replace('/', "::");
    let unique: BTreeSet<FullPath> = match tests {
        true => BTreeSet::new(),
        false => paths(file, text).into_iter().collect(),
    };
    let file = file.to_owned();
    unique.into_iter().map(move |path| {
        let judgement = match path.first().map(String::as_str) {
            Some("crate") => inside(&module, &path[1..].join("::")),
            _ => outside(&module, &path.join("::")),
        };
        judgement.map_err(|why| format!("src/{file}: {} – {why}", path.join("::")))
    })
}

fn is_under(path: &str, above: &str) -> bool {
    path == above
        || path
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with("::"))
}

/// The row that a module belongs to: the closest one above it.
fn wall_of(module: &str) -> Option<&'static Wall> {
    let rows = WALLS
        .iter()
        .filter(|wall| wall.rooms().any(|room| is_under(module, room)));
    rows.max_by_key(|wall| {
        let fits = wall.rooms().filter(|room| is_under(module, room));
        fits.map(str::len).max()
    })
}

fn inside(module: &str, target: &str) -> Result<Option<String>, String> {
    let Some(from) = wall_of(module) else {
        return match module {
            "main" | "lib" => Ok(None),
            _ => Err("this room is not in the table of walls".to_owned()),
        };
    };
    let to = wall_of(target).ok_or("the target's room is not in the table of walls")?;
    // Modules of one row may not import each other either, but a module may import itself.
    let home = |room: &str| is_under(module, room) && is_under(target, room);
    if from.rooms == to.rooms && from.rooms().any(home) || from.may == "*" {
        return Ok(None);
    }
    let room = to
        .rooms()
        .filter(|room| is_under(target, room))
        .max_by_key(|room| room.len());
    match room.filter(|room| from.may().any(|may| may == *room)) {
        Some(room) => Ok(Some(format!("{} → {room}", from.rooms))),
        None => Err(format!("{} may import: {}", from.rooms, from.may)),
    }
}

fn outside(module: &str, target: &str) -> Result<Option<String>, String> {
    let rows = OUTSIDE.iter().filter(|row| is_under(target, row.path));
    let Some(row) = rows.max_by_key(|row| row.path.len()) else {
        return match target.split("::").next() {
            Some("std" | "core" | "alloc") => Ok(None),
            _ => Err("this crate is not in the table of walls".to_owned()),
        };
    };
    let Outside { path, rooms, why } = row;
    if *rooms == ["*"] {
        return Ok(None);
    }
    match rooms.iter().find(|room| is_under(module, room)) {
        Some(room) => Ok(Some(format!("{path} in {room}"))),
        None => Err(format!("only in {rooms:?}: {why}")),
    }
}

/// A file that violates a rule in each way in which code can name something.
#[test]
fn a_violation_is_caught_however_it_is_written() {
    let caught = |text: &str| violations("plan/host.rs", text);
    for text in [
        "use crate::systemd;",
        "use crate::{digest::Digest, systemd::Systemd};",
        "use crate::{digest::{self, Digest}, systemd::{unit::{self, Unit as U}}};",
        "use super::super::systemd::Systemd;",
        "pub use crate::systemd::*;",
        "fn f() { crate::systemd::Systemd::of(1); }",
        "mod inner { use super::super::super::systemd; }",
        "fn f() -> Vec<crate::systemd::Unit> { todo() }",
        "#[serde(with = \"x\")] struct S(crate::systemd::Unit);",
        "use std::fs;",
        "use std::{collections::BTreeMap, fs::File};",
        "fn f() { std::fs::read(\"x\"); }",
        "fn f() { let x = tokio::spawn(g()); }",
        "#[tokio::main] fn f() {}",
        "fn f() { nix::unistd::getuid(); }",
        "use somewhere::else_; use zbus::Connection;",
        "use jiff::Timestamp; fn f() { Timestamp::now(); }",
        "fn f() { T::now(); } use jiff::Timestamp as T;",
        "use std::{env as surroundings}; ",
    ] {
        assert!(!caught(text).is_empty(), "{text}");
    }
    // A module imported by name, and then its parts.
    let text = "use std::process; fn f() { process::Command::new(\"x\"); }";
    assert_eq!(caught(text).len(), 2);
}

#[test]
fn what_is_allowed_or_only_for_tests_or_only_said_is_no_violation() {
    for text in [
        "use crate::{digest::Digest, abs_path::AbsPath}; use super::model::Plan; use self::x::Y;",
        "// use crate::systemd;\n/* std::fs */ fn f() { g(\"std::fs::read\"); }",
        "#[cfg(test)] use std::fs;\n#[cfg(test)]\nmod tests { use crate::systemd; fn f() { std::fs::read(); } }",
        "use std::collections::BTreeMap; use serde::Serialize; fn f() { BTreeMap::new(); }",
        "fn f(systemd: u8, fs: u8) { systemd.fs.read(); }",
        "use jiff::Timestamp; fn f(at: Timestamp) { Timestamp::from_second(1); }",
    ] {
        assert_eq!(
            violations("plan/host.rs", text),
            Vec::<String>::new(),
            "{text}"
        );
    }
    assert!(violations("rootfs/inspect.rs", "use std::fs; use rustix::fs::open;").is_empty());
    assert!(violations("plan/tests.rs", "use std::fs;").is_empty());
}

/// A submodule with a row of its own has its own layering rule.
#[test]
fn a_room_within_a_room_has_its_own_wall() {
    let from = |file: &str, text: &str| violations(file, text).len();
    assert_eq!(
        from(
            "update/reconciler/actions.rs",
            "use crate::update::phase::Phase;"
        ),
        0
    );
    assert_eq!(
        from("update/phase.rs", "use crate::update::reconciler::Desired;"),
        1
    );
    assert_eq!(from("device/glob.rs", "use super::registry::Registry;"), 1);
    assert_eq!(from("newroom/mod.rs", "use crate::abs_path::AbsPath;"), 1);
}
