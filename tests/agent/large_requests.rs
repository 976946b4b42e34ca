//! Another user claims request bodies of hundreds of MiB: the agent's memory does not grow by them.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::agent::harness::Place;

/// The user and group of the client.
const NOBODY: u32 = 65534;
/// Where the client finds the sockets, separated by colons.
const SOCKETS_VARIABLE: &str = "MACHINIST_TEST_SOCKETS";
const CONNECTIONS: usize = 16;
/// Below the agent's own limit, so that the size alone is no reason to refuse.
const BODY_BYTES: usize = 700 << 20;
/// How long a client sends to one socket.
const SENDING_TIME: Duration = Duration::from_secs(2);
/// What the memory of the agent may grow by.
const MAX_GROWTH: usize = 16 << 20;

/// Sends a request with a large body, and as much of the body as the agent takes; returns how much
/// that was.
fn send(socket: &Path) -> io::Result<usize> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    write!(
        stream,
        "POST /config HTTP/1.1\r\nHost: test\r\nmachinist-by: apply\r\nmachinist-config: one\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    )?;
    let (piece, mut sent, began) = (vec![b'x'; 1 << 20], 0, Instant::now());
    while began.elapsed() < SENDING_TIME && sent < BODY_BYTES {
        match stream.write(&piece[..piece.len().min(BODY_BYTES - sent)]) {
            Ok(count) => sent += count,
            // The agent reads no more at present.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut answer = [0; 64];
    // Whether there is an answer is not the subject here.
    let _ = stream.read(&mut answer);
    Ok(sent)
}

/// The client, in a process of another user; without the variable it has nothing to do.
#[test]
fn client_of_another_user() {
    let Ok(sockets) = std::env::var(SOCKETS_VARIABLE) else {
        return;
    };
    assert_eq!(nix::unistd::geteuid().as_raw(), NOBODY);
    for socket in sockets.split(':').map(PathBuf::from) {
        let sent: Vec<_> = thread::scope(|scope| {
            let each = [(); CONNECTIONS].map(|()| scope.spawn(|| send(&socket)));
            each.map(|one| one.join().unwrap()).into()
        });
        let taken = sent.iter().filter(|one| one.is_ok()).count();
        println!("{} takes {taken} connections: {sent:?}", socket.display());
        assert!(taken > 0, "{sent:?}");
    }
}

#[test]
fn large_bodies_from_another_user_do_not_use_memory() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: another user's requests can only be made by root");
        return;
    }
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let sockets = [
        "run/machinist/agent.sock",
        "var/lib/machinist/control/agent.sock",
    ];
    let sockets = sockets.map(|below| place.at(below));
    // Other users cannot reach the control socket at all; here its own check is the subject.
    for socket in &sockets {
        fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
        let dirs = socket.ancestors().skip(1);
        for dir in dirs.take_while(|dir| dir.starts_with(place.path())) {
            let mode = fs::metadata(dir).unwrap().mode() | 0o055;
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    // Without it, the peak is that of the start, which is higher: the test is then less strict.
    let _ = fs::write(format!("/proc/{}/clear_refs", agent.pid()), "5");
    let before = agent.peak_memory();
    let names = sockets.map(|socket| socket.display().to_string());
    // The directories above the program may not be accessible to others.
    let client = Command::new("/proc/self/exe")
        .args([
            "--exact",
            "--nocapture",
            "agent::large_requests::client_of_another_user",
        ])
        .env(SOCKETS_VARIABLE, names.join(":"))
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success(), "{client:?}");
    assert_eq!(printed.matches(" connections: ").count(), 2, "{printed}");
    let grown = agent.peak_memory().saturating_sub(before);
    eprintln!("{printed}memory: +{} KiB", grown >> 10);
    assert!(grown < MAX_GROWTH, "+{grown} bytes; {printed}");
    assert_eq!(agent.status()["phase"], "Idle");
}
