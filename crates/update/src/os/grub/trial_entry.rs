//! The menu entry of a staged deployment, in a section of custom.cfg that is machinist's.

use crate::os::trial_arguments::with_trial;
use machinist_boot_loader::grub::{self, ArgumentFault};
use machinist_ignition::{KernelArgument, KernelCommandLine};

const BEGIN: &str = "### BEGIN machinist ###";
const END: &str = "### END machinist ###";

/// The function with which Ubuntu's grub.cfg repeats a boot that failed without an initial RAM disk.
const REPEATS_FAILED_BOOT: &str = "initrdfail";

/// What makes such an entry boot with the initial RAM disk, and once: a trial that fails is not repeated.
const WITH_INITRD: &str = "\n\tset initrdfail=1\n\tunset partuuid";

/// A command that restarts the machine if GRUB cannot load the file: it is missing or damaged. GRUB has cleared
/// `next_entry` by then, so that the next boot is that of the previous deployment. Without it, GRUB waits for a keystroke,
/// or boots without the initial RAM disk.
fn restarting(command: &str) -> String {
    format!("\tif {command}; then set machinist_loaded=1; else reboot; fi\n")
}

/// The text of an entry like the one with this body, with other arguments. `None` if the body has not exactly one
/// command `linux` on a line of its own, or two where the first one has the initial RAM disk.
pub(super) fn entry(
    id: &str,
    body: &str,
    kernel: &str,
    arguments: &KernelCommandLine,
) -> Result<Option<String>, (KernelArgument, ArgumentFault)> {
    let words = grub::script_words(&with_trial(arguments, id))?;
    let name = |line: &str| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let is_linux = |line: &&str| ["linux", "linux16", "linuxefi"].contains(&&*name(line));
    let is_initrd = |line: &str| ["initrd", "initrd16", "initrdefi"].contains(&&*name(line));
    let repeats = body.lines().any(|line| line.trim() == REPEATS_FAILED_BOOT);
    let lines = body.lines().filter(is_linux).count();
    if lines != 1 + usize::from(repeats) {
        return Ok(None);
    }
    let mut text = format!("menuentry 'machinist {id}' --unrestricted --id {id} {{");
    if repeats {
        text.push_str(WITH_INITRD);
    }
    for line in body.split_inclusive('\n') {
        match is_linux(&line) {
            true => text.push_str(&restarting(&format!("{} {kernel} {words}", name(line)))),
            // A trial that a person chooses in the menu must not become the default.
            false if name(line) == "savedefault" => {}
            false if is_initrd(line) => text.push_str(&restarting(line.trim())),
            false => text.push_str(line),
        }
    }
    Ok(Some(text + "}\n"))
}

/// The lines of machinist's section.
fn section_lines(custom: &str) -> impl Iterator<Item = &str> {
    let section = custom
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    section
        .map(|(section, _)| section)
        .unwrap_or_default()
        .lines()
}

/// Whether the entry in machinist's section loads an initial RAM disk.
pub(super) fn loads_initrd(custom: &str) -> bool {
    section_lines(custom).any(|line| line.trim().starts_with("if initrd"))
}

/// The files that the entry in machinist's section loads.
pub(super) fn loaded_files(custom: &str) -> impl Iterator<Item = &str> {
    let loading = section_lines(custom).filter_map(|line| {
        let command = line.trim().strip_prefix("if ")?;
        let is_kernel = command.starts_with("linux");
        // The words after the kernel are its arguments.
        let most = if is_kernel { 1 } else { usize::MAX };
        let words = command.split_whitespace().skip(1).take(most);
        let is_loading = is_kernel || command.starts_with("initrd");
        is_loading.then_some(words.map(|word| word.trim_end_matches(';')))
    });
    loading.flatten().filter(|word| word.starts_with('/'))
}

/// The text of custom.cfg with this entry in machinist's section, or without a section. Everything else stays.
pub(in crate::os) fn with_section(custom: &str, entry: Option<&str>) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in custom.split_inclusive('\n') {
        match line.trim_end() {
            BEGIN => inside = true,
            END if inside => inside = false,
            _ if inside => {}
            _ => text.push_str(line),
        }
    }
    if let Some(entry) = entry {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{BEGIN}\n{entry}{END}\n"));
    }
    text
}

/// Whether machinist's section begins and does not end.
pub(super) fn has_broken_section(custom: &str) -> bool {
    let mut sections = custom.split(BEGIN).skip(1);
    sections.any(|rest| !rest.contains(END))
}

/// The identifier of the entry in machinist's section.
pub(super) fn staged_id(custom: &str) -> Option<&str> {
    let (_, section) = custom.split_once(BEGIN)?;
    let (section, _) = section.split_once(END)?;
    let (_, id) = section.split_once("--id ")?;
    id.split_whitespace().next()
}
