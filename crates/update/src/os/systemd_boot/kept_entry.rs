//! Computes the menu entry of a kept deployment, without writing it.

use super::{error::SystemdBootError, state::SystemdBootState};
use crate::os::{
    boot_entry::{kept_file, with_lines},
    kept_arguments::{KeptArguments, joined},
};
use machinist_boot_loader::systemd_boot::MenuEntry;
use machinist_ignition::KernelCommandLine;

/// The suffix of the default entry's version, so that the entry of a kept deployment sorts before it and
/// after those of newer kernels.
const VERSION_SUFFIX: &str = ".machinist";

/// The menu entry of a kept deployment.
pub(super) struct KeptEntry {
    pub(super) file: String,
    pub(super) text: String,
}

impl KeptEntry {
    /// The entry with which every boot has these arguments.
    pub(super) fn of(
        state: &SystemdBootState,
        kept: &KeptArguments,
    ) -> Result<Self, SystemdBootError> {
        state.check_confirmed()?;
        state.check_complete()?;
        let default = &state.default;
        let unusual = || SystemdBootError::UnusualEntry(default.file.clone());
        let version = default.version.as_deref().ok_or_else(unusual)?;
        let version = version.split(VERSION_SUFFIX).next().unwrap_or(version);
        let number = state.files.newest_kept().map_or(1, |newest| newest + 1);
        let all = joined(&kept.host, &kept.current);
        let lines = [
            ("version", format!("{version}{VERSION_SUFFIX}{number}")),
            ("options", all.to_string()),
        ];
        let text = state.files.text(&default.file).ok_or_else(unusual)?;
        let text = kept.to_comments() + &with_lines(text, &lines, &[]);
        let file = kept_file(number);
        let files = state.files.with(&file, &text);
        enters(state.default_with(&files), &file, &all)?;
        state.check_matched(&files)?;
        Ok(Self { file, text })
    }
}

/// Checks that a simulated boot enters this entry with these arguments.
pub(super) fn enters(
    entry: Option<MenuEntry>,
    file: &str,
    wanted: &KernelCommandLine,
) -> Result<(), SystemdBootError> {
    let entry = entry.ok_or(SystemdBootError::NoEntry)?;
    if entry.file != file {
        return Err(SystemdBootError::OtherEntry {
            found: entry.file,
            wanted: file.to_owned(),
        });
    }
    let found = KernelCommandLine::parse(&entry.options);
    match found == *wanted {
        true => Ok(()),
        false => Err(SystemdBootError::OtherArguments {
            file: entry.file,
            found: found.to_string(),
            wanted: wanted.to_string(),
        }),
    }
}
