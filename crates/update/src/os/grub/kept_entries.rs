//! The files of the menu entries of kept deployments.

use super::{
    error::GrubError,
    host_files::{HostFiles, path},
};
use crate::os::{
    boot_entry::{kept_file, kept_number, value},
    kept_arguments::KeptArguments,
};
use machinist_boot_loader::grub::GrubFiles as _;
use machinist_rootfs::Root;

pub(super) const DIRECTORY: &str = "/boot/loader/entries";

/// The variable of the environment block that names the default entry.
pub(super) const SAVED_ENTRY: &str = "saved_entry";

/// The numbers of the entries of kept deployments, in any order.
fn numbers(root: &Root) -> Result<Vec<u32>, GrubError> {
    let entries = match root.list(&path(DIRECTORY)?) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.iter();
    Ok(names.filter_map(|entry| kept_number(&entry.name)).collect())
}

pub(super) fn file_of(number: u32) -> String {
    format!("{DIRECTORY}/{}", kept_file(number))
}

/// The name of an entry in the menu.
pub(super) fn id_of(number: u32) -> String {
    kept_file(number).trim_end_matches(".conf").to_owned()
}

/// The number of the next entry.
pub(super) fn next_number(root: &Root) -> Result<u32, GrubError> {
    let newest = numbers(root)?.into_iter().max();
    Ok(newest.map_or(1, |newest| newest + 1))
}

/// The newest entry of a kept deployment.
#[derive(Default)]
pub(super) struct NewestEntry {
    /// Its name in the menu; `None` if there is no entry.
    pub(super) id: Option<String>,
    pub(super) kept: KeptArguments,
    /// Its file, if its kernel was removed.
    pub(super) dead_file: Option<String>,
}

impl NewestEntry {
    /// Arguments that no entry has.
    pub(super) fn of(kept: KeptArguments) -> Self {
        Self {
            kept,
            ..Self::default()
        }
    }

    pub(super) fn read(root: &Root) -> Result<Self, GrubError> {
        let Some(number) = numbers(root)?.into_iter().max() else {
            return Ok(Self::default());
        };
        let files = HostFiles::new(root);
        let text = files.text(&file_of(number)).unwrap_or_default();
        let kernel = value(&text, "linux");
        Ok(Self {
            id: Some(id_of(number)),
            kept: KeptArguments::parse(&text),
            dead_file: kernel
                .filter(|kernel| files.size(kernel).is_none())
                .map(|_| file_of(number)),
        })
    }
}

/// Removes the newest entry, which an interrupted keep has written.
pub(super) fn remove_newest(root: &Root) -> Result<(), GrubError> {
    match numbers(root)?.into_iter().max() {
        Some(number) => Ok(root.remove_file(&path(&file_of(number))?)?),
        None => Ok(()),
    }
}

/// Removes all entries of kept deployments but the newest one.
pub(super) fn remove_older(root: &Root) -> Result<(), GrubError> {
    let numbers = numbers(root)?;
    let newest = numbers.iter().max();
    for number in numbers.iter().filter(|number| Some(*number) != newest) {
        root.remove_file(&path(&file_of(*number))?)?;
    }
    Ok(())
}
