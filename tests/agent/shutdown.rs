//! Shutdown of the agent. How long it takes, `tests/bench` measures.

use std::{fs, io::Write as _, net::TcpStream, os::fd::AsFd as _, process::Stdio};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM},
};

use crate::agent::harness::{Agent, Place, code, err, until};

#[test]
fn sigint_and_sigterm_stop_the_agent_with_exit_0() {
    let place = Place::with_examples();
    for signal in [SIGINT, SIGTERM] {
        let mut agent = place.start();
        agent.rests();
        // A client that never finishes its request is not left as an unfinished task.
        let mut idle = TcpStream::connect(agent.address()).unwrap();
        idle.write_all(b"GET /livez").unwrap();
        agent.signal(signal);
        let status = agent.ended();
        assert_eq!(status.code(), Some(0), "{signal}");
        // Its last lines may still be in the pipe.
        agent.wait_for_log("stopping");
        assert_eq!(agent.lines("stopping").len(), 1);
        assert_eq!(agent.lines("ERROR").len(), 0, "{:?}", agent.lines("ERROR"));
        assert_eq!(code(&place.machinist(&["status"])), 1);
    }
}

#[test]
fn settings_are_reloaded_at_run_time_and_invalid_ones_ignored() {
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let file = place.at("/etc/machinist/machinist.yaml");
    fs::create_dir(place.at("/etc/machinist")).unwrap();
    fs::write(&file, "drift:\n  fullPass: 1h\n").unwrap();
    let output = agent.wait_for_log("settings changed");
    assert!(output.contains("drift.fullPass"), "{output}");
    fs::write(&file, "drift:\n  fullPass: soon\n").unwrap();
    let output = agent.wait_for_log("keeping the previous settings");
    assert!(output.contains("machinist.yaml"), "{output}");
    // SIGHUP also reloads the settings, and does not stop the agent.
    agent.signal(SIGHUP);
    agent.wait_for_nth_log("keeping the previous settings", 2);
    assert_eq!(agent.get("/livez").0, 200);
    let gate = || {
        let gates = agent.status()["gates"].clone();
        let mut gates = gates.as_array().unwrap().iter();
        gates
            .find(|gate| gate["name"] == "Settings")
            .unwrap()
            .clone()
    };
    until("the closed gate", || gate()["open"] == false);
    let message = gate()["message"].to_string();
    assert!(
        message.contains("machinist.yaml:2:13: drift.fullPass"),
        "{message}"
    );
    fs::write(&file, "drift:\n  fullPass: 2h\n").unwrap();
    until("the open gate", || gate()["open"] == true);
}

/// An agent whose stdout has no reader any more: it blocks while it prints the plan.
fn stuck(place: &Place) -> Agent {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
    fcntl(&writer, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(writer.as_fd(), &[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    let mut command = place.command(&["run", "--source", &place.source_flag()]);
    command.stdout(Stdio::from(writer));
    let mut agent = Agent::spawn_with_stdout(command, place.root());
    agent.keep(reader);
    // Its plan cannot be printed, so nothing is applied; the probes answer all the same.
    until("the plan", || agent.status()["phase"] == "Waiting");
    assert_eq!(agent.get("/livez").0, 200);
    agent
}

#[test]
fn a_second_sigterm_ends_hanging_work() {
    let place = Place::with_examples();
    let mut agent = stuck(&place);
    assert!(!place.at("/etc/chrony.conf").exists());
    agent.signal(SIGTERM);
    agent.wait_for_log("stopping");
    agent.signal(SIGTERM);
    agent.ended();
}

#[test]
fn a_restarted_agent_has_nothing_to_do() {
    let place = Place::with_examples();
    let mut agent = place.settled();
    agent.signal(SIGTERM);
    assert_eq!(agent.ended().code(), Some(0));
    let tree = place.tree();
    let agent = place.start();
    agent.rests();
    assert_eq!(place.tree(), tree);
    assert_eq!(agent.status()["updates"].as_array().unwrap().len(), 1);
    assert!(agent.lines("starting update to").is_empty());
}

#[test]
fn a_second_agent_on_the_same_root_is_rejected() {
    let place = Place::with_examples();
    let agent = place.settled();
    let second = place.with_source(&["run"]);
    assert_eq!(code(&second), 1);
    assert!(
        err(&second).contains("another machinist process uses this root: ")
            && err(&second).contains("/var/lib/machinist/lock is locked"),
        "{}",
        err(&second)
    );
    // The first agent is not affected.
    assert_eq!(agent.get("/livez").0, 200);
    assert_eq!(agent.status()["phase"], "Idle");
    fs::write(place.at("/etc/chrony.conf"), "").unwrap();
    until("drift", || {
        agent.status()["config"]["drift"] != serde_json::json!([])
    });
}
