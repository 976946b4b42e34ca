//! Compares the paths of a file with the table.

use std::collections::BTreeSet;

use crate::layering::{
    paths::{FullPath, paths},
    table::{IMPORT_RULES, ImportRule, OUTSIDE, Outside},
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
    let kit = file.starts_with("testkit/");
    let tests = kit || file.ends_with("tests.rs") || file.contains("/tests/");
    let module = file
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .trim_end_matches("/lib")
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
        judgement.map_err(|why| format!("{file}: {} – {why}", path.join("::")))
    })
}

fn is_under(path: &str, above: &str) -> bool {
    path == above
        || path
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with("::"))
}

/// The row that a module belongs to: the closest one above it.
fn rule_for(module: &str) -> Option<&'static ImportRule> {
    let rows = IMPORT_RULES
        .iter()
        .filter(|rule| rule.modules().any(|named| is_under(module, named)));
    rows.max_by_key(|rule| {
        let fits = rule.modules().filter(|named| is_under(module, named));
        fits.map(str::len).max()
    })
}

/// Manifests decide which crates a crate may use; a row restricts a module further.
fn inside(module: &str, target: &str) -> Result<Option<String>, String> {
    let Some(from) = rule_for(module) else {
        return Ok(None);
    };
    let to = rule_for(target);
    // Modules of one row may not import each other, but a module may import itself.
    let same_module = |named: &str| is_under(module, named) && is_under(target, named);
    if to.is_some_and(|to| from.modules == to.modules) && from.modules().any(same_module) {
        return Ok(None);
    }
    let modules = to.into_iter().flat_map(ImportRule::modules);
    let closest = modules
        .filter(|named| is_under(target, named))
        .max_by_key(|named| named.len());
    let allowed = from.may().find(|may| match closest {
        Some(named) => may == &named,
        None => is_under(target, may),
    });
    match allowed {
        Some(may) => Ok(Some(format!("{} → {may}", from.modules))),
        None => Err(format!("{} may import: {}", from.modules, from.may)),
    }
}

/// Manifests decide which outside crates a crate may use; a row restricts them to modules.
fn outside(module: &str, target: &str) -> Result<Option<String>, String> {
    let rows = OUTSIDE.iter().filter(|row| is_under(target, row.path));
    let Some(row) = rows.max_by_key(|row| row.path.len()) else {
        return Ok(None);
    };
    let Outside { path, modules, why } = row;
    if *modules == ["*"] {
        return Ok(None);
    }
    match modules.iter().find(|named| is_under(module, named)) {
        Some(named) => Ok(Some(format!("{path} in {named}"))),
        None => Err(format!("only in {modules:?}: {why}")),
    }
}

/// A file that violates a rule in each way in which code can name something.
#[test]
fn a_layering_violation_is_detected_in_every_syntax() {
    let caught = |text: &str| violations("update/phase.rs", text);
    for text in [
        "use crate::journal;",
        "use machinist_plan::Plan;",
        "use crate::{journal::{self, Journal}, phase::Phase};",
        "use super::journal::Journal;",
        "pub use crate::journal::*;",
        "fn f() { crate::journal::Journal::of(1); }",
        "mod inner { use super::super::journal; }",
        "fn f() -> Vec<machinist_plan::Plan> { todo() }",
        "#[serde(with = \"x\")] struct S(crate::journal::Journal);",
        "use std::fs;",
        "use std::{collections::BTreeMap, fs::File};",
        "fn f() { std::fs::read(\"x\"); }",
        "fn f() { let x = tokio::spawn(g()); }",
        "#[tokio::main] fn f() {}",
        "fn f() { nix::unistd::getuid(); }",
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
fn allowed_test_only_and_commented_imports_are_no_violation() {
    for text in [
        "use crate::phase::Phase; use self::x::Y;",
        "// use crate::journal;\n/* std::fs */ fn f() { g(\"std::fs::read\"); }",
        "#[cfg(test)] use std::fs;\n#[cfg(test)]\nmod tests { use crate::journal; fn f() { std::fs::read(); } }",
        "use std::collections::BTreeMap; use serde::Serialize; fn f() { BTreeMap::new(); }",
        "fn f(systemd: u8, fs: u8) { systemd.fs.read(); }",
        "use jiff::Timestamp; fn f(at: Timestamp) { Timestamp::from_second(1); }",
    ] {
        assert_eq!(
            violations("update/phase.rs", text),
            Vec::<String>::new(),
            "{text}"
        );
    }
    assert!(violations("rootfs/inspect.rs", "use std::fs; use rustix::fs::open;").is_empty());
    assert!(violations("update/phase/tests.rs", "use std::fs;").is_empty());
}

/// A submodule with a row of its own has its own layering rule.
#[test]
fn a_submodule_may_have_its_own_rule() {
    let from = |file: &str, text: &str| violations(file, text).len();
    assert_eq!(from("update/actions.rs", "use crate::phase::Phase;"), 0);
    assert_eq!(
        from("update/phase.rs", "use crate::reconciler::Desired;"),
        1
    );
    assert_eq!(from("device/glob.rs", "use super::registry::Registry;"), 1);
    assert_eq!(from("device/registry/scan.rs", "use crate::glob::Glob;"), 0);
}
