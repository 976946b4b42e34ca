//! An unusable state directory: the agent keeps running, advertises devices, reports the reason,
//! and recovers by itself.

use std::fs;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::agent::harness::{Agent, Place, until};

fn config_gate(status: &Value) -> Value {
    let gates = status["gates"].as_array().unwrap();
    let gate = gates.iter().find(|gate| gate["name"] == "Config");
    gate.cloned().unwrap()
}

fn fails_with(agent: &Agent, code: &str) {
    until(code, || {
        let status = agent.status();
        status["phase"] == "Failed" && status["failure"]["code"] == code
    });
    assert_eq!(agent.get("/livez").0, 200);
    until("the devices", || agent.status()["devices"] != json!([]));
}

#[test]
fn an_unreadable_journal_closes_the_gate_until_it_is_readable() {
    let place = Place::with_examples();
    let agent = place.settled();
    until("ready", || agent.status()["ready"] == true);
    drop(agent);
    let journal = place.at("/var/lib/machinist/journal");
    let good = fs::read(&journal).unwrap();
    fs::write(&journal, "torn").unwrap();
    let agent = place.start();
    fails_with(&agent, "JournalUnreadable");
    let status = agent.status();
    assert_eq!(status["ready"], false);
    let gate = config_gate(&status);
    assert_eq!(gate["open"], false, "{gate}");
    assert!(
        gate["message"].as_str().unwrap().contains("checksum")
            || gate["message"].as_str().unwrap().contains("no header"),
        "{gate}"
    );
    assert_eq!(fs::read_to_string(&journal).unwrap(), "torn");
    fs::write(&journal, good).unwrap();
    until("ready again", || agent.status()["ready"] == true);
}

/// A small file system of its own at the state directory.
struct State(std::path::PathBuf);

impl Drop for State {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_state_directory_fails_only_the_update() {
    let place = Place::with_examples();
    let dir = place.at("/var/lib/machinist");
    fs::create_dir_all(&dir).unwrap();
    let options = Some("size=512k,mode=700");
    if mount(
        Some("tmpfs"),
        &dir,
        Some("tmpfs"),
        MsFlags::empty(),
        options,
    )
    .is_err()
    {
        println!("skipped: mounting is not permitted");
        return;
    }
    let state = State(dir);
    let agent = place.settled();
    let ballast = state.0.join("ballast");
    let full = fs::write(&ballast, vec![0; 1 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let before = place.tree();
    let config = crate::agent::harness::manifest("90-more", "/etc/more", "more");
    fs::write(place.source().join("90-more.yaml"), config).unwrap();
    fails_with(&agent, "NoSpace");
    assert_eq!(agent.status()["ready"], true);
    let mut after = place.tree();
    after.retain(|path, _| !path.ends_with("90-more.yaml"));
    assert_eq!(after, before);
    fs::remove_file(&ballast).unwrap();
    until("the update", || place.read("/etc/more").is_some());
    until("rest", || agent.status()["phase"] == "Idle");
    assert_eq!(agent.status()["failure"], Value::Null);
}
