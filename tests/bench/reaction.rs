//! How soon the agent follows its source, ends after a signal, and refuses a malicious text.

use std::{
    fs,
    io::Write as _,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use machinist_ignition::ConfigRules;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::{agent::Agent, binary, figure, median, milliseconds, place, rounds};

const MINUTE: Duration = Duration::from_secs(60);
const FILE: &str = "etc/followed";

fn save(source: &Path, content: &str) {
    let text = format!(
        "variant: fcos\nversion: 1.6.0\nstorage: {{files: [{{path: /{FILE}, contents: {{inline: {content}}}}}]}}\n"
    );
    fs::write(source.join("10-one.bu"), text).unwrap();
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < MINUTE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// From the save of a config to the file on the machine.
pub(crate) fn follow() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let (root, source) = (dir.path().join("root"), dir.path().join("source"));
    fs::create_dir_all(&source).unwrap();
    save(&source, "start");
    let agent = Agent::start(&root, &source, None);
    agent.wait_for_log(&["is in place and verified"]);
    let mut times = Vec::new();
    for round in 0..rounds(20) {
        let content = format!("round{round}");
        let start = Instant::now();
        save(&source, &content);
        until("the file", || {
            fs::read_to_string(root.join(FILE)).is_ok_and(|text| text == content)
        });
        times.push(start.elapsed());
        agent.wait_for_log(&["is in place and verified"]);
    }
    println!("\na config is saved, median of {}", times.len());
    let took = milliseconds(median(&times));
    let what = "config saved → file on the machine";
    figure(what, took, "ms", "≤ 300", took <= 300.0);
}

/// From SIGTERM to the end of the process.
pub(crate) fn stop() {
    let (mut idle, mut stuck) = (Vec::new(), Vec::new());
    for _ in 0..rounds(5) {
        let dir = tempfile::tempdir_in(place()).unwrap();
        let (root, source) = (dir.path().join("root"), dir.path().join("source"));
        fs::create_dir_all(&source).unwrap();
        save(&source, "start");
        let mut agent = Agent::start(&root, &source, None);
        agent.wait_for_log(&["is in place and verified"]);
        // A client that never finishes its request does not delay the end.
        let mut client = UnixStream::connect(root.join("run/machinist/agent.sock")).unwrap();
        client.write_all(b"GET /sta").unwrap();
        idle.push(agent.stop());
        save(&source, "other");
        stuck.push(stop_stuck(&root, &source));
    }
    println!("\nSIGTERM, the longest of {}", idle.len());
    for (what, times) in [
        ("SIGTERM → end of an idle agent", idle),
        ("SIGTERM → end of one that cannot print", stuck),
    ] {
        let took = milliseconds(*times.iter().max().unwrap());
        figure(what, took, "ms", "≤ 1000", took <= 1000.0);
    }
}

/// Stops an agent that blocks while it prints its plan: the pipe is full and has no reader.
fn stop_stuck(root: &Path, source: &Path) -> Duration {
    let (_reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
    fcntl(&writer, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(writer.as_fd(), &[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    let mut agent = Agent::start_with_stdout(root, source, None, Stdio::from(writer));
    until("the plan", || {
        let mut status = Command::new(binary());
        status.args(["status", "-o", "json", "--root"]).arg(root);
        let text = String::from_utf8(status.output().unwrap().stdout).unwrap();
        text.contains("\"Waiting\"")
    });
    agent.stop()
}

/// The refusal of texts that are small and would be huge if they were expanded.
pub(crate) fn hostile() {
    let bomb = |levels: usize, width: usize| {
        let mut text = String::from("a0: &a0 [lol]\n");
        for level in 1..levels {
            let below = vec![format!("*a{}", level - 1); width].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        text
    };
    let texts = [
        bomb(30, 10),
        bomb(60, 2),
        bomb(6, 1000),
        format!(
            "big: &big {}\nlist:\n{}",
            "x".repeat(100_000),
            "- *big\n".repeat(10_000)
        ),
        format!("a: {}{}", "[".repeat(5000), "]".repeat(5000)),
        "- ".repeat(5000),
        "a".repeat((8 << 20) + 1),
    ];
    let refused = texts.iter().map(|text| {
        let start = Instant::now();
        machinist_ignition::parse(text, "hostile.yaml", &ConfigRules::default()).unwrap_err();
        start.elapsed()
    });
    let most = milliseconds(refused.max().unwrap());
    println!("\n{} malicious texts, the longest time", texts.len());
    figure(
        "malicious config refused",
        most,
        "ms",
        "≤ 100",
        most <= 100.0,
    );
}
