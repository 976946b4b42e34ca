//! /etc/kernel/cmdline: the arguments of the entries that kernel-install writes for later kernels.

use super::{MAX_COMMAND_LINE_BYTES, kept_arguments::KeptArguments};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::{Root, RootError};

const PATH: &str = "/etc/kernel/cmdline";

/// Why the file cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelCmdlineError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("{PATH} is not UTF-8 text")]
    NotUtf8,
}

/// Replaces machinist's arguments in the file by those of the kept deployment. Without the file, kernel-install takes
/// the arguments of the running kernel.
pub(super) fn follow(root: &Root, kept: &KeptArguments) -> Result<(), KernelCmdlineError> {
    let Ok(path) = AbsPath::new(PATH) else {
        return Ok(());
    };
    let text = match root.read(&path, MAX_COMMAND_LINE_BYTES) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| KernelCmdlineError::NotUtf8)?,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let current = KernelCommandLine::parse(&text);
    let Some(wanted) = following(&current, kept) else {
        return Ok(());
    };
    let mode = root.stat(&path)?.map_or(0o644, |stat| stat.mode & 0o777);
    Ok(root.replace(&path, format!("{wanted}\n").as_bytes(), mode)?)
}

/// The arguments that the file must have; `None` if it has them.
fn following(current: &KernelCommandLine, kept: &KeptArguments) -> Option<KernelCommandLine> {
    if ends_with(current, &kept.current) {
        return None;
    }
    let mut wanted = current.clone();
    if let Some(previous) = kept.previous.as_ref().filter(|own| ends_with(current, own)) {
        for own in previous.iter().rev() {
            wanted.remove_last(own);
        }
    }
    wanted.append(&kept.current);
    Some(wanted)
}

fn ends_with(all: &KernelCommandLine, own: &KernelCommandLine) -> bool {
    let mut host = all.clone();
    for one in own.iter().rev() {
        host.remove_last(one);
    }
    host.append(own);
    host == *all
}
