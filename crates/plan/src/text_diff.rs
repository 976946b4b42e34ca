//! Unified diffs of small texts.

use std::time::Duration;

use similar::TextDiff;

/// Lines shown around a change.
const CONTEXT_LINES: usize = 3;

/// How long the shortest diff is searched for. The search takes quadratic time for texts that have
/// little in common; after this time a longer diff is as informative.
const MAX_SEARCH: Duration = Duration::from_millis(500);

/// The difference between two texts in the format of `diff -u`; empty for equal texts.
pub(super) fn unified(path: &str, old: &str, new: &str) -> String {
    let mut config = TextDiff::configure();
    config
        .timeout(MAX_SEARCH)
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(path, path)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_a_changed_line_with_context() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        assert_eq!(
            unified("/x", old, new),
            "--- /x\n+++ /x\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
        );
        assert_eq!(unified("/x", old, old), "");
        assert_eq!(
            unified("/x", "", "a"),
            "--- /x\n+++ /x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn a_diff_of_texts_without_common_lines_is_fast() {
        let text = |from: u32| -> String {
            (from..from + 11_000)
                .map(|number| format!("{number}\n"))
                .collect()
        };
        let start = std::time::Instant::now();
        let diff = unified("/x", &text(0), &text(20_000));
        assert_eq!(diff.lines().count(), 3 + 22_000);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
