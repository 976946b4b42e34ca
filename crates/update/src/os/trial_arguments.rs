//! The kernel arguments of a trial: those of its deployment, and those that make a failed boot restart.

use machinist_base::digest::Digest;
use machinist_ignition::{KernelArgument, KernelCommandLine};

/// The name of an argument that marks the kernel of a trial. The kernel ignores it, because it has no module
/// `machinist`.
const TRIAL_MARK: &str = "machinist.trial";

/// Makes a boot that fails restart the machine, so that the boot loader enters the previous deployment: a kernel that
/// panics, initramfs-tools without a root file system (both by `panic`), dracut, and a systemd that cannot go on, such as
/// one in the initial RAM disk that finds no usable init (systemd(1): it would freeze).
const RESTART_ARGUMENTS: &str = "panic=10 rd.shell=0 rd.emergency=reboot systemd.crash_reboot=1";

const ID_PREFIX: &str = "machinist-";
const ID_DIGITS: usize = 16;

/// The identifier of a deployment: its arguments, however they are spelled. The kernel is none of its parts, because
/// the distribution may install another one at any time.
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
    let mut all = arguments.clone();
    all.append(&KernelCommandLine::parse(&format!(
        "{RESTART_ARGUMENTS} {TRIAL_MARK}={id}"
    )));
    all
}

/// The identifier of a deployment of OSTree: its commit and its arguments.
pub(super) fn id_with_commit(commit: &str, arguments: &KernelCommandLine) -> String {
    id_of_text(&format!("{commit}{}", text_of(arguments)))
}

/// Whether these are the arguments of a trial of this commit. Other programs copy arguments of the running deployment to
/// their own ones, whose commit or arguments differ.
pub(super) fn is_trial_of(commit: &str, arguments: &KernelCommandLine) -> bool {
    let mark = arguments.iter().rfind(|one| one.name() == TRIAL_MARK);
    let id = mark.and_then(|mark| mark.value());
    id.is_some_and(|id| id == id_with_commit(commit, &without_trial(arguments).0))
}

/// The arguments of a deployment, and whether they were those of a trial.
pub(super) fn without_trial(arguments: &KernelCommandLine) -> (KernelCommandLine, bool) {
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
