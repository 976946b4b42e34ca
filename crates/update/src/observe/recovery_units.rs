//! Checks whether an update that a power failure interrupts would be recovered before ordinary services start.

use super::MAX_TEXT_BYTES;
use machinist_base::abs_path::AbsPath;
use machinist_plan::recovery_units::{GUARD_UNIT, RECOVER_UNIT, RECOVERY_TARGET};
use machinist_rootfs::{FileKind, Root, RootError};

/// Maximum number of links to follow to a program, which may be a chain of links, such as those of
/// update-alternatives.
const MAX_SYMLINKS: usize = 8;

/// Returns why recovery would not run; `None` if it would.
///
/// Drop-ins are the administrator's own and are not read.
///
/// # Errors
/// The tree cannot be read.
pub fn missing(root: &Root) -> Result<Option<String>, RootError> {
    for unit in [RECOVER_UNIT, GUARD_UNIT] {
        if let Some(why) = of_unit(root, unit)? {
            return Ok(Some(why));
        }
    }
    match is_enabled(root)? {
        true => Ok(None),
        false => Ok(Some(format!("{RECOVER_UNIT} is not enabled"))),
    }
}

/// Returns what prevents a unit from running.
fn of_unit(root: &Root, unit: &str) -> Result<Option<String>, RootError> {
    for directory in machinist_plan::UNIT_DIRECTORIES {
        let Ok(path) = AbsPath::new(format!("{directory}/{unit}")) else {
            continue;
        };
        let Some(stat) = root.stat(&path)? else {
            continue;
        };
        if stat.kind == FileKind::Link && root.read_link(&path)? == "/dev/null" {
            return Ok(Some(format!("{path} is masked")));
        }
        let text = match root.read_text(&path, MAX_TEXT_BYTES) {
            Ok(text) => text,
            Err(error) if error.is_not_found() => {
                return Ok(Some(format!("{path} is a dangling symbolic link")));
            }
            Err(error) if error.is_wrong_kind() => {
                return Ok(Some(format!("{path} is not a file")));
            }
            Err(error) => return Err(error),
        };
        return Ok(match program(&text) {
            None => Some(format!("{path} has no ExecStart=")),
            Some(program) if is_executable(root, &program)? => None,
            Some(program) => Some(format!(
                "{path} runs {program}, which does not exist or is not executable"
            )),
        });
    }
    Ok(Some(format!("{unit} is not installed")))
}

/// Returns the program of a unit: the first one since the last reset of the list (systemd.service(5)).
fn program(text: &str) -> Option<AbsPath> {
    let mut first = None;
    for line in text.lines() {
        let Some(("ExecStart", command)) = line.split_once('=').map(|(key, v)| (key.trim(), v))
        else {
            continue;
        };
        let command = command
            .trim()
            .trim_start_matches(['@', '-', ':', '+', '!', '|']);
        match command.split_whitespace().next() {
            None => first = None,
            Some(word) => first = first.or_else(|| AbsPath::new(word.trim_matches('"')).ok()),
        }
    }
    first
}

fn is_executable(root: &Root, program: &AbsPath) -> Result<bool, RootError> {
    let mut place = program.clone();
    for _ in 0..MAX_SYMLINKS {
        place = root.canonical(&place)?;
        match root.stat(&place)? {
            Some(stat) if stat.kind == FileKind::Link => {
                place = machinist_plan::resolve(&place, &root.read_link(&place)?);
            }
            stat => {
                return Ok(
                    stat.is_some_and(|stat| stat.kind == FileKind::File && stat.mode & 0o111 != 0)
                );
            }
        }
    }
    Ok(false)
}

fn is_enabled(root: &Root) -> Result<bool, RootError> {
    for directory in machinist_plan::UNIT_DIRECTORIES {
        for how in ["wants", "requires"] {
            let Ok(link) = AbsPath::new(format!(
                "{directory}/{RECOVERY_TARGET}.{how}/{RECOVER_UNIT}"
            )) else {
                continue;
            };
            if root
                .stat(&link)?
                .is_some_and(|stat| stat.kind == FileKind::Link)
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
