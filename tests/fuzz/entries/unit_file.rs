//! Unit files: the strict and the lenient reader agree, and errors name lines that exist.
use machinist_ignition::{UnitFile, split_words};

pub(crate) fn check(text: &str) {
    let (file, faults) = UnitFile::read(text);
    let lines = text.lines().count();
    assert!(faults.iter().all(|fault| (1..=lines).contains(&fault.line)));
    match UnitFile::parse(text) {
        Ok(strict) => assert!(faults.is_empty() && strict == file),
        Err(found) => assert_eq!(found, faults),
    }
    let mut twice = file.clone();
    twice.add(file.clone());
    for section in ["Unit", "Service", "Install"] {
        for key in ["ExecStart", "WantedBy", "Alias", "Type", "Description"] {
            assert!(twice.values(section, key).len() >= file.values(section, key).len());
            assert_eq!(twice.last(section, key), file.last(section, key));
            for word in file.words(section, key) {
                assert!(word.len() <= text.len());
            }
        }
    }
    for word in split_words(text) {
        assert!(word.len() <= text.len());
    }
}
