//! Plans the kernel arguments that a config adds and removes.

use std::collections::BTreeSet;

use super::{ChangeKind, OsChange, OsPart, origin};
use crate::{MachineFacts, OsCapabilities};
use machinist_base::reason::Reason;
use machinist_ignition::{
    EntryKind, KernelArgument, KernelCommandLine, MachineConfig, Refusal, kernel_argument_fault,
};

/// The name of an argument that marks the kernel of a trial. The kernel ignores it, because it has no module
/// `machinist`.
pub const TRIAL_ARGUMENT: &str = "machinist.trial";

/// File names of shells. As pid 1, they start no service and do not exit.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "zsh", "busybox"];

/// Returns whether a shell runs instead of systemd, or systemd starts nothing but a shell, on a root file system that is
/// mounted read-only (systemd(1)).
fn starts_only_shell(argument: &KernelArgument) -> bool {
    match (argument.name(), argument.value()) {
        ("emergency", None) | ("systemd.unit", Some("emergency.target")) => true,
        ("init" | "rdinit", Some(program)) => {
            let file_name = program.rsplit('/').next();
            file_name.is_some_and(|name| SHELLS.contains(&name))
        }
        _ => argument.as_str() == "-b",
    }
}

/// Why an argument must not be in a config, although it can be passed to a kernel; none if it may.
fn fault(argument: &KernelArgument) -> Option<&'static str> {
    match argument {
        one if one.name() == TRIAL_ARGUMENT => {
            Some("marks the boot of a trial, and only machinist sets it")
        }
        one if starts_only_shell(one) => {
            Some("starts a shell and no service, so that no boot could be verified")
        }
        _ => None,
    }
}

/// Arguments in the config must be on the running command line; those that leave the config must
/// not be.
pub(super) fn changes(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Vec<OsChange> {
    let running = &observed.kernel_arguments;
    let [before, after] = [from, to].map(|config| KernelCommandLine::of(&config.kernel_arguments));
    let change = |argument: &KernelArgument, change| {
        OsChange::new(OsPart::KernelArguments, argument.as_str(), change)
    };
    let missing = missing(&after, running, capabilities).into_iter();
    let mut changes: Vec<OsChange> = missing.map(|one| change(one, ChangeKind::Create)).collect();
    let kept: BTreeSet<_> = after.iter().collect();
    let running: BTreeSet<_> = running.iter().collect();
    let leaving: BTreeSet<_> = before.iter().filter(|one| !kept.contains(one)).collect();
    let leaving = leaving.intersection(&running);
    changes.extend(leaving.map(|one| OsChange {
        of_host: !observed.os.own_arguments.contains(one),
        ..change(one, ChangeKind::Remove)
    }));
    changes
}

fn missing<'a>(
    wanted: &'a KernelCommandLine,
    running: &KernelCommandLine,
    capabilities: OsCapabilities,
) -> Vec<&'a KernelArgument> {
    match capabilities.repeated_arguments {
        true => wanted.missing_with_repeats_from(running),
        false => wanted.missing_from(running),
    }
}

/// The arguments to remove from the deployment, and those to append.
///
/// All of machinist's arguments are removed and appended again, because their order counts.
pub(super) fn edits(
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> (KernelCommandLine, KernelCommandLine) {
    let running = &observed.kernel_arguments;
    let own = observed.os.own_arguments.iter();
    let own = own.filter(|one| running.contains(one)).cloned();
    let remove_arguments: KernelCommandLine = own.collect();
    let mut of_host = running.clone();
    for one in remove_arguments.iter() {
        of_host.remove_last(one);
    }
    let after = KernelCommandLine::of(&to.kernel_arguments);
    let append_arguments = missing(&after, &of_host, capabilities);
    let append_arguments = append_arguments.into_iter().cloned().collect();
    (remove_arguments, append_arguments)
}

/// Refuses arguments that are new in this config and that cannot be passed to a kernel, or must not be.
pub(super) fn refusals(
    [from, to]: [&MachineConfig; 2],
    running: &KernelCommandLine,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |argument: &str, message: String| {
        let at = origin(to, EntryKind::KernelArgument, argument);
        refusals.push(Refusal::new(Reason::ValueInvalid, message).at(&at));
    };
    let known: BTreeSet<_> = from.kernel_arguments.iter().collect();
    let new = to
        .kernel_arguments
        .iter()
        .filter(|text| !known.contains(text));
    for text in new {
        if let Some(fault) = kernel_argument_fault(text) {
            let first = KernelCommandLine::parse(text);
            let first = first.iter().next().map(KernelArgument::as_str);
            refuse(
                first.unwrap_or_default(),
                format!("the kernel argument {text:?} {fault}"),
            );
        }
        let new = KernelCommandLine::parse(text);
        let unusable = new.iter().find_map(|one| Some((one.as_str(), fault(one)?)));
        if let Some((word, fault)) = unusable {
            refuse(word, format!("the kernel argument {word} {fault}"));
        }
    }
    let after = KernelCommandLine::of(&to.kernel_arguments);
    let missing = after.missing_from(running);
    let last = missing.last().map(|one| one.as_str().to_owned());
    let mut all = running.clone();
    all.append(&missing.into_iter().cloned().collect());
    if let Some(last) = last.filter(|_| all.is_too_long()) {
        let longest = KernelCommandLine::longest();
        refuse(
            &last,
            format!(
                "the kernel command line, including arguments of the boot loader, has more than \
                 {longest} bytes and would be truncated by the kernel"
            ),
        );
    }
    refusals
}
