//! Commands next to a running agent: it carries them out and keeps running.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::Path,
    thread,
};

use crate::agent::{
    harness::{Agent, Place, code, err, manifest, out, until},
    json_shape,
};

fn file(place: &Place, content: &str) {
    let text = manifest("10-one", "/etc/one", content);
    fs::write(place.source().join("10-one.yaml"), text).unwrap();
}

/// A machine on the second of two configs.
fn twice() -> (Place, Agent) {
    let place = Place::with_file("/etc/one", "first");
    let agent = place.settled();
    file(&place, "second");
    until("the second config", || {
        place.read("/etc/one").as_deref() == Some("second")
    });
    agent.rests();
    (place, agent)
}

#[test]
fn apply_with_a_running_agent_pins_the_config_until_the_source_changes() {
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let other = place.path().join("other.yaml");
    fs::write(&other, manifest("other", "/etc/other", "x")).unwrap();
    let other = other.to_str().unwrap();
    let asked = place.machinist(&["apply", other]);
    assert_eq!(code(&asked), 1);
    assert!(err(&asked).contains("use --yes"), "{}", err(&asked));

    let done = place.machinist(&["apply", "--yes", other]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    assert!(out(&done).contains("+ file /etc/other"), "{}", out(&done));
    assert!(out(&done).contains("AppliedOffline: config is now rendered-machine-"));
    assert_eq!(place.read("/etc/other").as_deref(), Some("x"));
    assert!(place.read("/etc/one").is_none());
    let held = agent.status()["held"].clone();
    assert_eq!(held["by"], "apply", "{held}");

    // Read-only commands work as usual.
    assert_eq!(code(&place.machinist(&["verify"])), 0);
    assert_eq!(code(&place.with_source(&["plan"])), 2);
    // An operator applies the source again.
    let back = place.with_source(&["apply", "--yes"]);
    assert_eq!(code(&back), 0, "{}", err(&back));
    assert_eq!(place.read("/etc/one").as_deref(), Some("zero"));
    assert!(agent.status()["held"].is_null());
    let again = place.with_source(&["apply", "--yes"]);
    assert_eq!(
        (code(&again), out(&again).as_str()),
        (0, "The machine matches the config.\n")
    );
}

#[test]
fn rollback_with_a_running_agent_lasts_until_the_source_changes() {
    let (place, agent) = twice();
    let back = place.machinist(&["rollback", "--yes"]);
    assert_eq!(code(&back), 0, "{}", err(&back));
    assert_eq!(place.read("/etc/one").as_deref(), Some("first"));
    let status = agent.status();
    assert_eq!(status["held"]["by"], "rollback");
    let elsewhere = [
        "blockers[]",
        "failure",
        "devices[]",
        "deviceProblems[]",
        "orphanedResources[]",
        "vendors[]",
        "config.drift[]",
        "updates[].actions[]",
    ];
    json_shape::check("status", &status, &elsewhere);
    let page = out(&place.machinist(&["status"]));
    assert!(page.contains("held by  rollback"), "{page}");

    // A new agent reads the same source, and touching it causes no update.
    drop(agent);
    let agent = place.start();
    agent.rests();
    file(&place, "second");
    until("the source is read", || {
        agent
            .get("/metrics")
            .1
            .contains("machinist_source_reads_total")
    });
    assert_eq!(place.read("/etc/one").as_deref(), Some("first"));
    assert_eq!(agent.status()["held"]["by"], "rollback");

    file(&place, "third");
    until("the new config of the source", || {
        place.read("/etc/one").as_deref() == Some("third")
    });
    until("no override left", || agent.status()["held"].is_null());
    assert!(!place.at("/var/lib/machinist/held").exists());
}

#[test]
fn rollback_without_an_agent_is_honoured_by_the_next_agent() {
    let (place, agent) = twice();
    drop(agent);
    assert_eq!(code(&place.machinist(&["rollback", "--yes"])), 0);
    let agent = place.start();
    agent.wait_for_log("machine pinned to rendered-machine-");
    agent.rests();
    assert_eq!(place.read("/etc/one").as_deref(), Some("first"));
    file(&place, "third");
    until("the new config of the source", || {
        place.read("/etc/one").as_deref() == Some("third")
    });
}

#[test]
fn rollback_goes_back_the_requested_number_of_configs() {
    let (place, agent) = twice();
    file(&place, "third");
    until("the third config", || {
        place.read("/etc/one").as_deref() == Some("third")
    });
    agent.rests();
    for (to, exit, output) in [
        ("0", 64, "1 is the config before"),
        ("3", 1, "only 2 earlier configs exist"),
        ("nonsense", 1, "no earlier config nonsense found"),
    ] {
        let refused = place.machinist(&["rollback", "--yes", "--to", to]);
        assert_eq!(code(&refused), exit);
        assert!(err(&refused).contains(output), "{}", err(&refused));
    }
    let name = agent.status()["updates"][0]["from"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        code(&place.machinist(&["rollback", "--yes", "--to", "2"])),
        0
    );
    assert_eq!(place.read("/etc/one").as_deref(), Some("first"));
    assert_eq!(
        code(&place.machinist(&["rollback", "--yes", "--to", &name])),
        0
    );
    assert_eq!(place.read("/etc/one").as_deref(), Some("second"));
}

#[test]
fn idle_connections_do_not_block_the_status_socket() {
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let socket = place.at("/run/machinist/agent.sock");
    // Idle connections are closed after some seconds, so on a busy machine the answers may come
    // only then. If the connections blocked, they would always come then.
    until("five answers before an idle connection is closed", || {
        let mut idle: Vec<_> = Vec::new();
        while idle.len() < 200 {
            idle.extend(UnixStream::connect(&socket));
        }
        for stream in &mut idle {
            let _ = stream.write_all(b"GET /sta");
        }
        for _ in 0..5 {
            assert_eq!(agent.status()["phase"], "Idle");
        }
        let mut last = idle.pop().unwrap();
        last.set_nonblocking(true).unwrap();
        let read = last.read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
}

#[test]
fn the_status_socket_rejects_commands_without_buffering_them() {
    const SIZE: usize = 700 << 20;
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let before = agent.peak_memory();
    let socket = place.at("/run/machinist/agent.sock");
    let answers: Vec<String> = thread::scope(|scope| {
        let posts: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| post(&socket, SIZE)))
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    let growth = agent.peak_memory() - before;
    assert!(growth < 16 << 20, "grew by {growth} bytes");
    for answer in answers {
        // An agent that was stopped for the next one of the same user does not answer.
        let refused = answer.contains(" 403 ") && answer.contains("is read-only");
        assert!(answer.is_empty() || refused, "{answer}");
    }
    assert_eq!(place.read("/etc/one").as_deref(), Some("zero"));

    // Commands are sent to a socket that no other user can reach.
    let mode = |path| fs::metadata(place.at(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("/var/lib/machinist/control"), 0o700);
    assert_eq!(mode("/var/lib/machinist/control/agent.sock"), 0o600);
    file(&place, "one");
    until("the config", || {
        place.read("/etc/one").as_deref() == Some("one")
    });
    agent.rests();
    let back = place.machinist(&["rollback", "--yes"]);
    assert_eq!(code(&back), 0, "{}", err(&back));
    assert_eq!(place.read("/etc/one").as_deref(), Some("zero"));
}

/// Posts a config of `size` bytes for as long as the agent reads, and returns the response.
fn post(socket: &Path, size: usize) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = format!(
        "POST /config HTTP/1.0\r\nHost: test\r\nMachinist-By: apply\r\nMachinist-Config: a\r\nContent-Length: {size}\r\n\r\n"
    );
    let chunk = vec![b'x'; 1 << 20];
    let mut written = stream.write_all(head.as_bytes());
    for _ in 0..size / chunk.len() {
        written = written.and_then(|()| stream.write_all(&chunk));
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn an_update_waits_for_its_maintenance_window_or_an_operators_apply() {
    let place = Place::with_file("/etc/one", "zero");
    let dir = place.at("/etc/machinist");
    fs::create_dir_all(&dir).unwrap();
    // A maintenance window half a day from now, for an hour: closed, whenever this runs.
    let later = jiff::Timestamp::now() + std::time::Duration::from_secs(12 * 3600);
    let window = format!(
        "update:\n  windows:\n  - {{start: \"{}\", duration: 1h}}\n",
        later.strftime("%H:%M")
    );
    fs::write(dir.join("machinist.yaml"), window).unwrap();
    let agent = place.start();
    until("the wait", || agent.status()["phase"] == "Waiting");
    let status = agent.status();
    let blocker = &status["blockers"][0];
    assert_eq!(blocker["kind"], "Window");
    assert_eq!(blocker["reason"], "OutsideWindow");
    let opens = later.strftime("%Y-%m-%d %H:%MZ").to_string();
    assert!(
        blocker["message"].as_str().unwrap().ends_with(&opens),
        "{blocker}"
    );
    let output = out(&place.machinist(&["explain"]));
    assert!(output.contains("machinist apply"), "{output}");
    assert!(!place.at("/etc/one").exists());

    // A config that is withdrawn meanwhile is never applied.
    file(&place, "one");
    until("the new plan", || {
        agent.status()["phase"] == "Waiting"
            && agent.lines("is waiting for its start time").len() == 2
    });
    let now = place.with_source(&["apply", "--yes"]);
    assert_eq!(code(&now), 0, "{}", err(&now));
    assert_eq!(place.read("/etc/one").as_deref(), Some("one"));
    assert_eq!(agent.status()["blockers"], serde_json::json!([]));

    // The next update waits again, until the settings permit it.
    file(&place, "two");
    until("the wait", || agent.status()["phase"] == "Waiting");
    fs::write(dir.join("machinist.yaml"), "update: {windows: []}\n").unwrap();
    until("the update", || {
        place.read("/etc/one").as_deref() == Some("two")
    });
}
