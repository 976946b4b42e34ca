//! What other programs of the machine do to the port: they flood it, or have it first.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::harness::{Place, until};

/// Asks as a kubelet does; none where the connection was ended.
fn probe(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(
        stream,
        "GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Opens connections without end, says a part of a question, and keeps as many open as it may.
fn flood(address: &str, stop: &AtomicBool) {
    let mut open = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(b"GET /liv");
            open.push_back(stream);
        }
        if open.len() > 100 {
            open.pop_front();
        }
    }
}

#[test]
fn probes_are_answered_while_another_program_floods_the_port() {
    const PROBES: usize = 200;
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let (address, stop) = (agent.address(), AtomicBool::new(false));
    let answered = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| flood(&address, &stop));
        }
        let answers = (0..PROBES).filter_map(|_| probe(&address));
        let answered = answers
            .filter(|answer| answer.starts_with("HTTP/1.1 200 "))
            .count();
        stop.store(true, Ordering::Relaxed);
        answered
    });
    assert!(
        answered * 100 >= PROBES * 99,
        "{answered} of {PROBES} were answered"
    );
}

#[test]
fn a_chosen_port_that_another_program_has_is_waited_for() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.start_with(&["--admin", &address]);
    agent.says(&format!("another program listens on {address}"));
    // It works all the same.
    until("the config", || {
        place.read("/etc/one").as_deref() == Some("zero")
    });
    assert_eq!(agent.status()["admin"], address.as_str());
    drop(taken);
    until("an answer", || {
        probe(&address).is_some_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    });
}
