//! The menu entry of a kept deployment where GRUB reads files of the Boot Loader Specification (Fedora, RHEL).
//!
//! An entry of its own in `/boot/loader/entries` is selected by `saved_entry` in GRUB's environment block. The entries of
//! the distribution are not changed. A new kernel gets the arguments of `/etc/kernel/cmdline` or of the running kernel
//! (kernel-install(8)), and its entry becomes the saved one.

use super::{
    error::GrubError,
    host_files::{HostFiles, path},
    kept_entries::{DIRECTORY, SAVED_ENTRY, file_of, id_of, next_number},
    state::{GrubState, TUNED_VARIABLE, boot, environment_with_next, has_arguments},
};
use crate::os::{
    boot_entry::{value, with_lines},
    host_detection::is_there,
    kept_arguments::{KeptArguments, joined},
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::{BootError, EnvironmentBlock, GrubFiles as _};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// The program that adds the arguments of TuneD to entries.
const TUNED_HOOK: &str = "/usr/lib/kernel/install.d/92-tuned.install";

/// Added to the title of the distribution's entry.
const TITLE_SUFFIX: &str = " (machinist)";

/// The entry of a deployment that is to be kept.
pub(super) struct KeptEntry {
    pub(super) file: AbsPath,
    pub(super) text: String,
    /// The environment block that selects it.
    pub(super) environment: EnvironmentBlock,
}

impl KeptEntry {
    /// The entry with which every boot has these arguments.
    pub(super) fn of(
        root: &Root,
        state: &GrubState,
        kept: &KeptArguments,
    ) -> Result<Self, GrubError> {
        let name = state.selected.entry.join(">");
        let base = format!("{DIRECTORY}/{name}.conf");
        let text = HostFiles::new(root).text(&base);
        let base = text.ok_or(GrubError::EntryMissing(base))?;
        let mut options = options_of_host(&base, &state.kept.current);
        let is_tuned = state
            .environment
            .get(TUNED_VARIABLE)
            .is_some_and(|set| !set.is_empty());
        if is_there(root, TUNED_HOOK) && !options.contains(TUNED_VARIABLE) && !is_tuned {
            // TuneD adds it to the entries of the distribution alone.
            options.push_str(&format!(" ${TUNED_VARIABLE}"));
        }
        let title = value(&base, "title").unwrap_or(&name);
        let title = title.strip_suffix(TITLE_SUFFIX).unwrap_or(title);
        let lines = [
            ("title", format!("{title}{TITLE_SUFFIX}")),
            ("options", with_own(&options, &kept.current)),
        ];
        let number = next_number(root)?;
        let text = kept.to_comments() + &with_lines(&base, &lines, &[]);
        let file = file_of(number);
        let id = id_of(number);
        let before = environment_with_next(&state.environment, None);
        let mut environment = before.clone();
        environment.set(SAVED_ENTRY, &id);
        let files = HostFiles::new(root).with(&file, Some(text.clone()));
        let files = match &state.dead {
            Some(dead) => files.with(&dead.file, None),
            None => files,
        };
        // With the present `saved_entry`, no boot may enter the new entry: the order of the menu differs between versions
        // of GRUB.
        let loaded = |files: &HostFiles<'_>| {
            boot(files).map_err(|error| match error {
                GrubError::Boot(source) if is_script_of(&source, &file) => {
                    GrubError::EntryCommands {
                        arguments: kept.current.to_string(),
                        source,
                    }
                }
                error => error,
            })
        };
        let unsaved = loaded(&files.clone().with_environment(&before)?)?;
        let boot = loaded(&files.with_environment(&environment)?)?;
        if boot.entry != [id] || unsaved.entry != state.selected.entry {
            return Err(GrubError::NotSaved(boot.entry.join(">")));
        }
        has_arguments(&boot.arguments(), &joined(&kept.host, &kept.current))?;
        Ok(Self {
            file: path(&file)?,
            text,
            environment,
        })
    }
}

/// Whether the commands of this entry cannot be read; those of another file may be written at this moment. GRUB's path
/// begins at the file system.
fn is_script_of(error: &BootError, entry: &str) -> bool {
    matches!(error, BootError::Script { path, .. } if entry.ends_with(&**path))
}

/// The options of an entry without those of machinist, with variables such as `$kernelopts`, which GRUB replaces in every
/// boot.
fn options_of_host(entry: &str, own: &KernelCommandLine) -> String {
    let options = value(entry, "options").unwrap_or_default();
    let host = options.strip_suffix(&own.to_string());
    // Otherwise the suffix is only a part of the last word.
    let is_complete = |host: &&str| host.is_empty() || host.ends_with(' ') || *host == options;
    if let Some(host) = host.filter(is_complete) {
        return host.trim_end().to_owned();
    }
    let mut all = KernelCommandLine::parse(options);
    for one in own.iter().rev() {
        all.remove_last(one);
    }
    all.to_string()
}

/// Options, followed by machinist's.
fn with_own(options: &str, own: &KernelCommandLine) -> String {
    format!("{options} {own}").trim().to_owned()
}
