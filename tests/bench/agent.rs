//! The agent as a process, on a root of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::binary;

/// The longest wait here.
const MINUTE: Duration = Duration::from_secs(60);

/// An agent process; dropping it kills it.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Agent {
    /// Starts it on `dir/root` with the configs of `source`, and returns when it reports `READY=1`,
    /// with the time that took.
    pub(crate) fn ready(dir: &Path, source: &Path) -> (Self, Duration) {
        let path = dir.join("notify");
        let _ = fs::remove_file(&path);
        let ears = UnixDatagram::bind(&path).unwrap();
        ears.set_read_timeout(Some(MINUTE)).unwrap();
        let start = Instant::now();
        let agent = Self::start(&dir.join("root"), source, Some(&path));
        let mut buffer = [0; 4096];
        loop {
            let length = ears.recv(&mut buffer).unwrap();
            if String::from_utf8_lossy(&buffer[..length]).contains("READY=1") {
                return (agent, start.elapsed());
            }
        }
    }

    /// Starts it, as the unit does.
    pub(crate) fn start(root: &Path, source: &Path, notify: Option<&Path>) -> Self {
        Self::start_with_stdout(root, source, notify, Stdio::null())
    }

    /// Starts it with this stdout, to which it prints its plans.
    pub(crate) fn start_with_stdout(
        root: &Path,
        source: &Path,
        notify: Option<&Path>,
        stdout: Stdio,
    ) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["run", "--root"])
            .arg(root)
            .arg(format!("--source=dir:{}", source.display()))
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "65536")
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped());
        if let Some(path) = notify {
            command.env("NOTIFY_SOCKET", path);
        }
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (teller, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if teller.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until its log has a line with all of `words`; returns when that was.
    pub(crate) fn wait_for_log(&self, words: &[&str]) -> Instant {
        let deadline = Instant::now() + MINUTE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let (when, line) = line.unwrap_or_else(|_| panic!("log message not found: {words:?}"));
            if words.iter().all(|word| line.contains(word)) {
                return when;
            }
        }
    }

    /// From SIGTERM to the end of the process.
    pub(crate) fn stop(&mut self) -> Duration {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        let start = Instant::now();
        kill(pid, Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
        start.elapsed()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn read(&self, what: &str) -> String {
        fs::read_to_string(self.proc(what)).unwrap()
    }

    /// The path of a file in `/proc` for this process.
    pub(crate) fn proc(&self, what: &str) -> String {
        format!("/proc/{}/{what}", self.child.id())
    }

    /// A size in `/proc/…/status`, in MiB.
    pub(crate) fn mebibytes(&self, key: &str) -> f64 {
        number(&self.read("status"), key) / 1024.0
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line of a file in /proc, such as `VmRSS:  1234 kB`, as its number.
pub(crate) fn number(text: &str, key: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
