//! Measures comments, messages and pages: words for which the field has better terms stay rare.

use std::{collections::BTreeMap, fs, path::PathBuf};

use regex::Regex;

use crate::docs::home;

/// The most that one thousand words may have.
const MAX_PER_THOUSAND: f64 = 1.5;

/// Each pattern with the terms to use instead.
const DIALECT: &[(&str, &str)] = &[
    (r"\b(?:say|says|said|saying)\b", "report, state, log"),
    (
        r"\b(?:tell|tells|told|telling)\b",
        "report, notify, publish",
    ),
    (r"\b(?:hear|hears|heard)\b", "receive, observe"),
    (
        r"\b(?:nobody|somebody|whoever|anybody)\b",
        "the process, user or component",
    ),
    (r"\banew\b", "again"),
    (r"\b(?:lend|lends|lent)\b", "advertise, allocate"),
    (r"\b(?:stands|stood)\b", "exists, is"),
    (
        r"\b(?:is|was|are|were) (?:away|back)\b|\bgoes away\b",
        "unreachable, reachable again, removed",
    ),
    (
        r"\b(?:take|takes|taken|took) (?:back|away)\b",
        "roll back, remove, evict",
    ),
];

/// Where people read text that this project wrote.
const PLACES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "crates",
    "docs",
    "examples",
    "packaging",
    "proto/machinist",
    "src",
    "systemd",
    "tests",
];

/// The word list itself, and names of tests, which are no prose.
const EXCEPTED: &[&str] = &["tests/docs/prose.rs", "tests/SCENARIOS.md"];

fn files() -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = PLACES.iter().map(|place| home().join(place)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            open.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if let Some(kind) = path.extension()
            && ["rs", "md", "proto", "yaml", "service"]
                .iter()
                .any(|it| kind == *it)
            && !EXCEPTED.iter().any(|it| path.ends_with(it))
        {
            found.push(path);
        }
    }
    found
}

/// The words of one line that people read: all of a page, comments and string literals of code.
fn prose(rust: bool, line: &str, literal: &Regex) -> String {
    if !rust {
        return line.to_owned();
    }
    let (code, comment) = line.split_once("//").unwrap_or((line, ""));
    let literals = literal.find_iter(code).map(|found| found.as_str());
    literals.chain([comment]).collect::<Vec<_>>().join(" ")
}

#[test]
fn texts_use_kubernetes_and_systemd_terms() {
    let literal = Regex::new(r#""(?:[^"\\]|\\.)*""#).unwrap();
    let word = Regex::new(r"[A-Za-z']+").unwrap();
    let dialect: Vec<_> = DIALECT
        .iter()
        .map(|(pattern, instead)| (Regex::new(pattern).unwrap(), instead))
        .collect();
    let (mut words, mut hits) = (0, BTreeMap::<PathBuf, Vec<String>>::new());
    for file in files() {
        let rust = file.extension().is_some_and(|kind| kind == "rs");
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        for (number, line) in text.lines().enumerate() {
            let prose = prose(rust, line, &literal);
            words += word.find_iter(&prose).count();
            for (pattern, instead) in &dialect {
                for found in pattern.find_iter(&prose) {
                    let hit = format!("{}: {} ({instead})", number + 1, found.as_str());
                    hits.entry(file.clone()).or_default().push(hit);
                }
            }
        }
    }
    assert!(words > 100_000, "only {words} words were read");
    let count: usize = hits.values().map(Vec::len).sum();
    let (count, words) = (u32::try_from(count).unwrap(), u32::try_from(words).unwrap());
    let rate = 1000.0 * f64::from(count) / f64::from(words);
    assert!(
        rate < MAX_PER_THOUSAND,
        "{rate:.2} per 1,000 words: {hits:#?}"
    );
}
