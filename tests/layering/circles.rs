//! Finds circles among the files of a crate: files that import each other.
//!
//! A path leads to the file that defines what it names, through re-exports. Imports of a parent
//! module do not count: a child module may use what its parent defines. Test code is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::layering::{
    paths::{FileImports, imports},
    tokens::{
        Token::{self, Mark, Name},
        tokens,
    },
};

/// A file as its module path; the first part is the crate.
type ModulePath = Vec<String>;

/// The files that a file imports, each with one of the paths that lead there.
type Edges = BTreeMap<ModulePath, BTreeMap<ModulePath, String>>;

/// A description of each circle among `files`, which are `CRATE/path.rs` with their texts.
pub(crate) fn circles(files: &[(String, String)]) -> Vec<String> {
    let edges = edges(files);
    let mut known: BTreeSet<BTreeSet<&ModulePath>> = BTreeSet::new();
    let mut found = Vec::new();
    for start in edges.keys() {
        let Some(circle) = shortest_circle(start, &edges) else {
            continue;
        };
        if known.insert(circle.iter().copied().collect()) {
            found.push(description(&circle, &edges));
        }
    }
    found
}

/// The module path of a file: `agent::admin::client` for `agent/admin/client.rs`.
fn module(file: &str) -> ModulePath {
    let stem = file
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .trim_end_matches("/lib");
    stem.split('/').map(str::to_owned).collect()
}

fn edges(files: &[(String, String)]) -> Edges {
    let tests: BTreeSet<ModulePath> = files
        .iter()
        .flat_map(|(file, text)| test_modules(&module(file), text))
        .collect();
    let is_test = |of: &ModulePath| {
        let named = of.iter().any(|part| part == "tests" || part == "testing");
        named || (1..=of.len()).any(|length| tests.contains(&of[..length]))
    };
    let all: BTreeMap<ModulePath, FileImports> = files
        .iter()
        .map(|(file, text)| (module(file), imports(file, text)))
        .filter(|(of, _)| !is_test(of))
        .collect();
    let mut edges = Edges::new();
    for (from, imported) in &all {
        let to = edges.entry(from.clone()).or_default();
        for path in &imported.paths {
            if path.first().map(String::as_str) != Some("crate") || path.get(1) != from.first() {
                continue;
            }
            let defining = defining_file(&path[1..], &all);
            if let Some(defining) = defining.filter(|file| !from.starts_with(file)) {
                to.entry(defining).or_insert_with(|| path[2..].join("::"));
            }
        }
    }
    edges
}

/// The modules that a file declares for tests alone.
fn test_modules(of: &ModulePath, text: &str) -> Vec<ModulePath> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let [Mark("#"), Mark("["), Name(cfg), Mark("("), rest @ ..] = &tokens[at..] else {
            continue;
        };
        let any = matches!(rest, [Name(any), Mark("("), Name(test), ..] if any == "any" && test == "test");
        let test = matches!(rest, [Name(test), Mark(")"), ..] if test == "test");
        let item = rest.iter().position(|token| *token == Mark("]"));
        let Some(item) = item.filter(|_| cfg == "cfg" && (any || test)) else {
            continue;
        };
        let head = rest[item + 1..].iter().take_while(|it| **it != Mark(";"));
        let head: Vec<&Token> = head.take(7).collect();
        if let [.., Name(keyword), Name(name)] = head.as_slice()
            && keyword == "mod"
        {
            found.push([of.as_slice(), std::slice::from_ref(name)].concat());
        }
    }
    found
}

/// The file that defines what `path` names, through imports and re-exports of the files on the way.
fn defining_file(path: &[String], all: &BTreeMap<ModulePath, FileImports>) -> Option<ModulePath> {
    let mut path = path.to_vec();
    // Two files may re-export each other's names; no path leads through so many files.
    for _ in 0..10 {
        let length = (1..=path.len())
            .rev()
            .find(|length| all.contains_key(&path[..*length]))?;
        let (file, rest) = path.split_at(length);
        let imported = rest.first().and_then(|name| all[file].names.get(name));
        match imported {
            Some(full) if full.first().is_some_and(|first| first == "crate") => {
                path = [&full[1..], &rest[1..]].concat();
            }
            _ => return Some(file.to_vec()),
        }
    }
    None
}

/// The shortest circle through `start`, which is its first and its last file.
fn shortest_circle<'e>(start: &'e ModulePath, edges: &'e Edges) -> Option<Vec<&'e ModulePath>> {
    let mut came_from: BTreeMap<&ModulePath, &ModulePath> = BTreeMap::new();
    let mut todo = VecDeque::from([start]);
    while let Some(at) = todo.pop_front() {
        for next in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut circle = vec![start, at];
                while circle.last() != Some(&start) {
                    let last = circle.last().copied()?;
                    circle.push(came_from.get(last)?);
                }
                circle.reverse();
                return Some(circle);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, at);
                todo.push_back(next);
            }
        }
    }
    None
}

/// `pool: summary imports conditions (conditions), conditions imports summary (MachineCounts)`.
fn description(circle: &[&ModulePath], edges: &Edges) -> String {
    let name = |of: &ModulePath| of[1..].join("::");
    let steps = circle.windows(2).map(|two| {
        let path = &edges[two[0]][two[1]];
        format!("{} imports {} ({path})", name(two[0]), name(two[1]))
    });
    format!("{}: {}", circle[0][0], steps.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
        .collect();
    circles(&files)
}

#[test]
fn a_circle_is_found_through_a_re_export_and_names_its_files() {
    let files = [
        ("plan/lib.rs", "mod a; mod b; pub use b::Shape;"),
        ("plan/a.rs", "use super::Shape; pub fn area(of: Shape) {}"),
        ("plan/b/mod.rs", "mod c; pub use c::Shape;"),
        (
            "plan/b/c.rs",
            "pub struct Shape; fn f() { crate::a::area(Shape) }",
        ),
    ];
    assert_eq!(
        found(&files),
        ["plan: a imports b::c (Shape), b::c imports a (a::area)"]
    );
    // A parent that passes a child's names on is a part of the circle.
    let files = [
        ("plan/lib.rs", "mod a; mod b;"),
        ("plan/a.rs", "use super::b::Size;"),
        ("plan/b.rs", "mod c; pub struct Size; fn f() { c::g() }"),
        ("plan/b/c.rs", "use crate::a;"),
    ];
    assert_eq!(found(&files).len(), 1, "{:?}", found(&files));
}

#[test]
fn parents_tests_and_other_crates_are_no_circle() {
    let files = [
        ("plan/lib.rs", "mod a; mod b; pub struct Plan;"),
        (
            "plan/a.rs",
            "mod inner; pub use inner::One; use super::Plan;",
        ),
        ("plan/a/inner.rs", "use super::super::Plan; use super::Two;"),
        (
            "plan/b.rs",
            "use crate::a::One; #[cfg(test)] mod checks; #[cfg(any(test, feature = \"testing\"))] pub mod double;",
        ),
        ("plan/b/checks.rs", "use super::*;"),
        ("plan/b/double.rs", "pub struct Double;"),
        ("plan/a/tests.rs", "use crate::b::Double;"),
        ("update/lib.rs", "mod a; use machinist_plan::Plan;"),
        (
            "update/a.rs",
            "use machinist_plan::a; #[cfg(test)] mod tests { use crate::b; }",
        ),
    ];
    assert_eq!(found(&files), Vec::<String>::new());
}
