//! The package's units, adapted to a host without the package.

use machinist_plan::recovery_units::{FALLBACK_UNIT, GUARD_UNIT, RECOVER_UNIT};

/// Path of the program's copy on the host.
pub(super) const HOST_PROGRAM_PATH: &str = "/usr/local/libexec/machinist/machinist";

/// Path of the program in the package.
const PACKAGE_PROGRAM_PATH: &str = "/usr/bin/machinist";

const RECOVER_UNIT_TEXT: &str = include_str!("../../../../systemd/machinist-recover.service");
const GUARD_UNIT_TEXT: &str = include_str!("../../../../systemd/machinist-guard.service");
const FALLBACK_UNIT_TEXT: &str =
    include_str!("../../../../systemd/machinist-trial-fallback.service");

/// The first line of each unit.
const FIRST_LINE: &str =
    "# Written by the agent in this node's pod; local changes are overwritten.";

/// Names and texts of the units; a unit comes before the one that depends on it.
pub(super) fn texts() -> [(&'static str, String); 3] {
    [
        (FALLBACK_UNIT, rewritten(FALLBACK_UNIT_TEXT)),
        (GUARD_UNIT, rewritten(GUARD_UNIT_TEXT)),
        (RECOVER_UNIT, rewritten(RECOVER_UNIT_TEXT)),
    ]
}

/// Whether the agent wrote this unit, in any version.
pub(super) fn is_ours(text: &str) -> bool {
    let start = format!("ExecStart={HOST_PROGRAM_PATH} ");
    text.starts_with(FIRST_LINE) || text.lines().any(|line| line.starts_with(&start))
}

/// Replaces the package's program path by that of the copy.
fn rewritten(text: &str) -> String {
    let head = format!("{FIRST_LINE}\n# To remove it, run `machinist uninstall`.\n\n");
    let lines = text.lines().map(|line| match line.split_once('=') {
        Some((key @ ("ExecStart" | "ConditionFileIsExecutable"), value)) => {
            let rest = value.strip_prefix(PACKAGE_PROGRAM_PATH).unwrap_or(value);
            format!("{key}={HOST_PROGRAM_PATH}{rest}\n")
        }
        // For hosts where /usr/local is a separate file system.
        Some(("RequiresMountsFor", paths)) => {
            format!("RequiresMountsFor={paths} {HOST_PROGRAM_PATH}\n")
        }
        _ => format!("{line}\n"),
    });
    std::iter::once(head).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lines(text: &str) -> BTreeSet<&str> {
        let settings = text.lines().filter(|line| !line.starts_with('#'));
        settings.filter(|line| !line.is_empty()).collect()
    }

    #[test]
    fn host_units_differ_from_package_units_only_in_the_program_path() {
        let originals = [GUARD_UNIT_TEXT, RECOVER_UNIT_TEXT];
        let commands = ["guard", "recover"];
        let [(_, fallback), texts @ ..] = texts();
        assert!(is_ours(&fallback) && !is_ours(FALLBACK_UNIT_TEXT));
        assert_eq!(lines(&fallback), lines(FALLBACK_UNIT_TEXT));
        for (((_, text), original), command) in texts.iter().zip(originals).zip(commands) {
            assert!(is_ours(text) && !is_ours(original));
            assert!(!text.contains(PACKAGE_PROGRAM_PATH), "{text}");
            let (new, old) = (lines(text), lines(original));
            let added: Vec<_> = new.difference(&old).copied().collect();
            let expected = [
                "ConditionFileIsExecutable=/usr/local/libexec/machinist/machinist".to_owned(),
                format!("ExecStart=/usr/local/libexec/machinist/machinist {command}"),
                "RequiresMountsFor=/etc /var/lib/machinist /usr/local/libexec/machinist/machinist"
                    .to_owned(),
            ];
            assert_eq!(added, expected);
            assert_eq!(old.difference(&new).count(), 3);
            // systemd treats a line after a trailing backslash as a continuation.
            assert!(!text.contains("\\\n"));
        }
    }
}
