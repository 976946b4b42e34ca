//! What the agent costs while nothing happens, and how soon it is there.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, DirEntry},
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{binary, figure, median, milliseconds, place, rounds};

/// After the first work is done, before idleness is measured: threads that did it end after ten seconds.
const CALM: Duration = Duration::from_secs(15);
const MINUTE: Duration = Duration::from_secs(60);

/// An agent on the example machine; dropping it ends it.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    /// Starts, and returns when it says `READY=1`, with the time that took.
    fn ready(dir: &Path) -> (Self, Duration) {
        let path = dir.join("notify");
        let _ = fs::remove_file(&path);
        let ears = UnixDatagram::bind(&path).unwrap();
        ears.set_read_timeout(Some(MINUTE)).unwrap();
        let mut command = Command::new(binary());
        command
            .args(["run", "--root"])
            .arg(dir.join("root"))
            .arg(format!(
                "--source=dir:{}/examples/machine",
                env!("CARGO_MANIFEST_DIR")
            ))
            .env("NOTIFY_SOCKET", &path)
            // As the unit starts it.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let start = Instant::now();
        let agent = Self(command.spawn().unwrap());
        let mut buffer = [0; 4096];
        loop {
            let length = ears.recv(&mut buffer).unwrap();
            if String::from_utf8_lossy(&buffer[..length]).contains("READY=1") {
                return (agent, start.elapsed());
            }
        }
    }

    fn read(&self, what: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{what}", self.0.id())).unwrap()
    }

    /// A line of a file in /proc, such as `VmRSS:  1234 kB`, as its number.
    fn number(text: &str, key: &str) -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// How often each of its threads has gone to sleep and was woken so far.
    fn wakes(&self) -> BTreeMap<OsString, f64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let wakes = |task: DirEntry| {
            // A thread may end between the listing and the reading.
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let count = Self::number(&status, "voluntary_ctxt_switches:");
            Some((task.file_name(), count))
        };
        tasks.filter_map(|task| wakes(task.unwrap())).collect()
    }
}

pub(crate) fn measure() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let (first, _) = Agent::ready(dir.path());
    thread::sleep(CALM);
    drop(first);

    println!("\nidle, on the example machine");
    let starts: Vec<_> = (0..rounds(10))
        .map(|_| Agent::ready(dir.path()).1)
        .collect();
    let start = milliseconds(median(&starts));
    figure(
        "start → READY=1, nothing to do (median)",
        start,
        "ms",
        "≤ 100",
        start <= 100.0,
    );

    let (agent, _) = Agent::ready(dir.path());
    thread::sleep(CALM);
    let before = agent.wakes();
    thread::sleep(MINUTE);
    let since = |(thread, count): (&OsString, &f64)| count - before.get(thread).unwrap_or(&0.0);
    let woken: f64 = agent.wakes().iter().map(since).sum();
    figure(
        "wake-ups of all threads in a minute",
        woken,
        "",
        "≤ 6",
        woken <= 6.0,
    );
    let status = agent.read("status");
    let resident = Agent::number(&status, "VmRSS:") / 1024.0;
    figure(
        "resident memory (VmRSS)",
        resident,
        "MiB",
        "≤ 12",
        resident <= 12.0,
    );
    let anonymous = Agent::number(&status, "RssAnon:") / 1024.0;
    let proportional = Agent::number(&agent.read("smaps_rollup"), "Pss:") / 1024.0;
    println!(
        "  of it anonymous {anonymous:.1} MiB; Pss {proportional:.1} MiB; {} threads",
        Agent::number(&status, "Threads:")
    );
}
