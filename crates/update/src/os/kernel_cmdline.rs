//! /etc/kernel/cmdline: the arguments of the entries that kernel-install writes for later kernels.

use super::{
    MAX_COMMAND_LINE_BYTES,
    kept_arguments::{KeptArguments, joined},
};
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
    if *current == joined(&kept.host, &kept.current) {
        return None;
    }
    // Of two lists with which the file ends, the longer one is there: the other one may be empty.
    let has_current = ends_with(current, &kept.current);
    let previous = kept.previous.as_ref().filter(|own| {
        let is_longer = own.iter().len() > kept.current.iter().len();
        ends_with(current, own) && (is_longer || !has_current)
    });
    if has_current && previous.is_none() {
        return None;
    }
    let mut wanted = current.clone();
    for own in previous.into_iter().flat_map(|own| own.iter().rev()) {
        wanted.remove_last(own);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_gets_the_kept_arguments_in_place_of_the_previous_ones() {
        for (file, current, previous, expected) in [
            ("root=x", "nosmt", "", Some("root=x nosmt")),
            ("root=x nosmt", "", "nosmt", Some("root=x")),
            ("root=x", "", "nosmt", None),
            ("root=x nosmt", "nosmt", "", None),
            ("root=x a=1 b=1", "b=1", "a=1 b=1", Some("root=x b=1")),
            ("root=x b=1", "b=1", "a=1 b=1", None),
            ("root=x b=1", "a=1 b=1", "b=1", Some("root=x a=1 b=1")),
            ("root=x a=1 b=1", "a=1 b=1", "b=1", None),
            // An administrator has appended one.
            ("root=x nosmt c=1", "", "nosmt", None),
            (
                "root=x $tuned_params nosmt",
                "",
                "nosmt",
                Some("root=x $tuned_params"),
            ),
        ] {
            let kept = KeptArguments {
                host: KernelCommandLine::parse("root=x"),
                current: KernelCommandLine::parse(current),
                previous: Some(KernelCommandLine::parse(previous)),
                earlier: None,
            };
            let found = following(&KernelCommandLine::parse(file), &kept);
            let expected = expected.map(KernelCommandLine::parse);
            assert_eq!(found, expected, "{file}: {current:?} after {previous:?}");
        }
    }
}
