//! The scripts with which unshare changes files where /boot or /sysroot is mounted read-only, as a shell runs them.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
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
const NEW: &str = "boot/grub 2/custom file.cfg.machinist";
const FORMER: &str = "boot/grub 2/custom file.cfg.machinist-former";

/// The arguments of the shell, up to the script and its name.
type Script = Vec<String>;

/// The script for /boot, or for /sysroot, that has this text.
async fn script(mount: &str, text: &str) -> Script {
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
    let mut calls = calls.iter();
    let call = calls.find(|call| call[7] == mount && call[5].contains(text));
    let (namespace, shell) = call.unwrap()[..7].split_at(3);
    assert_eq!(namespace, ["--mount", "--propagation", "private"]);
    shell.to_vec()
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

    /// Runs a script with paths below the directory.
    fn runs(&self, script: &Script, paths: &[&str]) -> bool {
        let paths: Vec<PathBuf> = paths.iter().map(|path| self.path(path)).collect();
        self.run(script, &paths)
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
async fn the_script_copies_a_file_which_gets_the_mode_of_the_former() {
    let copy = script("/boot", "cp ").await;
    for (before, after) in [(None, 0o640), (Some(0o600), 0o600), (Some(0o755), 0o755)] {
        let sandbox = Sandbox::new();
        if let Some(mode) = before {
            sandbox.write(FILE, "old\n", mode);
        }
        // An earlier run was interrupted.
        sandbox.write(NEW, "more than a half", 0o644);
        assert!(sandbox.runs(&copy, &["new text", NEW, FILE]));
        assert_eq!(sandbox.read(NEW).as_deref(), Some("new\n"));
        assert_eq!(sandbox.mode(NEW), after, "{before:?}");
        let old = before.map(|_| "old\n");
        assert_eq!(sandbox.read(FILE).as_deref(), old);
        sandbox.assert_mounted();
    }
    for program in ["mount", "cp", "chmod", "sync"] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, "old\n", 0o600);
        sandbox.install(program, "echo No space left on device >&2\nexit 1\n");
        assert!(!sandbox.runs(&copy, &["new text", NEW, FILE]), "{program}");
    }
    assert!(!Sandbox::new().runs(&copy, &["missing", NEW, FILE]));
}

#[tokio::test]
async fn the_script_moves_a_file_and_the_former_one_keeps_its_inode() {
    let move_over = script("/boot", "mv ").await;
    for has_links in [true, false] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, "old\n", 0o600);
        sandbox.write(NEW, "new\n", 0o600);
        // An earlier run was interrupted.
        sandbox.write(FORMER, "older", 0o644);
        if !has_links {
            sandbox.install("ln", "exit 1\n");
        }
        assert!(sandbox.runs(&move_over, &[NEW, FILE, FORMER]));
        assert_eq!(sandbox.read(FILE).as_deref(), Some("new\n"));
        let former = has_links.then_some("old\n");
        assert_eq!(sandbox.read(FORMER).as_deref(), former);
        assert_eq!(sandbox.read(NEW), None);
        sandbox.assert_mounted();
    }
    let sandbox = Sandbox::new();
    sandbox.write(NEW, "new\n", 0o600);
    assert!(sandbox.runs(&move_over, &[NEW, FILE, FORMER]));
    assert_eq!(names_in(&sandbox.path("boot/grub 2")), ["custom file.cfg"]);
    for program in ["mount", "mv", "sync"] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, "old\n", 0o600);
        sandbox.write(NEW, "new\n", 0o600);
        sandbox.install(program, "exit 1\n");
        assert!(!sandbox.runs(&move_over, &[NEW, FILE, FORMER]), "{program}");
        // After `mv` it is there, and may not be on the disk yet.
        let left = if program == "sync" { "new\n" } else { "old\n" };
        assert_eq!(sandbox.read(FILE).as_deref(), Some(left), "{program}");
    }
}

#[tokio::test]
async fn the_script_creates_an_empty_file() {
    let create = script("/boot", ": >").await;
    let sandbox = Sandbox::new();
    assert!(sandbox.runs(&create, &[FILE]));
    assert_eq!(sandbox.read(FILE).as_deref(), Some(""));
    sandbox.assert_mounted();
    assert!(!sandbox.runs(&create, &["boot/missing/file"]));
}

#[tokio::test]
async fn the_script_removes_a_file_that_may_be_missing() {
    let remove = script(
        "/boot",
        "set -e\nmount -o remount,rw \"$1\"\nrm -f \"$2\"\n",
    )
    .await;
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
    let run = script("/sysroot", "exec").await;
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

#[tokio::test]
async fn the_script_gives_a_link_a_second_name() {
    let name = script("/boot", "ln -P ").await;
    let sandbox = Sandbox::new();
    let [link, second] = ["boot/grub 2/loader", "boot/grub 2/loader.machinist"];
    let [link, second] = [link, second].map(|path| sandbox.path(path));
    // A name of a former link to an existing directory, and of one to a missing one.
    for (former, target) in [("..", "missing"), ("missing", "..")] {
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        let _ = fs::remove_file(&second);
        symlink(former, &second).unwrap();
        assert!(sandbox.run(&name, &[&link, &second]));
        let [link, second] = [&link, &second].map(|path| fs::symlink_metadata(path).unwrap());
        assert_eq!(link.ino(), second.ino());
    }
    assert_eq!(names_in(&sandbox.path("boot")), ["grub 2"]);
    sandbox.install("ln", "exit 1\n");
    assert!(!sandbox.run(&name, &[&link, &second]));
    assert!(link.is_symlink());
}
