//! Data that must stay on the machine: contents of files, passwords, tokens. No output of the agent
//! or of a command contains any of it, at any verbosity.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::PathBuf,
    process::{Command, Output},
    thread,
};

use crate::agent::harness::{Agent, Place, copy_program, manifest, until};

/// A part of every secret here.
const SECRET: &str = "hunter2";

/// An API server that refuses every request, and returns whether a request with a token was
/// received.
fn refusing() -> (String, thread::JoinHandle<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}"#;
        let mut seen = false;
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<_> = head
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            seen |= head.iter().any(|line| line.contains(SECRET));
            let _ = write!(
                stream,
                "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
        }
        seen
    });
    (address, serving)
}

fn kubeconfig(place: &Place, server: &str) -> String {
    let path = place.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: {server}}}}}]\n\
         users: [{{name: u, user: {{token: {SECRET}token}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn assert_no_secret(what: &str, printed: &str) {
    let line = printed.lines().find(|line| line.contains(SECRET));
    assert_eq!(line, None, "{what}");
}

fn both(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

fn request_all_documents(place: &Place, agent: &Agent) {
    for arguments in [
        &["status"][..],
        &["status", "-o", "json"],
        &["explain"],
        &["history", "-o", "json"],
        &["journal"],
        &["settings"],
        &["devices", "list", "-o", "json"],
    ] {
        let output = place.machinist(arguments);
        assert_no_secret(&format!("{arguments:?}"), &both(&output));
    }
    for arguments in [
        &["plan", "-vv"][..],
        &["plan", "-o", "json", "-vv"],
        &["verify", "-vv"],
    ] {
        let output = place.with_source(arguments);
        assert_no_secret(&format!("{arguments:?}"), &both(&output));
    }
    let (code, metrics) = agent.get("/metrics");
    assert_eq!(code, 200);
    for name in ["machinist_phase{", "machinist_phase_start_time_seconds"] {
        assert!(metrics.contains(name), "{name} in\n{metrics}");
    }
    assert_no_secret("metrics", &metrics);
}

#[test]
fn no_output_contains_file_contents() {
    let path = "/etc/example/password";
    let place = Place::new();
    let source = place.source().join("10-one.yaml");
    // A plan shows the changes of a world-readable file.
    let of = |content: &str| {
        let manifest = manifest("10-one", path, &format!("{SECRET}{content}"));
        manifest.replace("mode: 0644", "mode: 0600")
    };
    fs::write(&source, of("file")).unwrap();
    let agent = place.start_with(&["-vv"]);
    agent.wait_for_log("is in place and verified");
    assert!(place.read(path).unwrap().contains(SECRET));
    request_all_documents(&place, &agent);

    // Another password is written into it.
    fs::write(place.at(path), format!("{SECRET}drift")).unwrap();
    until("the drift", || {
        agent.status()["config"]["drift"].to_string().contains(path)
    });
    request_all_documents(&place, &agent);

    // The next config has a syntax error in the line with the secret.
    let broken = of("broken").replace("source: data", "source: [data");
    fs::write(&source, broken).unwrap();
    until("the refusal", || {
        agent.status()["failure"]["code"] == "SyntaxInvalid"
    });
    request_all_documents(&place, &agent);
    is_silent(&agent);
}

#[test]
fn no_output_contains_a_rejected_api_token() {
    let (server, serving) = refusing();
    let place = Place::new();
    let kubeconfig = kubeconfig(&place, &server);
    let mut command = place.command(&["run", "--source", "cluster", "-vv", "--node-name", "n"]);
    command.args(["--kubeconfig", &kubeconfig]);
    let agent = Agent::spawn(command, place.root());
    agent.wait_for_log("401");
    request_all_documents(&place, &agent);
    assert!(serving.join().unwrap(), "no request with the token");
    is_silent(&agent);
}

fn is_silent(agent: &Agent) {
    let log = agent.lines("");
    assert!(log.len() > 5, "{log:#?}");
    assert_no_secret("the log", &log.join("\n"));
    assert_no_secret("stdout", &agent.printed());
}

/// The memory contains what the files contain. In a container no unit sets `LimitCORE=0`.
#[test]
fn a_running_agent_cannot_dump_core_and_its_memory_is_closed_to_its_own_user() {
    let home = tempfile::tempdir_in("/tmp").unwrap();
    let program = home.path().join("machinist");
    copy_program(&program);
    let root = home.path().join("root");
    let source = home.path().join("source");
    for dir in [&root, &source] {
        fs::create_dir(dir).unwrap();
    }
    let mut command = Command::new(&program);
    let source_flag = format!("dir:{}", source.display());
    command
        .env_clear()
        .args(["run", "--source", &source_flag, "--root"])
        .arg(&root);
    if nix::unistd::geteuid().is_root() {
        for path in [home.path(), &program, &root, &source] {
            chown(path, Some(1000), Some(1000)).unwrap();
        }
        command.uid(1000).gid(1000);
    }
    let agent = Agent::spawn(command, root);
    let of = |name: &str| PathBuf::from(format!("/proc/{}/{name}", agent.pid()));
    until("the core limit", || {
        let limits = fs::read_to_string(of("limits")).unwrap();
        let mut lines = limits.lines();
        let core = lines.find(|line| line.starts_with("Max core file size"));
        let words: Vec<_> = core.unwrap().split_whitespace().collect();
        words[4..6] == ["0", "0"]
    });
    // The kernel gives these files of a process that may not be dumped to root.
    until("the memory to be closed", || {
        fs::metadata(of("mem")).unwrap().uid() == 0
    });
}
