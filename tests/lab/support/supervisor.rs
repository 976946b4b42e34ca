//! Keeps one machine's nspawn running: its power button and its reset line.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroup::Group;
use super::{lab, wait};

/// nspawn's exit code when the machine requested a reboot.
const REBOOT: i32 = 133;

/// A machine that has booted never ends this soon.
const STILLBORN: Duration = Duration::from_secs(3);

/// How long a machine that ends immediately is started again: the kernel removes a dead network
/// namespace asynchronously, on a busy host many seconds after its last process.
const PATIENCE: Duration = Duration::from_secs(60);

/// The properties of a machine that nspawn needs.
#[derive(Debug, Clone)]
pub struct Hardware {
    pub name: String,
    pub root: PathBuf,
    pub console: PathBuf,
    pub binds: Vec<String>,
}

/// The thread that starts nspawn, and restarts it whenever the machine reboots.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    power: bool,
    gone: bool,
    nspawn: Option<u32>,
    last_exit: Option<ExitStatus>,
    reboots: Vec<jiff::Timestamp>,
}

impl Supervisor {
    pub fn new(hardware: Hardware) -> Self {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || supervise(&hardware, &shared)
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    pub fn power_on(&self) {
        self.lock().power = true;
        self.shared.1.notify_all();
    }

    /// Kills the machine's processes, as a power loss does; returns when all have ended.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.power = false;
        // The signal is sent under the lock: the thread clears the id before another process can
        // have it, except in the instant between wait and lock, when the id refers to no process.
        if let Some(nspawn) = state.nspawn {
            if let Some(init) = init_of(nspawn) {
                let _ = kill(init, Signal::SIGKILL);
            }
            let _ = kill(pid(nspawn), Signal::SIGKILL);
        }
        drop(state);
        self.wait_off();
    }

    /// Waits until no process of the machine runs and returns its last exit status.
    pub fn wait_off(&self) -> Option<ExitStatus> {
        wait::until("the machine to be off", wait::seconds(120), || {
            let state = self.lock();
            !state.power && state.nspawn.is_none()
        });
        self.lock().last_exit
    }

    /// The host's pid of the machine's first process, while there is one.
    pub fn init(&self) -> Option<Pid> {
        self.lock().nspawn.and_then(init_of)
    }

    /// When the machine has gone down for a reboot that it had requested.
    pub fn reboots(&self) -> Vec<jiff::Timestamp> {
        self.lock().reboots.clone()
    }

    /// Lets the machine run on without supervision.
    pub fn abandon(&mut self) {
        drop(self.thread.take());
    }

    /// Cuts the machine's power permanently.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.kill();
        self.lock().gone = true;
        self.shared.1.notify_all();
        let _ = thread.join();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn supervise(hardware: &Hardware, (state, changed): &(Mutex<State>, Condvar)) {
    let mut stillborn = None;
    loop {
        let mut now = state.lock().unwrap();
        now = changed.wait_while(now, |s| !s.power && !s.gone).unwrap();
        if now.gone {
            return;
        }
        let group = Group::new(&hardware.name);
        let mut child = nspawn(hardware, &group).spawn().expect("sh starts");
        now.nspawn = Some(child.id());
        drop(now);
        let begun = Instant::now();
        let status = child.wait().expect("a child can be waited for");
        group.remove();
        remove_link(&hardware.name);
        let mut now = state.lock().unwrap();
        now.nspawn = None;
        now.last_exit = Some(status);
        if status.code() == Some(REBOOT) {
            now.reboots.push(jiff::Timestamp::now());
        }
        // The link of a killed run may still exist; nspawn then exits immediately.
        let at_once = status.code() == Some(1) && begun.elapsed() < STILLBORN;
        let first = at_once.then(|| stillborn.unwrap_or(begun));
        stillborn = first;
        let once_more = first.is_some_and(|first| first.elapsed() < PATIENCE);
        if status.code() != Some(REBOOT) && !once_more {
            now.power = false;
        }
        drop(now);
        if once_more {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn nspawn(hardware: &Hardware, group: &Group) -> Command {
    let mut command = group.command(Path::new("systemd-nspawn"));
    command
        .args([
            "-q",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--network-bridge=lab0",
        ])
        .args([
            "--capability=all",
            "--system-call-filter=@keyring @known bpf",
        ])
        .args([
            "--resolv-conf=off",
            "--bind=/dev/kmsg",
            "--bind=/dev/fuse",
            "--bind=/dev/net/tun",
        ])
        .arg(format!("--machine=lab-{}", hardware.name))
        .arg(format!(
            "--bind-ro={}:/usr/local/bin/kube",
            lab().kubelet.display()
        ))
        .args(&hardware.binds)
        .arg("-D")
        .arg(&hardware.root)
        .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "1")
        .stdin(Stdio::null())
        .stdout(console(&hardware.console))
        .stderr(console(&hardware.console))
        // ^C is for the test; the processes it leaves behind are stopped by group.
        .process_group(0);
    command
}

/// Removes the machine's link from the bridge: an nspawn that was killed leaves that to the kernel.
/// Usually the link has been removed already, so an error is ignored.
fn remove_link(name: &str) {
    let _ = Command::new("nsenter")
        .arg(format!("--net={}", super::NETWORK))
        .args(["--", "ip", "link", "delete"])
        .arg(format!("vb-lab-{name}"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn console(path: &Path) -> File {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .expect("a console log")
}

/// The child of nspawn that is process 1 in a namespace of its own.
fn init_of(nspawn: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    children.split_whitespace().find_map(|child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let ids = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        let ids: Vec<_> = ids.split_whitespace().collect();
        (ids.len() > 1 && ids.last() == Some(&"1"))
            .then(|| child.parse().map(Pid::from_raw).ok())?
    })
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).expect("the kernel's ids are positive"))
}
