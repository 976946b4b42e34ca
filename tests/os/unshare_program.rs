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

/// Changes files as the script does, with an operation between its steps.
pub(super) fn change_file(
    files: &Files,
    (script, arguments): (&str, &[&str]),
    operation: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    assert!(script.contains("mount -o remount,rw \"$1\""), "{script}");
    let paths: Vec<_> = arguments.iter().map(|path| files.path(path)).collect();
    match (program_of(script), &*paths) {
        ("ln", [link, name]) => {
            let _ = fs::remove_file(name);
            operation()?;
            // Like `ln -P`.
            fs::hard_link(link, name)
        }
        ("cp", [source, new, _]) => {
            fs::copy(source, new)?;
            operation()
        }
        ("mv", [new, file, former]) => {
            let _ = fs::remove_file(former);
            if file.exists() {
                fs::hard_link(file, former)?;
            }
            operation()?;
            let text = files.read(arguments[0]);
            files.write(&format!("run/by-unshare{}", arguments[1]), text);
            fs::rename(new, file)?;
            operation()
        }
        (":", [file]) => {
            operation()?;
            fs::write(file, "")
        }
        ("rm", [file]) => fs::remove_file(file),
        other => panic!("{other:?}"),
    }
}

/// The program by which the scripts differ.
pub(super) fn program_of(script: &str) -> &str {
    let programs = ["cp ", "mv ", "ln -P ", ": >", "rm "];
    let program = programs.iter().find(|program| script.contains(**program));
    program.unwrap().split(' ').next().unwrap()
}
