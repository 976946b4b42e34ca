//! Interference of other programs with the port: they flood it, or bind it first.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use machinist_testkit::{WAIT_TIMEOUT, sandbox::long};

use crate::agent::harness::{Place, until};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Queries as a kubelet does; `None` where the connection was closed.
fn probe(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).ok()?;
    write!(
        stream,
        "GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The share of probes, in percent, that must be answered. On a machine that does other work as well,
/// only the long tier can demand as much as the goal.
fn expected_percent() -> usize {
    if long() { 99 } else { 90 }
}

/// The number of probes.
fn probes(long_run: usize) -> usize {
    if long() { long_run } else { 20 }
}

/// Lets the machine do other work as well, unless the run is long.
fn pause(milliseconds: u64) {
    if !long() {
        thread::sleep(Duration::from_millis(milliseconds));
    }
}

/// Opens connections continuously, many at a time, and sends a part of a request on each.
fn flood(address: SocketAddrV4, stop: &AtomicBool) {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    while !stop.load(Ordering::Relaxed) {
        let sockets = (0..200).map(|_| socket_with(family, kind, FLAGS, None));
        let open: Vec<_> = sockets.filter_map(Result::ok).collect();
        for one in &open {
            let _ = connect(one, &address);
        }
        for one in &open {
            let _ = rustix::io::write(one, b"GET /liv");
        }
        pause(50);
    }
}

#[test]
fn probes_respond_while_another_program_floods_the_port() {
    let probes = probes(100);
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let (address, stop) = (agent.address(), AtomicBool::new(false));
    let at = address.parse().unwrap();
    let answered = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood(at, &stop));
        }
        let answers = (0..probes).filter_map(|_| probe(&address));
        let answered = answers
            .filter(|answer| answer.starts_with("HTTP/1.1 200 "))
            .count();
        stop.store(true, Ordering::Relaxed);
        answered
    });
    assert!(
        answered * 100 >= probes * expected_percent(),
        "{answered} of {probes} were answered"
    );
}

/// Opens 2,000 connections again and again, and keeps each open with half a header.
fn half_headers(address: SocketAddrV4, stop: &AtomicBool) {
    const OPEN: usize = 2_000;
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let mut open = VecDeque::with_capacity(OPEN);
    while !stop.load(Ordering::Relaxed) {
        let Ok(one) = socket_with(family, kind, SocketFlags::CLOEXEC, None) else {
            open.clear();
            continue;
        };
        if connect(&one, &address).is_ok() {
            let _ = rustix::io::write(&one, b"GET /livez HTTP/1.1\r\nHost: te");
            open.push_back(one);
        }
        if open.len() >= OPEN {
            open.pop_front();
            pause(1);
        }
    }
}

/// A kubelet's probe; in the long tier it fails after one second, as the kubelet's does.
fn kubelet_probe(address: &str) -> bool {
    let begun = Instant::now();
    let answer = probe(address).unwrap_or_default();
    answer.starts_with("HTTP/1.1 200 ") && (!long() || begun.elapsed() < Duration::from_secs(1))
}

#[test]
fn probes_respond_despite_thousands_of_unfinished_requests() {
    const INTERVAL: Duration = Duration::from_millis(10);
    let probes = probes(1_000);
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.settled();
    let (address, stop) = (agent.address(), AtomicBool::new(false));
    let at = address.parse().unwrap();
    let answered = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| half_headers(at, &stop));
        }
        let answered = (0..probes).filter(|_| {
            thread::sleep(INTERVAL);
            kubelet_probe(&address)
        });
        let answered = answered.count();
        stop.store(true, Ordering::Relaxed);
        answered
    });
    println!("{answered} of {probes} probes were answered");
    assert!(
        answered * 100 >= probes * expected_percent(),
        "{answered} of {probes} were answered"
    );
}

#[test]
fn a_configured_port_in_use_is_retried_until_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::with_file("/etc/one", "zero");
    let agent = place.start_with(&["--admin", &address]);
    agent.wait_for_log(&format!("another program is listening on {address}"));
    // The agent works all the same.
    until("the config", || {
        place.read("/etc/one").as_deref() == Some("zero")
    });
    assert_eq!(agent.status()["admin"], address.as_str());
    drop(taken);
    until("an answer", || {
        probe(&address).is_some_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    });
}
