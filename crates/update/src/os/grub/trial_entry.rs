//! The menu entry of a staged deployment, in a block of custom.cfg that is machinist's.

use crate::os::trial_arguments::with_trial;
use machinist_boot_loader::grub::{self, ArgumentFault};
use machinist_ignition::{KernelArgument, KernelCommandLine};

const BEGIN: &str = "### BEGIN machinist ###";
const END: &str = "### END machinist ###";

/// The text of an entry like the one with this body, with other arguments. `None` if the body has not exactly one
/// command `linux` on a line of its own.
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
    let mut own = body.lines().filter(is_linux);
    let (Some(line), None) = (own.next(), own.next()) else {
        return Ok(None);
    };
    let command = line.split_whitespace().next().unwrap_or("linux");
    let body = body.replacen(line, &format!("\t{command} {kernel} {words}"), 1);
    Ok(Some(format!(
        "menuentry 'machinist {id}' --unrestricted --id {id} {{{body}}}\n"
    )))
}

/// The text of custom.cfg with this entry in machinist's block, or without a block. Everything else stays.
pub(super) fn with_block(custom: &str, entry: Option<&str>) -> String {
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
