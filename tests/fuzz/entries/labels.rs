//! file_contexts(5): any text gives labels or none, and every label is a word of the text.
use machinist_plan::{ObjectKind, SelinuxLabels};

pub(crate) fn check(text: &str) {
    let (rules, substitutes) = text.split_once('\0').unwrap_or((text, ""));
    let labels = SelinuxLabels::read([rules], [substitutes, ""]);
    let written = text.split_whitespace().filter(|word| word.starts_with('/'));
    let paths = ["/etc/passwd", "/home/a/.ssh", "/usr/lib/x.so.1"].into_iter();
    for path in paths.chain(written.take(8)) {
        let Ok(path) = path.parse() else { continue };
        for kind in [ObjectKind::File, ObjectKind::Directory, ObjectKind::Link] {
            if let Some(label) = labels.of(&path, kind) {
                assert!(rules.split_whitespace().any(|word| word == label));
            }
        }
    }
}
