//! The configs of other tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use machinist_ignition::{TextSource, is_config_name};

use super::go_program::Case;

/// Configs that differ, with a row of `differences.md` whose own input is another one, or with a rule
/// that is not Ignition's.
pub(super) const DIFFERENT: [(&str, &str); 10] = [
    (
        "tests/golden/input/102-keys-of-another-version",
        WITHOUT_A_MODE,
    ),
    (
        "tests/golden/input/103-special-modes-by-version",
        "the library's Butane is older than openshift 4.22.0",
    ),
    (
        "tests/golden/input/110-several-roles-are-refused",
        "roles are OpenShift's",
    ),
    (
        "tests/golden/input/33-later-wins",
        "plain contents over compressed ones of an earlier config",
    ),
    (
        "tests/golden/input/36-one-name-twice",
        "names are OpenShift's",
    ),
    ("tests/golden/input/48-empty", "an empty file is no config"),
    ("tests/golden/input/53-ignition-2", WITHOUT_A_MODE),
    (
        "tests/golden/input/55-ignition-2-says-one-thing-twice",
        "a file twice in one Ignition 2 config, the second time to append",
    ),
    (
        "tests/golden/input/63-kernel-devel-for-another-kernel",
        "extensions are OpenShift's",
    ),
    (
        "tests/golden/input/77-users-in-ignition-2",
        "the fields of `create` of a user in Ignition 2.0",
    ),
];
const WITHOUT_A_MODE: &str = "an Ignition 2.0 or 2.1 file without a mode";

/// Each config with the path of its directory or file.
pub(super) fn cases() -> Vec<(String, Case)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cases = Vec::new();
    for directory in entries(&top.join("tests/golden/input")) {
        cases.extend(case(&directory, &texts(&directory)));
    }
    for directory in ["tests/golden/plan", "tests/golden/update"] {
        for directory in entries(&top.join(directory)) {
            for text in texts(&directory) {
                if ["from.yaml", "to.yaml"].contains(&text.0.as_str()) {
                    cases.extend(case(&directory.join(&text.0), &[text]));
                }
            }
        }
    }
    let examples = top.join("examples/machine");
    for text in texts(&examples) {
        cases.extend(case(&examples.join(&text.0), &[text]));
    }
    cases.sort_by(|(one, _), (other, _)| one.cmp(other));
    cases
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The config files of a directory; those that are not text are compared by the golden cases only.
fn texts(directory: &Path) -> Vec<(String, String)> {
    let names = entries(directory).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        is_config_name(&name).then_some((name, path))
    });
    let mut texts: Vec<_> = names
        .filter_map(|(name, path)| Some((name, fs::read_to_string(path).ok()?)))
        .collect();
    texts.sort();
    texts
}

/// None if there are no texts, or if only the configs of one role count, which Ignition has not.
fn case(path: &Path, texts: &[(String, String)]) -> Option<(String, Case)> {
    let allowed = fs::read_to_string(path.join("allowed.txt")).unwrap_or_default();
    if texts.is_empty() || allowed.lines().any(|line| line.starts_with("role ")) {
        return None;
    }
    let mut case = Case::new(texts.to_vec());
    if allowed.lines().any(|line| line == "from api-server") {
        case.source = TextSource::ApiServer;
    }
    let shown = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
    Some((shown.display().to_string(), case))
}
