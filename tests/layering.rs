//! Checks the layering rules: the crate table in ARCHITECTURE.md against the manifests, and every
//! path in the code, in `use` lines and written in full, against the rules inside crates.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the test reads the sources"
)]

mod checker;
mod circles;
mod manifests;
mod names;
mod paths;
mod table;
mod tokens;

use std::{fs, path::Path};

use checker::violations;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file with its text. The name is `CRATE/path.rs`, below the crate's sources; files
/// of the program have no crate in front.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut todo = vec![(root().join("src"), String::new())];
    for name in manifests::crates() {
        let directory = root().join("crates").join(&name).join("src");
        todo.push((directory, name.replace('-', "_")));
    }
    while let Some((dir, prefix)) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let below = match prefix.as_str() {
                "" => name.to_owned(),
                prefix => format!("{prefix}/{name}"),
            };
            if path.is_dir() {
                todo.push((path, below));
            } else if name.ends_with(".rs") {
                found.push((below, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 100, "only {} files", found.len());
    found
}

#[test]
fn no_module_imports_what_its_rule_forbids() {
    let sources = sources();
    let mut found = Vec::new();
    for (file, text) in &sources {
        found.extend(violations(file, text));
    }
    assert!(
        found.is_empty(),
        "{} layering rules are broken:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    let crates = manifests::crates()
        .into_iter()
        .map(|it| it.replace('-', "_"));
    let crates: Vec<String> = crates.collect();
    let files = sources().into_iter().map(|(file, text)| {
        let of_crate = file
            .split('/')
            .next()
            .is_some_and(|first| crates.iter().any(|it| it == first));
        match of_crate {
            true => (file, text),
            false => (format!("machinist/{file}"), text),
        }
    });
    let found = circles::circles(&files.collect::<Vec<_>>());
    assert!(
        found.is_empty(),
        "import circles; move an item:\n{}",
        found.join("\n")
    );
}

/// A name with many definitions does not tell a reader what is meant.
#[test]
fn no_name_is_defined_more_than_three_times() {
    let sources = sources();
    let production = sources.iter().filter(|(file, _)| {
        !file.starts_with("testkit/") && !file.ends_with("tests.rs") && !file.contains("/tests/")
    });
    let found = names::too_frequent(production.map(|(file, text)| (file, text)));
    assert!(
        found.is_empty(),
        "give these names their subject, or quantity and unit:\n{}",
        found.join("\n")
    );
}

/// An unused allowance would make a layering rule weaker than necessary.
#[test]
fn every_allowed_import_is_used() {
    let mut unused = table::allowances();
    for (file, text) in &sources() {
        for used in checker::uses(file, text) {
            unused.remove(&used);
        }
    }
    assert!(unused.is_empty(), "{unused:#?}");
}

#[test]
fn the_tables_in_architecture_md_match_the_checked_rules() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for table in [manifests::as_markdown(), table::as_markdown()] {
        assert!(
            page.contains(&table),
            "ARCHITECTURE.md must hold this table:\n{table}"
        );
    }
}

#[test]
fn files_are_within_the_length_limits() {
    let mut lengths: Vec<_> = sources()
        .into_iter()
        .map(|(file, text)| (text.lines().count(), file))
        .collect();
    lengths.sort();
    let longest = lengths.last().unwrap();
    assert!(longest.0 <= 500, "{longest:?}");
    let p90 = &lengths[lengths.len() * 9 / 10];
    assert!(
        p90.0 <= 300,
        "nine in ten files have at most 300 lines: {p90:?}"
    );
}
