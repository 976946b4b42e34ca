//! The crates of the workspace, from their manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use crate::layering::{root, table::code};

/// The directories below `crates`, sorted.
pub(crate) fn crates() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

struct Manifest {
    description: String,
    /// Crates of the workspace that the library uses; those of its tests do not count.
    uses: BTreeSet<String>,
}

fn manifest(name: &str) -> Manifest {
    let path = root().join("crates").join(name).join("Cargo.toml");
    let text = fs::read_to_string(path).unwrap();
    let description = text
        .lines()
        .find_map(|line| line.strip_prefix("description = "))
        .unwrap();
    let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap();
    Manifest {
        description: description.trim_matches('"').to_owned(),
        uses: section
            .lines()
            .filter_map(|line| line.strip_prefix("machinist-"))
            .filter_map(|line| line.split(['.', ' ']).next())
            .map(str::to_owned)
            .collect(),
    }
}

/// The crates as Markdown for ARCHITECTURE.md, each below those that it uses.
pub(crate) fn as_markdown() -> String {
    let mut left: BTreeMap<String, Manifest> = crates()
        .into_iter()
        .map(|name| (name.clone(), manifest(&name)))
        .collect();
    let mut drawn = BTreeSet::new();
    let mut table = String::from("| crate | content | uses |\n|---|---|---|\n");
    while let Some(name) = left
        .iter()
        .find(|(_, it)| it.uses.is_subset(&drawn))
        .map(|(name, _)| name.clone())
    {
        let Manifest { description, uses } = left.remove(&name).unwrap();
        let uses = uses.into_iter().collect::<Vec<_>>().join(" ");
        let uses = if uses.is_empty() {
            "–".to_owned()
        } else {
            code(&uses)
        };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| `{name}` | {description} | {uses} |");
        drawn.insert(name);
    }
    table
}
