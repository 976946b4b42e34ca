//! One machine: a systemd of its own on a fresh copy of the base image, which really reboots.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::builder::Builder;
use super::digest::{self, Tree};
use super::supervisor::Supervisor;
use super::{builder, lab, machine_files, wait};

/// From power-on to a manager without jobs; measured: 1 to 2 s on two cores.
const BOOT: Duration = wait::seconds(60);
/// No command a test runs inside takes longer, and a hanging one must not block the lab.
const COMMAND: &str = "180";

/// A machine that runs from its boot until it is dropped.
#[derive(Debug)]
pub struct Machine {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) dir: PathBuf,
    pub(super) supervisor: Supervisor,
    /// From power-on to ready, at the last time the harness waited for it.
    pub boot_time: Duration,
}

impl Machine {
    /// A fresh machine of this name, booted.
    pub fn boot(name: &str) -> Self {
        Self::build(name).boot()
    }

    /// A fresh machine that can be given files before its first boot.
    pub fn build(name: &str) -> Builder {
        Builder::new(name)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on the lab's bridge.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The host's path of its root: stable while it is on, off or killed, but without what the
    /// machine has mounted, such as `/run`.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Switches it on and waits until its manager has nothing left to start.
    pub fn power_on(&mut self) {
        let start = Instant::now();
        self.power_on_without_waiting();
        self.wait_ready(BOOT);
        self.boot_time = start.elapsed();
    }

    /// Switches it on and returns immediately, for tests that observe the boot.
    pub fn power_on_without_waiting(&self) {
        self.supervisor.power_on();
    }

    /// Shuts it down through logind and waits until it is off.
    pub fn power_off(&self) {
        self.logind("PowerOff");
        let status = self.wait_off();
        assert!(
            status.is_some_and(|s| s.success()),
            "{} did not power off: {status:?}",
            self.name
        );
    }

    /// Waits until it is off and returns how nspawn ended.
    pub fn wait_off(&self) -> Option<std::process::ExitStatus> {
        self.supervisor.wait_off()
    }

    /// A power loss: every process is killed, and the machine stays off.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Reboots through logind, waits for the next boot to be ready and returns its boot id.
    pub fn reboot(&mut self) -> String {
        let (old, start) = (self.boot_id(), Instant::now());
        self.logind("Reboot");
        let new = self.wait_new_boot(&old, BOOT);
        self.boot_time = start.elapsed();
        new
    }

    /// Waits for a boot other than `old` to be ready, regardless of who requested it; returns its
    /// boot id.
    pub fn wait_new_boot(&self, old: &str, deadline: Duration) -> String {
        let what = format!("{} to boot again after {old}", self.name);
        let new = wait::value(&what, deadline, || {
            self.current_boot_id().filter(|id| id != old)
        });
        self.wait_ready(deadline);
        new
    }

    /// Waits until the manager inside has nothing left to start; failed units do not matter here.
    pub fn wait_ready(&self, deadline: Duration) {
        self.wait("the manager to finish starting", deadline, || {
            let state = self.try_exec(&["systemctl", "is-system-running"]).ok();
            let state = state.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
            matches!(
                state.as_deref(),
                Some("running" | "degraded" | "maintenance")
            )
        });
    }

    /// The id of this boot.
    pub fn boot_id(&self) -> String {
        self.current_boot_id()
            .unwrap_or_else(|| panic!("{} is not running", self.name))
    }

    /// The id of this boot, or `None` before the machine has one.
    pub fn current_boot_id(&self) -> Option<String> {
        let file = "/proc/sys/kernel/random/boot_id";
        let id = self.try_read(file)?;
        self.supervisor.init()?;
        // Until nspawn has mounted the machine's own, the file shows the host's.
        let host = std::fs::read(file).expect("the host's boot id");
        (id != host).then(|| String::from_utf8_lossy(&id).trim().to_owned())
    }

    /// When it has gone down for a reboot that it had requested, since it was created.
    pub fn reboots(&self) -> Vec<jiff::Timestamp> {
        self.supervisor.reboots()
    }

    /// Runs a command inside and returns what it printed; a failure ends the test.
    pub fn exec(&self, command: &[&str]) -> String {
        let output = self
            .try_exec(command)
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let name = &self.name;
        assert!(
            output.status.success(),
            "{command:?} in {name}: {}\n{out}{err}",
            output.status
        );
        out
    }

    /// Runs a shell line inside and returns what it printed; a failure ends the test.
    pub fn sh(&self, line: &str) -> String {
        self.exec(&["sh", "-c", line])
    }

    /// Runs a command inside; an error when the machine is off.
    pub fn try_exec(&self, command: &[&str]) -> std::io::Result<Output> {
        self.command(command)?.output()
    }

    /// A command to be run inside, for tests that interact with it; it is limited to 180 s.
    pub fn command(&self, command: &[&str]) -> std::io::Result<Command> {
        let init = self
            .supervisor
            .init()
            .ok_or_else(|| std::io::Error::other("it is off"))?;
        let mut enter = Command::new("timeout");
        enter
            .args([
                "--kill-after=1",
                COMMAND,
                "nsenter",
                "--all",
                "--no-fork",
                "--target",
                &init.to_string(),
            ])
            .args([
                "--",
                // Forks into the machine and waits. nsenter would do that itself, but it stops when
                // its child is stopped, as a shutdown does with every process. Nothing outside
                // would resume it, and the machine would not end before its child was reaped.
                "sh",
                "-c",
                "\"$@\"; exit $?",
                "sh",
                "env",
                "--ignore-environment",
                "HOME=/root",
                "LANG=C.UTF-8",
                "TERM=dumb",
            ])
            .arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .args(command)
            .stdin(Stdio::null());
        Ok(enter)
    }

    /// Replaces a file, whether the machine is on or off; its parents are created and its mode is
    /// kept (0644 when new).
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        machine_files::write(&self.live_root(), path, content.as_ref(), None)
            .unwrap_or_else(|e| panic!("cannot write {path} of {}: {e}", self.name));
    }

    /// The content of a file, whether the machine is on or off.
    pub fn read(&self, path: &str) -> Vec<u8> {
        machine_files::read(&self.live_root(), path)
            .unwrap_or_else(|e| panic!("cannot read {path} of {}: {e}", self.name))
    }

    /// The content of a file, when there is one.
    pub fn try_read(&self, path: &str) -> Option<Vec<u8>> {
        machine_files::read(&self.live_root(), path).ok()
    }

    /// Polls until `condition` holds; a failure message contains the name of the machine.
    pub fn wait(
        &self,
        what: &str,
        deadline: Duration,
        condition: impl FnMut() -> bool,
    ) -> Duration {
        wait::until(&format!("{what} ({})", self.name), deadline, condition)
    }

    /// A digest of everything at and below `paths`, read from outside.
    pub fn tree_digest(&self, paths: &[&str], excludes: &[&str]) -> String {
        digest::digest(&self.tree(paths, excludes))
    }

    /// The tree that [`Machine::tree_digest`] digests, for [`digest::differences`].
    pub fn tree(&self, paths: &[&str], excludes: &[&str]) -> Tree {
        digest::tree(&self.root(), paths, excludes)
    }

    fn logind(&self, method: &str) {
        let manager = "org.freedesktop.login1.Manager";
        let path = "/org/freedesktop/login1";
        let login1 = "org.freedesktop.login1";
        let call = [
            "busctl", "call", login1, path, manager, method, "b", "false",
        ];
        let output = self
            .try_exec(&call)
            .unwrap_or_else(|e| panic!("{call:?}: {e}"));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        // The bus may end before it has passed on the answer.
        let is_closed = ["Connection reset by peer", "Remote peer disconnected"]
            .iter()
            .any(|text| error.contains(text));
        assert!(
            output.status.success() || is_closed,
            "{call:?} in {}: {error}",
            self.name
        );
    }

    /// The root as the machine sees it now, with its mounts while it is on.
    fn live_root(&self) -> PathBuf {
        match self.supervisor.init() {
            Some(init) => {
                let root = PathBuf::from(format!("/proc/{init}/root"));
                let host = std::fs::metadata("/").expect("a root");
                let own = std::fs::metadata(&root).map(|own| (own.dev(), own.ino()));
                assert_ne!(
                    own.ok(),
                    Some((host.dev(), host.ino())),
                    "that is the host's root"
                );
                root
            }
            None => self.root(),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_logs();
        }
        if lab().keep {
            self.supervisor.abandon();
            if let Some(init) = self.supervisor.init() {
                println!("lab: {} stays up: nsenter --all --target {init}", self.name);
            }
            return;
        }
        self.supervisor.stop();
        builder::remove_copy(&self.dir);
    }
}
