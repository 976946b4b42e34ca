//! Counts how often each name of a type or constant is defined.

use std::collections::BTreeMap;

use crate::layering::{
    paths::without_tests,
    tokens::{
        Token::{Mark, Name},
        tokens,
    },
};

/// How many definitions of one name a reader can tell apart by the crate.
const MAX_DEFINITIONS: usize = 3;

/// Names that state the role of an item in its module, so that they may be defined anywhere.
const ROLE_WORDS: [&str; 10] = [
    "ALL", "Config", "Error", "KIND", "Object", "Options", "Output", "Scalar", "Value", "View",
];

/// The names of types and constants that a file defines outside of tests.
pub(crate) fn definitions(text: &str) -> Vec<String> {
    let tokens = without_tests(tokens(text));
    let named = (0..tokens.len()).filter_map(|at| {
        let [Name(keyword), Name(name), after, ..] = &tokens[at..] else {
            return None;
        };
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let keyword = keyword.as_str();
        let defines = ["struct", "enum", "trait", "type", "const", "static"].contains(&keyword);
        // `const fn` and `*const T` define no constant; `<const N: usize>` is a parameter.
        let parameter = matches!(before, Some(Mark("<" | ",")));
        let constant = *after == Mark("?") && name != "_" && !parameter;
        (defines && (keyword != "const" || constant)).then(|| name.clone())
    });
    named.collect()
}

/// Every name with more than [`MAX_DEFINITIONS`] definitions, with the files.
pub(crate) fn too_frequent<'a>(
    files: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, text) in files {
        for name in definitions(text) {
            places.entry(name).or_default().push(file);
        }
    }
    places.retain(|name, files| {
        files.len() > MAX_DEFINITIONS && !ROLE_WORDS.contains(&name.as_str())
    });
    let lines = places.into_iter();
    lines
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect()
}

#[test]
fn definitions_are_read_without_functions_and_tests() {
    let text =
        "pub(super) const A: u8 = 1; const fn f() {} struct B<const K: u8>(*const u8); enum C { D }
        trait E { const F: u8; type G; } type H = u8; static I: u8 = 1; const _: () = ();
        #[cfg(test)] mod tests { const J: u8 = 1; }";
    let names = ["A", "B", "C", "E", "F", "G", "H", "I"];
    assert_eq!(definitions(text), names);
}

#[test]
fn a_name_with_four_definitions_is_reported_unless_it_is_a_role_word() {
    let text = "const LIMIT: u8 = 1; enum Error {}".to_owned();
    let files = ["a.rs", "b.rs", "c.rs", "d.rs"].map(str::to_owned);
    let reported = |most: usize| too_frequent(files[..most].iter().map(|file| (file, &text)));
    assert_eq!(reported(3), Vec::<String>::new());
    assert_eq!(reported(4), ["LIMIT: a.rs, b.rs, c.rs, d.rs"]);
}
