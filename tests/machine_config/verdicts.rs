//! What was accepted stays accepted: `tests/golden/verdicts.txt` records the verdict on every config
//! input, one line each. An input that is refused although it was accepted needs its codes in the
//! table "Previously accepted, now refused" of `tests/oracle/differences.md`; its line then states
//! `accepted, now` and the codes.
//!
//! `MACHINIST_BLESS=1` writes the record, after the cases of `tests/golden` have been written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use regex::Regex;

use super::golden::{directory, files, result};

const ACCEPTED: &str = "accepted";
const NO_LONGER: &str = "accepted, now ";

type Codes = BTreeSet<String>;

/// The codes in the brackets of a text.
fn codes(text: &str) -> Codes {
    let code = Regex::new(r"\[([A-Z][A-Za-z]+)\]").unwrap();
    code.captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect()
}

/// The codes for which each input is refused; none if it is accepted.
fn verdicts() -> BTreeMap<String, Codes> {
    let mut verdicts = BTreeMap::new();
    let mut read = |name: &str, directory: &Path, files| {
        let refusals = result(directory, files).err().unwrap_or_default();
        let codes = refusals
            .iter()
            .map(|refusal| refusal.reason.as_str().to_owned());
        verdicts.insert(name.to_owned(), codes.collect());
    };
    for name in names("tests/golden/input") {
        let path = directory(&name);
        read(&name, &path, files(&path));
    }
    let examples = directory("examples/machine");
    read("examples/machine", &examples, files(&examples));
    let last = directory("tests/last_version/data");
    let config = fs::read(last.join("config.yaml")).unwrap();
    let config = vec![("config.yaml".to_owned(), config)];
    read("tests/last_version/data/config.yaml", &last, config);
    for kind in ["tests/golden/plan", "tests/golden/update"] {
        for name in names(kind) {
            let plan = fs::read_to_string(directory(&name).join("plan.txt")).unwrap();
            let refused = plan.starts_with("Refused\n");
            verdicts.insert(name, if refused { codes(&plan) } else { Codes::new() });
        }
    }
    verdicts
}

fn names(parent: &str) -> Vec<String> {
    let entries = fs::read_dir(directory(parent)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| format!("{parent}/{name}")).collect()
}

fn joined(codes: &Codes) -> String {
    codes
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn inputs_that_were_accepted_are_refused_only_with_a_listed_code() {
    let path = directory("tests/golden/verdicts.txt");
    let record = fs::read_to_string(&path).unwrap_or_default();
    let recorded: BTreeMap<&str, &str> = record
        .lines()
        .map(|line| line.split_once(": ").unwrap())
        .collect();
    let differences = fs::read_to_string(directory("tests/oracle/differences.md")).unwrap();
    let (_, table) = differences
        .split_once("## Previously accepted, now refused")
        .unwrap();
    let mut text = String::new();
    for (name, codes) in verdicts() {
        let before = recorded.get(name.as_str()).copied().unwrap_or_default();
        let was_accepted = before == ACCEPTED || before.starts_with(NO_LONGER);
        let verdict = match codes.is_empty() {
            true => ACCEPTED.to_owned(),
            false if was_accepted => format!("{NO_LONGER}{}", joined(&codes)),
            false => joined(&codes),
        };
        for code in codes.iter().filter(|_| was_accepted) {
            assert!(
                table.contains(&format!("| `{code}` |")),
                "{name} was accepted and is refused with {code}, which differences.md does not list"
            );
        }
        text += &format!("{name}: {verdict}\n");
    }
    if std::env::var_os("MACHINIST_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let record = fs::read_to_string(&path).unwrap_or_default();
    let (before, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (record.lines().collect(), text.lines().collect());
    let changed: Vec<_> = before.symmetric_difference(&now).collect();
    assert!(
        changed.is_empty(),
        "verdicts changed: {changed:#?}; to record them: MACHINIST_BLESS=1 cargo test --test machine \
         machine_config::verdicts"
    );
}
