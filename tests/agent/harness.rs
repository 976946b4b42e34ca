//! A machine in a temporary directory, an agent on it, and ways to wait for what they do.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use machinist_testkit::WAIT_TIMEOUT;
use serde_json::Value;

/// The poll interval.
const STEP: Duration = Duration::from_millis(2);

/// Polls until there is a value.
pub(crate) fn value<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ask() {
            return value;
        }
        assert!(
            start.elapsed() < WAIT_TIMEOUT,
            "timed out after {WAIT_TIMEOUT:?} waiting for {what}"
        );
        thread::sleep(STEP);
    }
}

/// Polls until the condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    value(what, || holds().then_some(()));
}

/// A root that does not exist yet, and a source next to it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// With an empty source.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("source")).unwrap();
        Self { dir }
    }

    /// With the example machine as its source.
    pub(crate) fn with_examples() -> Self {
        let place = Self::new();
        for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/machine")).unwrap()
        {
            let entry = entry.unwrap();
            let text = fs::read(entry.path()).unwrap();
            fs::write(place.source().join(entry.file_name()), text).unwrap();
        }
        place
    }

    /// With one manifest that has one file.
    pub(crate) fn with_file(path: &str, content: &str) -> Self {
        let place = Self::new();
        fs::write(
            place.source().join("10-one.yaml"),
            manifest("10-one", path, content),
        )
        .unwrap();
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path().join("root")
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path().join("source")
    }

    /// A path of the machine.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    /// `--source` with its value.
    pub(crate) fn source_flag(&self) -> String {
        format!("dir:{}", self.source().display())
    }

    /// A command on this root.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
        command
            .env_clear()
            .args(arguments)
            .arg("--root")
            .arg(self.root())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn machinist(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command with the `--source` flag.
    pub(crate) fn with_source(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.args(["--source", &self.source_flag()]);
        command.output().unwrap()
    }

    /// Starts `run` on the source.
    pub(crate) fn start(&self) -> Agent {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, more: &[&str]) -> Agent {
        let mut command = self.command(&["run", "--source", &self.source_flag()]);
        command.args(more);
        Agent::spawn(command, self.root())
    }

    /// Starts `run`, and waits until the source is applied.
    pub(crate) fn settled(&self) -> Agent {
        let agent = self.start();
        agent.wait_for_log("is in place and verified");
        agent.rests();
        agent
    }

    /// Every object below the root except the agent's own state: mode, and content or target.
    pub(crate) fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut seen = BTreeMap::new();
        let mut todo = vec![self.root()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let short = path.strip_prefix(self.root()).unwrap().to_owned();
                if short.starts_with("var/lib/machinist") || short.starts_with("run/machinist") {
                    continue;
                }
                let about = fs::symlink_metadata(&path).unwrap();
                let what = if about.is_symlink() {
                    fs::read_link(&path).unwrap().display().to_string()
                } else if about.is_dir() {
                    todo.push(path);
                    String::new()
                } else {
                    String::from_utf8(fs::read(&path).unwrap()).unwrap()
                };
                seen.insert(short, format!("{:o} {what}", about.mode()));
            }
        }
        seen
    }
}

/// A MachineConfig of one file. The content must be letters and digits, which need no escape in a
/// data URL.
pub(crate) fn manifest(name: &str, path: &str, content: &str) -> String {
    manifest_of(name, &[(path.to_owned(), content.to_owned())])
}

/// A MachineConfig of several files.
pub(crate) fn manifest_of(name: &str, files: &[(String, String)]) -> String {
    let files = files.iter().map(|(path, content)| {
        format!(
            "      - path: {path}\n        mode: 0644\n        contents:\n          source: data:,{content}\n"
        )
    });
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: {name}\nspec:\n  config:\n    ignition:\n      version: 3.4.0\n    storage:\n      files:\n{}",
        files.collect::<String>()
    )
}

type Lines = Arc<Mutex<Vec<String>>>;

/// A running agent. Dropping it kills it.
pub(crate) struct Agent {
    child: Child,
    root: PathBuf,
    pub(crate) log: Lines,
    pub(crate) page: Lines,
    kept: Option<OwnedFd>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            eprint!("{}", thread_states(self.child.id()));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            for line in self.log.lock().unwrap().iter() {
                eprintln!("agent: {}", line);
            }
        }
    }
}

/// What the threads of a process wait for, to find out why a test has waited in vain.
fn thread_states(process: u32) -> String {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let mut states = String::new();
    for thread in threads.into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let [name, call, stack] = ["comm", "syscall", "stack"].map(read);
        states.push_str(&format!("thread {}: {call}{stack}\n", name.trim()));
    }
    states
}

fn listen(pipe: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let received = Arc::clone(&lines);
    thread::spawn(move || {
        for text in BufReader::new(pipe).lines().map_while(Result::ok) {
            received.lock().unwrap().push(text);
        }
    });
    lines
}

/// Copies the program in a process of its own. A test that forks meanwhile would inherit a file that this process writes,
/// and nothing can execute it until that child has closed it (ETXTBSY).
pub(crate) fn copy_program(to: &Path) {
    let mut copy = Command::new("cp");
    copy.arg(env!("CARGO_BIN_EXE_machinist")).arg(to);
    assert!(copy.status().unwrap().success());
}

impl Agent {
    pub(crate) fn spawn(mut command: Command, root: PathBuf) -> Self {
        command.stdout(Stdio::piped());
        Self::spawn_with_stdout(command, root)
    }

    /// Starts the agent with the stdout that the command has.
    pub(crate) fn spawn_with_stdout(mut command: Command, root: PathBuf) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = listen(child.stderr.take().unwrap());
        let page = child.stdout.take().map(listen).unwrap_or_default();
        Self {
            child,
            root,
            log,
            page,
            kept: None,
        }
    }

    /// Keeps a file descriptor open as long as the agent.
    pub(crate) fn keep(&mut self, end: OwnedFd) {
        self.kept = Some(end);
    }

    /// Lines of the log that contain `words`.
    pub(crate) fn lines(&self, words: &str) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let fits = log.iter().filter(|line| line.contains(words));
        fits.cloned().collect()
    }

    /// Waits for a line of the log that contains `words`.
    pub(crate) fn wait_for_log(&self, words: &str) -> String {
        self.wait_for_nth_log(words, 1)
    }

    /// Waits for the nth such line.
    pub(crate) fn wait_for_nth_log(&self, words: &str, nth: usize) -> String {
        let what = format!("line {nth} in the log with {words:?}");
        value(&what, || self.lines(words).get(nth - 1).cloned())
    }

    /// Everything written to stdout so far.
    pub(crate) fn printed(&self) -> String {
        let page = self.page.lock().unwrap();
        page.iter().map(|line| line.clone() + "\n").collect()
    }

    /// The address of probes and metrics.
    pub(crate) fn address(&self) -> String {
        let line = self.wait_for_log("serving probes and metrics at http://");
        line.rsplit("http://").next().unwrap().to_owned()
    }

    /// The code and the body of a probe's response.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.address()).unwrap();
        exchange(stream, path).unwrap()
    }

    /// The status document; null while no agent answers.
    pub(crate) fn status(&self) -> Value {
        let socket = self.root.join("run/machinist/agent.sock");
        let asked = UnixStream::connect(socket).and_then(|stream| exchange(stream, "/status"));
        asked
            .ok()
            .and_then(|(_, body)| serde_json::from_str(&body).ok())
            .unwrap_or(Value::Null)
    }

    /// Waits until no update is in progress: the desired config is the current one and verified.
    pub(crate) fn rests(&self) {
        until("rest", || {
            let status = self.status();
            let config = &status["config"];
            let there = config["current"] == config["desired"] && config["current"] != "";
            there && status["phase"] == "Idle" && status["ready"] == true
        });
    }

    /// The agent's peak memory, in bytes.
    pub(crate) fn peak_memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<usize>().unwrap() << 10
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(self.pid(), signal).unwrap();
    }

    /// Stops every thread of the agent until SIGCONT.
    pub(crate) fn pause(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        let stopped = nix::sys::wait::WaitPidFlag::WUNTRACED;
        let status = nix::sys::wait::waitpid(self.pid(), Some(stopped)).unwrap();
        let is_stopped = matches!(status, nix::sys::wait::WaitStatus::Stopped(..));
        assert!(is_stopped, "{status:?}");
    }

    /// Waits for the agent's exit.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        value("the agent's end", || child.try_wait().unwrap())
    }
}

fn exchange(mut stream: impl Read + Write, path: &str) -> std::io::Result<(u16, String)> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: test\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let code = head.split(' ').nth(1).unwrap_or_default();
    Ok((code.parse().unwrap_or_default(), body.to_owned()))
}

/// The exit code; panics if a signal ended the process.
pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
