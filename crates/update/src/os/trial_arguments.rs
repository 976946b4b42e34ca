//! The kernel arguments of a trial: those of its deployment, and those that make a failed boot restart.

use machinist_base::digest::Digest;
use machinist_ignition::KernelCommandLine;

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
    let mut text = String::new();
    for argument in arguments.iter() {
        let part = (argument.is_for_init(), argument.name(), argument.value());
        text.push_str(&format!("{part:?}"));
    }
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

/// The identifier of the deployment of a trial with these arguments; `None` if they are not those of a trial.
pub(super) fn trial_id(arguments: &KernelCommandLine) -> Option<&str> {
    let mark = arguments.iter().rfind(|one| one.name() == TRIAL_MARK);
    mark.map(|mark| mark.value().unwrap_or_default())
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
