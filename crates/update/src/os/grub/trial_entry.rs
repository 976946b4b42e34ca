//! The menu entry of a staged deployment, in a block of custom.cfg that is machinist's.

use crate::os::trial_arguments::with_trial;
use machinist_boot_loader::grub::{self, ArgumentFault};
use machinist_ignition::{KernelArgument, KernelCommandLine};

const BEGIN: &str = "### BEGIN machinist ###";
const END: &str = "### END machinist ###";

/// The function with which Ubuntu's grub.cfg repeats a boot that failed without an initial RAM disk.
const REPEATS_FAILED_BOOT: &str = "initrdfail";

/// What makes such an entry boot with the initial RAM disk, and once: a trial that fails is not repeated.
const WITH_INITRD: &str = "\n\tset initrdfail=1\n\tunset partuuid";

/// What makes GRUB enter the first entry of the menu if the kernel of the trial is missing or damaged. Without it, GRUB
/// waits for a keystroke.
const FALLBACK: &str = "\n\tset fallback=0";

/// The text of an entry like the one with this body, with other arguments. `None` if the body has not exactly one
/// command `linux` on a line of its own, or two where the first one has the initial RAM disk.
pub(super) fn entry(
    id: &str,
    body: &str,
    kernel: &str,
    arguments: &KernelCommandLine,
) -> Result<Option<String>, (KernelArgument, ArgumentFault)> {
    let words = grub::script_words(&with_trial(arguments, id))?;
    let is_linux = |line: &&str| {
        let name = line.split_whitespace().next();
        name.is_some_and(|name| ["linux", "linux16", "linuxefi"].contains(&name))
    };
    let repeats = body.lines().any(|line| line.trim() == REPEATS_FAILED_BOOT);
    let lines = body.lines().filter(is_linux).count();
    if lines != 1 + usize::from(repeats) {
        return Ok(None);
    }
    let mut text = format!("menuentry 'machinist {id}' --unrestricted --id {id} {{{FALLBACK}");
    if repeats {
        text.push_str(WITH_INITRD);
    }
    for line in body.split_inclusive('\n') {
        match is_linux(&line) {
            true => {
                let command = line.split_whitespace().next().unwrap_or("linux");
                text.push_str(&format!("\t{command} {kernel} {words}\n"));
            }
            false => text.push_str(line),
        }
    }
    Ok(Some(text + "}\n"))
}

/// The text of custom.cfg with this entry in machinist's block, or without a block. Everything else stays.
pub(in crate::os) fn with_block(custom: &str, entry: Option<&str>) -> String {
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

/// Whether machinist's block begins and does not end.
pub(super) fn has_broken_block(custom: &str) -> bool {
    let mut blocks = custom.split(BEGIN).skip(1);
    blocks.any(|rest| !rest.contains(END))
}

/// The identifier of the entry in machinist's block.
pub(super) fn staged_id(custom: &str) -> Option<&str> {
    let (_, block) = custom.split_once(BEGIN)?;
    let (block, _) = block.split_once(END)?;
    let (_, id) = block.split_once("--id ")?;
    id.split_whitespace().next()
}
