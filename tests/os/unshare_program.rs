//! unshare on the files of a machine: it changes files and starts programs where a file system is mounted read-only.

use std::{fs, io, sync::Mutex};

use super::ostree_files::Files;

pub(crate) const UNSHARE: &str = "/usr/bin/unshare";

/// The program, and its arguments so far.
#[derive(Default)]
pub(crate) struct UnshareProgram {
    pub(crate) calls: Mutex<Vec<Vec<String>>>,
}

impl UnshareProgram {
    /// The program that runs after unshare has remounted /sysroot, or else the same one.
    pub(super) fn started<'a, 'b>(
        &self,
        program: &'a str,
        arguments: &'b [&'a str],
    ) -> (&'a str, &'b [&'a str]) {
        if program != UNSHARE {
            return (program, arguments);
        }
        let call = arguments.iter().map(|word| (*word).to_owned());
        self.calls.lock().unwrap().push(call.collect());
        match arguments {
            [_, _, _, _, _, script, _, "/sysroot", program, rest @ ..] => {
                assert!(script.starts_with("mount -o remount,rw \"$1\" && shift && exec"));
                (*program, rest)
            }
            _ => (UNSHARE, arguments),
        }
    }
}

/// Replaces or removes a file as the scripts do, with an operation between the steps.
pub(super) fn change_file(
    files: &Files,
    arguments: &[&str],
    operation: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    match arguments {
        [source, file] => {
            let text = files.read(source);
            let new = format!("{file}.machinist");
            files.write(&new, &text);
            operation()?;
            fs::rename(files.path(&new), files.path(file))?;
            files.write(&format!("run/by-unshare{file}"), text);
            operation()
        }
        [file] => fs::remove_file(files.path(file)),
        other => panic!("{other:?}"),
    }
}
