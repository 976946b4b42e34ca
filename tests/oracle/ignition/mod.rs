//! Ignition: the same verdict, and the same machine, as `github.com/coreos/ignition/v2` gives.

mod compare;
mod ours;
mod verdict;

use std::{fs, path::Path};

use verdict::{Case, Verdict};

use crate::support::ask;

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
fn the_example_machine_is_the_same_to_ignition() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/machine");
    let case = Case {
        texts: texts(&examples),
    };
    let verdicts: Vec<Verdict> = ask("ignition", std::slice::from_ref(&case));
    assert!(verdicts[0].accepted, "{}", verdicts[0].error);
    let config = ours::read(&case).unwrap();
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
fn a_later_entry_without_contents_keeps_those_of_an_earlier_one() {
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
    let cases = orders.map(|order| Case {
        texts: (0..)
            .zip(order)
            .map(|(number, text)| (format!("{number}.ign"), text.clone()))
            .collect(),
    });
    let verdicts: Vec<Verdict> = ask("ignition", &cases);
    for (case, verdict) in cases.iter().zip(&verdicts) {
        assert!(verdict.accepted, "{case:?}: {}", verdict.error);
        let found = compare::differences(verdict, &ours::read(case).unwrap());
        assert!(found.is_empty(), "{case:?}: {found:#?}");
    }
}
