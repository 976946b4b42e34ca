//! Ignition: the same verdict, and the same resulting machine, as `github.com/coreos/ignition/v2`.

mod collected;
mod compare;
mod generate;
mod go_program;
mod known_differences;
mod known_refusals;
mod machinist_result;
mod rare;

use std::{fs, path::Path};

use go_program::{Case, Verdict};

use crate::support::{Dice, answer, ask, assert_rows_have_entries, rounds, seed};

/// The texts of a directory by name, without those of formats that Ignition does not read.
fn texts(directory: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut texts: Vec<(String, String)> = entries
        .filter(|path| {
            path.extension()
                .is_some_and(|ending| ending != "bu" && ending != "txt")
        })
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    texts.sort();
    texts
}

#[test]
fn the_example_machine_is_equal_in_ignition() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/machine");
    let case = Case::new(texts(&examples));
    let verdicts: Vec<Verdict> = ask("ignition", std::slice::from_ref(&case));
    assert!(verdicts[0].accepted, "{}", verdicts[0].error);
    let config = machinist_result::read(&case).unwrap();
    assert!(config.files.len() > 1, "{config:#?}");
    assert_eq!(
        compare::differences(&verdicts[0], &config),
        Vec::<String>::new()
    );
}

fn file(fields: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.5.0"}},"storage":{{"files":[{{"path":"/etc/x"{fields}}}]}}}}"#
    )
}

#[test]
fn a_later_file_entry_without_contents_keeps_earlier_contents() {
    let [text, mode, owner, empty] = [
        r#","contents":{"source":"data:,text"}"#,
        r#","mode":384"#,
        r#","user":{"id":7},"contents":{}"#,
        r#","contents":{"source":""}"#,
    ]
    .map(file);
    let orders = [
        vec![&text, &mode],
        vec![&mode, &text],
        vec![&text, &owner, &mode],
        vec![&text, &empty],
        vec![&empty, &mode],
        vec![&mode, &owner],
        vec![&mode],
        vec![&empty],
    ];
    let cases = orders.map(|order| {
        let texts = (0..).zip(order);
        Case::new(texts.map(|(number, text)| (format!("{number}.ign"), text.clone())))
    });
    let verdicts: Vec<Verdict> = ask("ignition", &cases);
    for (case, verdict) in cases.iter().zip(&verdicts) {
        assert!(verdict.accepted, "{case:?}: {}", verdict.error);
        let found = compare::differences(verdict, &machinist_result::read(case).unwrap());
        assert!(found.is_empty(), "{case:?}: {found:#?}");
    }
}

/// The differences between the library's verdict and ours.
fn differences(case: &Case, theirs: &Verdict) -> Vec<String> {
    match (machinist_result::read(case), theirs.accepted) {
        (Ok(config), true) => compare::differences(theirs, &config),
        (Ok(_), false) => vec![format!("Ignition refuses it: {}", theirs.error)],
        (Err(_), false) => Vec::new(),
        (Err(refusals), true) => refusals
            .iter()
            .map(|refusal| format!("machinist refuses it: {refusal}"))
            .collect(),
    }
}

#[test]
fn generated_configs_are_equal_in_ignition() {
    let seed = seed();
    let rounds = rounds(500, 20_000);
    let cases: Vec<Case> = (0..rounds)
        .map(|round| generate::case(&mut Dice::new(seed, round)))
        .collect();
    let verdicts: Vec<Verdict> = ask("ignition", &cases);
    let mut found = Vec::new();
    let mut accepted = 0;
    for (round, (case, verdict)) in cases.iter().zip(&verdicts).enumerate() {
        let mut differs = differences(case, verdict);
        accepted += u64::from(verdict.accepted && differs.is_empty());
        differs.retain(|one| !known_differences::is_known(one));
        if !differs.is_empty() {
            found.push(format!("round {round}: {:#?}: {differs:#?}", case.texts));
        }
    }
    println!("oracle: {accepted} of {rounds} configs are accepted and the same to both sides");
    let shown = &found[..found.len().min(20)];
    assert!(
        found.is_empty(),
        "seed {seed}: {} of {rounds} cases differ\n{}",
        found.len(),
        shown.join("\n")
    );
    assert!(
        accepted > rounds / 10,
        "only {accepted} of {rounds} are accepted"
    );
}

/// The inputs of other tests: each directory below `tests/golden/input` is one config, as are the
/// files of `tests/golden/plan` and `tests/golden/update`, and `examples/machine`.
#[test]
fn collected_configs_are_equal_in_ignition() {
    let cases = collected::cases();
    let asked: Vec<Case> = cases.iter().map(|(_, case)| case.clone()).collect();
    let verdicts: Vec<Verdict> = ask("ignition", &asked);
    let (mut found, mut compared) = (Vec::new(), 0);
    for ((name, case), verdict) in cases.iter().zip(&verdicts) {
        if verdict.foreign {
            continue;
        }
        compared += 1;
        let mut differs = differences(case, verdict);
        differs.retain(|one| !known_differences::is_known(one));
        let listed = collected::DIFFERENT.iter().any(|(case, _)| case == name);
        if differs.is_empty() == listed {
            found.push(format!("{name}: listed: {listed}, {differs:#?}"));
        }
    }
    println!(
        "oracle: {compared} of {} collected configs are compared",
        cases.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(compared > 300, "only {compared} are compared");
}

/// The list is complete by the tests above, and exact by this one.
#[test]
fn every_listed_ignition_difference_exists_and_is_explained() {
    let listed = known_differences::all();
    let cases: Vec<Case> = listed.iter().map(|one| one.case()).collect();
    let verdicts: Vec<Verdict> = ask("ignition", &cases);
    let mut missing = Vec::new();
    for ((one, case), verdict) in listed.iter().zip(&cases).zip(&verdicts) {
        let found = differences(case, verdict);
        if verdict.foreign || !found.iter().any(|found| one.is(found)) {
            missing.push(format!("{}: {found:?}", one.name));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert_rows_have_entries("## Ignition", listed.iter().map(|one| one.name));
}

/// `keys.txt` names the versions of Ignition that know a key.
#[test]
fn the_table_of_keys_is_the_schema_of_the_ignition_library() {
    let schema = answer("ignition", &["schema"]);
    let table = "crates/ignition/src/ignition/keys.txt";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(table);
    if std::env::var_os("UPDATE_KEYS").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap() == schema,
        "{table} differs; to write it: UPDATE_KEYS=1 tests/oracle/run ignition"
    );
}

/// Each sentence of Ignition's documentation about an absent field is a row of `omitted.md`, with
/// cases that exist.
#[test]
fn every_sentence_about_an_absent_field_has_a_case() {
    let page = include_str!("omitted.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let (field, rest) = row.split_once("` | ").unwrap();
            let (sentence, cases) = rest.rsplit_once(" | ").unwrap();
            (format!("{field}: {sentence}"), cases)
        });
    let (sentences, cases): (Vec<String>, Vec<&str>) = rows.unzip();
    let message = answer("ignition", &["omitted"]);
    assert_eq!(sentences, message.lines().collect::<Vec<_>>());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for row in cases {
        let names: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            let places = ["input", "plan", "update"].map(|kind| golden.join(kind).join(name));
            assert!(places.iter().any(|place| place.is_dir()), "no case {name}");
        }
    }
}
