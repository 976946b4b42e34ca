//! The menu entry of a staged deployment, in a block of custom.cfg that is machinist's.

use machinist_base::digest::Digest;
use machinist_boot_loader::grub::{self, ArgumentFault};
use machinist_ignition::{KernelArgument, KernelCommandLine};

const BEGIN: &str = "### BEGIN machinist ###";
const END: &str = "### END machinist ###";

/// The name of an argument that marks the kernel of a trial. The kernel ignores it, because it has no module
/// `machinist`.
const TRIAL_MARK: &str = "machinist.trial";

/// Makes a boot that fails restart the machine, so that the boot loader enters the previous deployment: a kernel that
/// panics, initramfs-tools without a root file system (both by `panic`), and dracut.
const RESTART_ARGUMENTS: &str = "panic=10 rd.shell=0 rd.emergency=reboot";

/// The identifier of a deployment: its arguments, however they are spelled. The kernel is none of its parts, because
/// the distribution may install another one at any time.
pub(super) fn id_of(arguments: &KernelCommandLine) -> String {
    let mut text = String::new();
    for argument in arguments.iter() {
        let part = (argument.is_for_init(), argument.name(), argument.value());
        text.push_str(&format!("{part:?}"));
    }
    let digest = Digest::of(text.as_bytes());
    let digest = digest.to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    format!("machinist-{}", hex.get(..16).unwrap_or_default())
}

/// The arguments of a trial: those of its deployment, and those of the trial itself.
pub(super) fn with_trial(arguments: &KernelCommandLine, id: &str) -> KernelCommandLine {
    let mut all = arguments.clone();
    all.append(&KernelCommandLine::parse(&format!(
        "{RESTART_ARGUMENTS} {TRIAL_MARK}={id}"
    )));
    all
}

/// The arguments of a deployment, and whether they were those of a trial.
pub(in crate::os) fn without_trial(arguments: &KernelCommandLine) -> (KernelCommandLine, bool) {
    let mark = arguments.iter().rfind(|one| one.name() == TRIAL_MARK);
    let Some(mark) = mark else {
        return (arguments.clone(), false);
    };
    let mut all = arguments.clone();
    all.remove_last(mark);
    for own in KernelCommandLine::parse(RESTART_ARGUMENTS).iter() {
        all.remove_last(own);
    }
    (all, true)
}

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
