//! The scripts with which unshare changes files where /boot or /sysroot is mounted read-only, as a shell runs them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use machinist_update::os::{DesiredDeployment, OsProvider as _};

use super::{
    contract::{Host as _, STEP_TIMEOUT, image, wanted},
    ostree_files::Layout,
    ostree_host::OstreeHost,
};

/// A file whose name needs quotes.
const FILE: &str = "boot/grub 2/custom file.cfg";

/// The arguments of the shell, up to the script and its name.
type Script = Vec<String>;

/// The scripts that replace a file, remove one, and run a program.
async fn scripts() -> [Script; 3] {
    let host = OstreeHost::with_layout(Layout::RpmOstree);
    host.publishes(&image("new"), "2.0");
    let wanted = DesiredDeployment {
        image: Some(image("new")),
        ..wanted("nosmt", "")
    };
    let agent = host.agent();
    agent.fetch(&wanted, STEP_TIMEOUT).await.unwrap();
    let staged = agent.stage(&wanted, STEP_TIMEOUT).await;
    agent.unlock(&staged.unwrap().unwrap()).await.unwrap();
    agent.lock().await.unwrap();
    let calls = host.unshare.calls.lock().unwrap();
    // The mount point, and how many words follow it at least.
    [("/boot", 2..3), ("/boot", 1..2), ("/sysroot", 2..99)].map(|(mount, rest)| {
        let mut calls = calls.iter();
        let call = calls.find(|call| call[7] == mount && rest.contains(&(call.len() - 8)));
        let (namespace, shell) = call.unwrap()[..7].split_at(3);
        assert_eq!(namespace, ["--mount", "--propagation", "private"]);
        shell.to_vec()
    })
}

/// A directory with a file system, and with programs that hide those of the host. `mount` writes its arguments to a
/// file.
struct Sandbox(tempfile::TempDir);

impl Sandbox {
    fn new() -> Self {
        let sandbox = Self(tempfile::tempdir().unwrap());
        for directory in ["bin", "boot/grub 2"] {
            fs::create_dir_all(sandbox.path(directory)).unwrap();
        }
        sandbox.install("mount", "echo \"$@\" >>\"${0%/bin/mount}/mounted\"\n");
        sandbox.write("new text", "new\n", 0o640);
        sandbox
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str, mode: u32) {
        fs::write(self.path(path), text).unwrap();
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn install(&self, name: &str, script: &str) {
        let script = format!("#!/bin/sh\n{script}");
        self.write(&format!("bin/{name}"), &script, 0o755);
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.path(path)).unwrap().permissions().mode() & 0o7777
    }

    /// Runs a script as unshare does, and returns whether it was successful.
    fn run<S: AsRef<std::ffi::OsStr>>(&self, script: &Script, rest: &[S]) -> bool {
        let mut command = Command::new(&script[0]);
        command.args(&script[1..]).arg(self.path("boot")).args(rest);
        let host = std::env::var("PATH").unwrap();
        let programs = self.path("bin").display().to_string();
        command.env("PATH", format!("{programs}:{host}"));
        command.output().unwrap().status.success()
    }

    /// Replaces one file by another, both below the directory.
    fn replaces(&self, script: &Script, source: &str, file: &str) -> bool {
        self.run(script, &[self.path(source), self.path(file)])
    }

    fn assert_mounted(&self) {
        let expected = format!("-o remount,rw {}\n", self.path("boot").display());
        assert_eq!(self.read("mounted"), Some(expected));
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[tokio::test]
async fn the_script_replaces_a_file_which_keeps_its_mode() {
    let [replace, _, _] = scripts().await;
    for (before, after) in [(None, 0o640), (Some(0o600), 0o600), (Some(0o755), 0o755)] {
        let sandbox = Sandbox::new();
        if let Some(mode) = before {
            sandbox.write(FILE, "old\n", mode);
        }
        // An earlier run was interrupted.
        sandbox.write(&format!("{FILE}.machinist"), "half", 0o644);
        assert!(sandbox.replaces(&replace, "new text", FILE));
        assert_eq!(sandbox.read(FILE).as_deref(), Some("new\n"));
        assert_eq!(sandbox.mode(FILE), after, "{before:?}");
        let directory = sandbox.path("boot/grub 2");
        assert_eq!(names_in(&directory), ["custom file.cfg"]);
        assert!(sandbox.read("new text").is_some());
        sandbox.assert_mounted();
    }
}

#[tokio::test]
async fn a_script_that_cannot_replace_a_file_leaves_it() {
    let [replace, _, _] = scripts().await;
    for program in ["mount", "cp", "chmod", "sync", "mv"] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, "old\n", 0o600);
        sandbox.install(program, "echo No space left on device >&2\nexit 1\n");
        assert!(!sandbox.replaces(&replace, "new text", FILE), "{program}");
        assert_eq!(sandbox.read(FILE).as_deref(), Some("old\n"), "{program}");
        assert_eq!(sandbox.mode(FILE), 0o600, "{program}");
    }
    // It is there, and may not be on the disk yet.
    let sandbox = Sandbox::new();
    sandbox.install("sync", "test \"$1\" != -f\n");
    assert!(!sandbox.replaces(&replace, "new text", FILE));
    let sandbox = Sandbox::new();
    let file = "boot/missing/file";
    assert!(!sandbox.replaces(&replace, "new text", file));
    assert!(!sandbox.replaces(&replace, "missing", FILE));
    assert_eq!(sandbox.read(FILE), None);
    assert_eq!(names_in(&sandbox.path("boot")), ["grub 2"]);
}

#[tokio::test]
async fn the_script_removes_a_file_that_may_be_missing() {
    let [_, remove, _] = scripts().await;
    let sandbox = Sandbox::new();
    sandbox.write(FILE, "", 0o644);
    sandbox.write("boot/grub 2/custom", "other", 0o644);
    let file = [sandbox.path(FILE)];
    assert!(sandbox.run(&remove, &file));
    sandbox.assert_mounted();
    assert_eq!(names_in(&sandbox.path("boot/grub 2")), ["custom"]);
    assert!(sandbox.run(&remove, &file));
    assert!(sandbox.run(&remove, &[sandbox.path("boot/missing/file")]));
    for program in ["mount", "rm", "sync"] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, "", 0o644);
        sandbox.install(program, "exit 1\n");
        assert!(!sandbox.run(&remove, &[sandbox.path(FILE)]), "{program}");
        assert_eq!(sandbox.read(FILE).is_none(), program == "sync");
    }
}

#[tokio::test]
async fn the_script_runs_a_program_once_the_file_system_is_writable() {
    let [_, _, run] = scripts().await;
    let sandbox = Sandbox::new();
    let record = "printf '<%s>' \"$@\" >\"${0%/bin/*}/ran\"\n";
    sandbox.install("a program", record);
    let program = sandbox.path("bin/a program").display().to_string();
    let arguments = [&program, "a  b", "", "$x '\"*", "--"];
    assert!(sandbox.run(&run, &arguments));
    sandbox.assert_mounted();
    let expected = Some("<a  b><><$x '\"*><-->".to_owned());
    assert_eq!(sandbox.read("ran"), expected);
    let missing = sandbox.path("bin/missing");
    assert!(!sandbox.run(&run, &[missing]));
    sandbox.install("a program", "exit 3\n");
    assert!(!sandbox.run(&run, &arguments));
    // It does not run on the read-only file system.
    fs::remove_file(sandbox.path("ran")).unwrap();
    sandbox.install("a program", record);
    sandbox.install("mount", "exit 32\n");
    assert!(!sandbox.run(&run, &arguments));
    assert_eq!(sandbox.read("ran"), None);
}
