//! /etc/kernel/cmdline: the arguments of the entries that kernel-install writes for later kernels.

use super::{
    MAX_COMMAND_LINE_BYTES,
    host_detection::is_there,
    kept_arguments::{KeptArguments, joined},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{KernelArgument, KernelCommandLine};
use machinist_rootfs::{Root, RootError};

const PATH: &str = "/etc/kernel/cmdline";

/// The file that kernel-install reads without the former.
const VENDOR_PATH: &str = "/usr/lib/kernel/cmdline";

/// Exists if machinist has created the file.
const CREATED: &str = "/var/lib/machinist/kernel-cmdline-created";

/// Why the file cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelCmdlineError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("{0} is not UTF-8 text")]
    NotUtf8(String),
}

/// The arguments in a file; `None` without the file.
fn arguments_in(root: &Root, file: &str) -> Result<Option<KernelCommandLine>, KernelCmdlineError> {
    let Ok(path) = AbsPath::new(file) else {
        return Ok(None);
    };
    match root.read(&path, MAX_COMMAND_LINE_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| KernelCmdlineError::NotUtf8(file.to_owned()))?;
            Ok(Some(KernelCommandLine::parse(&text)))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces machinist's arguments in the file by those of the kept deployment. Without the file, it is created if
/// kernel-install would read that of the vendor; otherwise kernel-install takes the arguments of the running kernel.
pub(super) fn follow(root: &Root, kept: &KeptArguments) -> Result<(), KernelCmdlineError> {
    let Ok(path) = AbsPath::new(PATH) else {
        return Ok(());
    };
    if let Some(current) = arguments_in(root, PATH)? {
        let Some(wanted) = following(&current, kept) else {
            return Ok(());
        };
        let mode = root.stat(&path)?.map_or(0o644, |stat| stat.mode & 0o777);
        return Ok(root.replace(&path, format!("{wanted}\n").as_bytes(), mode)?);
    }
    match arguments_in(root, VENDOR_PATH)? {
        Some(vendor) if kept.current.iter().next().is_some() => {
            create(root, &joined(&vendor, &kept.current).to_string())
        }
        _ => Ok(()),
    }
}

/// Creates the file with these arguments before a trial, because kernel-install would take those of the trial from the
/// running kernel.
pub(super) fn create_if_missing(root: &Root, options: &str) -> Result<(), KernelCmdlineError> {
    match is_there(root, PATH) || is_there(root, VENDOR_PATH) {
        true => Ok(()),
        false => create(root, options),
    }
}

/// Creates the file, and marks it.
fn create(root: &Root, options: &str) -> Result<(), KernelCmdlineError> {
    let (Ok(path), Ok(created)) = (AbsPath::new(PATH), AbsPath::new(CREATED)) else {
        return Ok(());
    };
    for (file, mode) in [(&created, 0o700), (&path, 0o755)] {
        if let Some(directory) = file.parent() {
            root.make_dirs(&directory, mode)?;
        }
    }
    root.replace(&created, b"", 0o600)?;
    Ok(root.replace(&path, format!("{options}\n").as_bytes(), 0o644)?)
}

/// Removes the file if machinist has created it and it has exactly the arguments of the host, or those of the vendor's
/// file. Not in a boot that began as a trial: see [`create_if_missing`].
pub(super) fn remove_created(
    root: &Root,
    kept: &KeptArguments,
    host: &KernelCommandLine,
) -> Result<(), KernelCmdlineError> {
    let (Ok(path), Ok(created)) = (AbsPath::new(PATH), AbsPath::new(CREATED)) else {
        return Ok(());
    };
    if kept.current.iter().next().is_some() || !is_there(root, CREATED) {
        return Ok(());
    }
    let vendor = arguments_in(root, VENDOR_PATH)?;
    if arguments_in(root, PATH)?.as_ref() == Some(vendor.as_ref().unwrap_or(host)) {
        root.remove_file(&path)?;
    }
    Ok(root.remove_file(&created)?)
}

/// Whether later kernels would get the argument in another form: kernel-install of systemd reads the file through
/// `tr --squeeze-repeats`, which leaves one blank of several blanks and tabs, also within quotes.
pub(super) fn is_squeezed(argument: &KernelArgument) -> bool {
    argument.as_str().contains('\t') || argument.as_str().contains("  ")
}

/// The arguments that the file must have; `None` if it has them.
fn following(current: &KernelCommandLine, kept: &KeptArguments) -> Option<KernelCommandLine> {
    if *current == joined(&kept.host, &kept.current) {
        return None;
    }
    let previous = kept.previous.clone().unwrap_or_default();
    let mut lists = [&kept.current, &previous];
    // Of two lists with which the file ends, the longer one is there.
    lists.sort_by_key(|own| std::cmp::Reverse(own.iter().len()));
    let ends = lists.into_iter().find_map(|own| without_end(current, own));
    let mut wanted = ends.unwrap_or_else(|| without_surplus(current, kept, &previous));
    wanted.append(&kept.current);
    (wanted != *current).then_some(wanted)
}

/// The arguments without these at the end; `None` if they do not end with them, or if there are none.
fn without_end(all: &KernelCommandLine, own: &KernelCommandLine) -> Option<KernelCommandLine> {
    let mut host = all.clone();
    for one in own.iter().rev() {
        host.remove_last(one);
    }
    let has_some = own.iter().next().is_some();
    (has_some && joined(&host, own) == *all).then_some(host)
}

/// Removes the arguments of machinist where an administrator has appended others: each as often as `all` has it more
/// often than the host.
fn without_surplus(
    all: &KernelCommandLine,
    kept: &KeptArguments,
    previous: &KernelCommandLine,
) -> KernelCommandLine {
    let mut host = all.clone();
    for own in kept.current.iter().rev().chain(previous.iter().rev()) {
        let count = |list: &KernelCommandLine| list.iter().filter(|one| *one == own).count();
        if count(&host) > count(&kept.host) {
            host.remove_last(own);
        }
    }
    host
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
            ("root=x nosmt c=1", "", "nosmt", Some("root=x c=1")),
            ("root=x nosmt c=1", "nosmt", "", Some("root=x c=1 nosmt")),
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
