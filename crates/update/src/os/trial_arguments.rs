//! The kernel arguments of a trial: those of its deployment, and those that make a failed boot restart.

use std::collections::BTreeSet;

use machinist_base::digest::Digest;
use machinist_ignition::{KernelArgument, KernelCommandLine};
use machinist_plan::TRIAL_ARGUMENT;

/// Makes a boot that fails restart the machine, so that the boot loader enters the previous deployment: a kernel that
/// panics, initramfs-tools without a root file system (both by `panic`), dracut, and a systemd that cannot go on, such as
/// one in the initial RAM disk that finds no usable init (systemd(1): it would freeze). dracut with systemd waits for the
/// root device for ever without `rd.timeout` (dracut.cmdline(7)), which must be longer than `rd.retry`, 180 s.
const RESTART_ARGUMENTS: &str =
    "panic=10 rd.shell=0 rd.emergency=reboot systemd.crash_reboot=1 rd.timeout=300";

/// The restart argument that a host may set itself, for slow devices; its value wins.
const DEVICE_TIMEOUT: &str = "rd.timeout";

/// Length of what a boot loader adds at most: `BOOT_IMAGE=` and libostree's `ostree=` contain a digest each.
const LOADER_BYTES: usize = 256;

/// Begins an index in the mark, `machinist.trial=ID[.INDEX]…`: that of a restart argument that was not added, because the
/// deployment has it itself.
const OMITTED: char = '.';

const ID_PREFIX: &str = "machinist-";
const ID_DIGITS: usize = 16;

/// The identifier of a deployment: a digest of its arguments as the kernel reads them. It does not depend on the kernel,
/// because the distribution may install another one at any time.
pub(super) fn id_of(arguments: &KernelCommandLine) -> String {
    id_of_text(&text_of(arguments))
}

fn text_of(arguments: &KernelCommandLine) -> String {
    let part = |argument: &KernelArgument| {
        let part = (argument.is_for_init(), argument.name(), argument.value());
        format!("{part:?}")
    };
    arguments.iter().map(part).collect()
}

fn id_of_text(text: &str) -> String {
    let digest = Digest::of(text.as_bytes());
    let digest = digest.to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    format!("{ID_PREFIX}{}", hex.get(..ID_DIGITS).unwrap_or_default())
}

/// Whether this is an identifier of [`id_of`].
pub(super) fn is_trial_id(text: &str) -> bool {
    let hex = text.strip_prefix(ID_PREFIX).unwrap_or_default();
    hex.len() == ID_DIGITS && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The arguments of a trial: those of its deployment, and those of the trial itself.
pub(super) fn with_trial(arguments: &KernelCommandLine, id: &str) -> KernelCommandLine {
    assembled(arguments, id, |one| has_own_timeout(arguments, one))
}

fn has_own_timeout(arguments: &KernelCommandLine, one: &KernelArgument) -> bool {
    one.name() == DEVICE_TIMEOUT && arguments.iter().any(|own| own.name() == DEVICE_TIMEOUT)
}

/// The arguments, those of a trial except the omitted ones, and the mark.
fn assembled(
    arguments: &KernelCommandLine,
    id: &str,
    is_omitted: impl Fn(&KernelArgument) -> bool,
) -> KernelCommandLine {
    let mut all = arguments.clone();
    let mut mark = format!("{TRIAL_ARGUMENT}={id}");
    let restart = KernelCommandLine::parse(RESTART_ARGUMENTS);
    for (at, one) in restart.iter().enumerate() {
        match is_omitted(one) {
            true => mark.push_str(&format!("{OMITTED}{at}")),
            false => all.append(&std::iter::once(one.clone()).collect()),
        }
    }
    all.append(&KernelCommandLine::parse(&mark));
    all
}

/// Whether a kernel would truncate the command line of a trial with these arguments.
pub(super) fn is_too_long(trial: &KernelCommandLine) -> bool {
    trial.is_too_long_with(LOADER_BYTES)
}

/// Like [`with_trial`], for libostree, whose versions differ in whether they keep several equal arguments: an argument
/// of a trial that the deployment has itself is not added again. Fails with such an argument if a later one of the
/// deployment overrides it.
pub(super) fn with_trial_once(
    arguments: &KernelCommandLine,
    id: &str,
) -> Result<KernelCommandLine, KernelArgument> {
    let restart = KernelCommandLine::parse(RESTART_ARGUMENTS);
    let mut added = restart
        .iter()
        .filter(|one| !has_own_timeout(arguments, one));
    let is_overridden = |one: &&KernelArgument| {
        let last = arguments.iter().rfind(|own| own.name() == one.name());
        arguments.contains(one) && last != Some(*one)
    };
    match added.find(is_overridden) {
        Some(one) => Err(one.clone()),
        None => Ok(assembled(arguments, id, |one| {
            arguments.contains(one) || has_own_timeout(arguments, one)
        })),
    }
}

/// The identifier of a deployment of OSTree: its commit and its arguments.
pub(super) fn id_with_commit(commit: &str, arguments: &KernelCommandLine) -> String {
    id_of_text(&format!("{commit}{}", text_of(arguments)))
}

/// Whether these are the arguments of a trial of this commit. Other programs copy arguments of the running deployment to
/// their own ones, whose commit or arguments differ.
pub(super) fn is_trial_of(commit: &str, arguments: &KernelCommandLine) -> bool {
    let id = trial_id(arguments);
    id.is_some_and(|id| id == id_with_commit(commit, &without_trial(arguments).0))
}

/// The identifier in the mark of a trial.
pub(super) fn trial_id(arguments: &KernelCommandLine) -> Option<&str> {
    let mark = arguments.iter().rfind(|one| one.name() == TRIAL_ARGUMENT)?;
    mark.value()?.split(OMITTED).next()
}

/// The arguments of a deployment, and whether they were those of a trial.
pub(super) fn without_trial(arguments: &KernelCommandLine) -> (KernelCommandLine, bool) {
    let mark = arguments.iter().rfind(|one| one.name() == TRIAL_ARGUMENT);
    let Some(mark) = mark else {
        return (arguments.clone(), false);
    };
    let mut all = arguments.clone();
    all.remove_last(mark);
    let omitted = mark.value().unwrap_or_default().split(OMITTED).skip(1);
    let omitted: BTreeSet<usize> = omitted.filter_map(|at| at.parse().ok()).collect();
    let restart = KernelCommandLine::parse(RESTART_ARGUMENTS);
    let added = restart.iter().enumerate();
    for (_, one) in added.filter(|(at, _)| !omitted.contains(at)) {
        all.remove_last(one);
    }
    (all, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_trial_that_the_deployment_has_are_not_added_again() {
        for text in [
            "root=LABEL=root quiet",
            "panic=10 quiet",
            "rd.shell=0 quiet systemd.crash_reboot=1",
            "panic=5 quiet",
            "panic=0 panic=10",
            "rd.timeout=900 quiet",
        ] {
            let own = KernelCommandLine::parse(text);
            let all = with_trial_once(&own, &id_with_commit("c", &own)).unwrap();
            let repeated = all.iter().filter(|one| one.as_str() == "panic=10");
            assert_eq!(repeated.count(), 1, "{all}");
            let timeouts = all.iter().filter(|one| one.name() == DEVICE_TIMEOUT);
            assert_eq!(timeouts.count(), 1, "{all}");
            assert_eq!(without_trial(&all), (own.clone(), true), "{all}");
            assert_eq!(without_trial(&with_trial(&own, "machinist-0")), (own, true));
            assert!(is_trial_of("c", &all), "{all}");
            assert!(!is_trial_of("d", &all), "{all}");
        }
        // libostree would drop the first one, or the second one would win.
        let own = KernelCommandLine::parse("panic=10 panic=0");
        let refused = with_trial_once(&own, "machinist-0");
        assert_eq!(refused.unwrap_err().as_str(), "panic=10");
    }
}
