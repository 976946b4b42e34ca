//! An edit of a managed file is reported by path, and so is its reversal. How soon, `tests/bench`
//! measures.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use serde_json::{Value, json};

use crate::agent::harness::{Agent, Place, until};

const SYSCTL: &str = "/etc/sysctl.d/90-inotify.conf";
const JOURNALD: &str = "/etc/systemd/journald.conf.d/10-size.conf";

fn drift(agent: &Agent) -> Value {
    agent.status()["config"]["drift"].clone()
}

/// Runs `act` and waits until the status reports exactly `expected`.
fn report(agent: &Agent, expected: &Value, act: impl FnOnce()) {
    act();
    until(&format!("the drift {expected}"), || {
        drift(agent) == *expected
    });
}

#[test]
fn every_kind_of_drift_is_reported_and_cleared_afterwards() {
    let place = Place::with_examples();
    let agent = place.settled();
    let file = place.at(SYSCTL);
    let content = fs::read(&file).unwrap();
    let mode = |bits| fs::set_permissions(&file, fs::Permissions::from_mode(bits)).unwrap();
    let nothing = json!([]);
    let one = |kind: &str| json!([{"path": SYSCTL, "kind": kind}]);
    assert_eq!(drift(&agent), nothing);

    let see = |expected: &Value, act: &dyn Fn()| report(&agent, expected, act);
    see(&one("content"), &|| {
        fs::write(&file, "vm.swappiness = 1\n").unwrap();
    });
    see(&nothing, &|| fs::write(&file, &content).unwrap());
    see(&one("mode"), &|| mode(0o600));
    see(&nothing, &|| mode(0o644));
    see(&one("missing"), &|| fs::remove_file(&file).unwrap());
    // As an editor restores it: a new file renamed over the old one.
    let fresh = file.with_extension("new");
    see(&nothing, &|| {
        fs::write(&fresh, &content).unwrap();
        fs::rename(&fresh, &file).unwrap();
    });
    // Renamed over the file as well: without it for a moment, the file would be missing.
    see(&one("content"), &|| {
        symlink("/dev/null", &fresh).unwrap();
        fs::rename(&fresh, &file).unwrap();
    });
    see(&nothing, &|| {
        fs::write(&fresh, &content).unwrap();
        fs::rename(&fresh, &file).unwrap();
    });

    // The log has each path once, and the end of its drift.
    for output in [
        "has a different content",
        "has a different mode",
        "is missing",
    ] {
        let line = agent.wait_for_log(&format!("{SYSCTL} {output}"));
        assert!(line.contains("WARN") && line.contains("Drifted"), "{line}");
    }
    assert_eq!(agent.lines(&format!("{SYSCTL} is missing")).len(), 1);
    agent.wait_for_nth_log("matches the config again", 4);
}

#[test]
fn drift_is_a_warning_and_closes_no_hold_gate() {
    let place = Place::with_examples();
    let agent = place.settled();
    fs::write(place.at(SYSCTL), "").unwrap();
    let gate = || {
        let status = agent.status();
        let gates = status["gates"].as_array().unwrap().clone();
        gates
            .into_iter()
            .find(|gate| gate["name"] == "Config")
            .unwrap()
    };
    until("the gate's warning", || gate()["reason"] == "Drifted");
    assert_eq!(gate()["open"], true);
    assert!(gate()["message"].as_str().unwrap().contains(SYSCTL));
    assert_eq!(agent.get("/readyz").0, 200);
    let metrics = agent.get("/metrics").1;
    assert!(
        metrics.contains("machinist_drift_paths{kind=\"content\"} 1\n"),
        "{metrics}"
    );
    assert_eq!(
        place.read(SYSCTL).as_deref(),
        Some(""),
        "reported, not repaired"
    );
}

#[test]
fn drift_in_a_recreated_directory_is_reported() {
    let place = Place::with_examples();
    let agent = place.settled();
    let directory = place.at("/etc/systemd/journald.conf.d");
    let content = fs::read(place.at(JOURNALD)).unwrap();
    let missing = json!([{"path": JOURNALD, "kind": "missing"}]);
    for _ in 0..3 {
        report(&agent, &missing, || {
            fs::remove_dir_all(&directory).unwrap();
        });
        report(&agent, &json!([]), || {
            fs::create_dir(&directory).unwrap();
            fs::write(place.at(JOURNALD), &content).unwrap();
        });
    }
    // The new directory is watched, not only scanned.
    report(
        &agent,
        &json!([{"path": JOURNALD, "kind": "content"}]),
        || fs::write(place.at(JOURNALD), "[Journal]\n").unwrap(),
    );

    // Several levels at once, and moved away instead of removed.
    fs::write(place.at(JOURNALD), &content).unwrap();
    until("peace", || drift(&agent) == json!([]));
    let away = place.path().join("away");
    report(
        &agent,
        &json!([
            {"path": "/etc/machinist/devices.d/fuse.yaml", "kind": "missing"},
        ]),
        || fs::rename(place.at("/etc/machinist"), &away).unwrap(),
    );
    report(&agent, &json!([]), || {
        fs::rename(&away, place.at("/etc/machinist")).unwrap();
    });
    report(
        &agent,
        &json!([
            {"path": "/etc/machinist/devices.d/fuse.yaml", "kind": "content"},
        ]),
        || fs::write(place.at("/etc/machinist/devices.d/fuse.yaml"), "x: 1\n").unwrap(),
    );
}

#[test]
fn units_enabled_or_unmasked_manually_are_reported_as_drift() {
    let place = Place::with_examples();
    let agent = place.settled();
    let mask = place.at("/etc/systemd/system/apt-daily-upgrade.timer");
    let wanted = place.at("/etc/systemd/system/multi-user.target.wants/example-greeting.service");
    fs::remove_file(&mask).unwrap();
    until("the mask", || drift(&agent).as_array().unwrap().len() == 1);
    assert_eq!(place.machinist(&["verify"]).status.code(), Some(2));
    fs::remove_file(&wanted).unwrap();
    until("the enablement", || {
        drift(&agent).as_array().unwrap().len() == 2
    });
    let seen = drift(&agent).to_string();
    assert!(
        seen.contains("apt-daily-upgrade.timer") && seen.contains("example-greeting.service"),
        "{seen}"
    );
    symlink("/dev/null", &mask).unwrap();
    symlink("/etc/systemd/system/example-greeting.service", &wanted).unwrap();
    until("peace", || drift(&agent) == json!([]));
}

/// Many edits over more than one period of the agent's idle loop: none is lost.
#[test]
fn drift_report_is_correct_after_a_burst_of_edits() {
    let place = Place::with_examples();
    let agent = place.settled();
    let file = place.at(SYSCTL);
    let content = fs::read(&file).unwrap();
    for round in 0..60 {
        if round % 2 == 0 {
            fs::write(&file, "x = 1\n").unwrap();
        } else {
            fs::write(&file, &content).unwrap();
        }
    }
    fs::write(&file, "y = 1\n").unwrap();
    until("the last edit", || {
        drift(&agent) == json!([{"path": SYSCTL, "kind": "content"}])
    });
}

fn settings(place: &Place, text: &str) {
    let dir = place.at("/etc/machinist");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("machinist.yaml"), text).unwrap();
}

#[test]
fn drift_is_repaired_reported_or_ignored_by_path_policy() {
    let place = Place::with_examples();
    settings(
        &place,
        "drift:\n  paths:\n  - {path: /etc/sysctl.d, policy: repair}\n  - {path: /etc/chrony.conf, policy: ignore}\n",
    );
    let agent = place.settled();
    let content = fs::read(place.at(SYSCTL)).unwrap();
    let owned = fs::metadata(place.at(SYSCTL)).unwrap().permissions();
    fs::write(place.at("/etc/chrony.conf"), "ignored").unwrap();
    fs::write(place.at(JOURNALD), "reported").unwrap();
    let reported = json!([{"path": JOURNALD, "kind": "content"}]);
    until("the report", || drift(&agent) == reported);
    fs::write(place.at(SYSCTL), "x = 1\n").unwrap();
    until("the repair", || {
        fs::read(place.at(SYSCTL)).unwrap() == content
    });
    until("peace", || {
        drift(&agent) == reported && agent.status()["phase"] == "Idle"
    });
    assert_eq!(fs::metadata(place.at(SYSCTL)).unwrap().permissions(), owned);
    // The other files are unchanged, and the repair is an update in the history.
    let read = |path| fs::read_to_string(place.at(path)).unwrap();
    assert_eq!(
        (read("/etc/chrony.conf"), read(JOURNALD)),
        ("ignored".to_owned(), "reported".to_owned())
    );
    until("the repair in the history", || {
        agent.status()["updates"].as_array().unwrap().len() == 2
    });

    // A removed file is repaired as well, with its directory; and repairs do not repeat forever.
    // In one step: the agent would restore the file in a directory that is being removed.
    fs::rename(place.at("/etc/sysctl.d"), place.path().join("away")).unwrap();
    until("the second repair", || {
        fs::read(place.at(SYSCTL)).is_ok_and(|now| now == content)
    });
    until("peace", || {
        drift(&agent) == reported && agent.status()["phase"] == "Idle"
    });
    fs::write(place.at(SYSCTL), "x = 2\n").unwrap();
    until("the third repair", || {
        fs::read(place.at(SYSCTL)).unwrap() == content
    });
    until("peace", || {
        drift(&agent) == reported && agent.status()["phase"] == "Idle"
    });
    fs::write(place.at(SYSCTL), "x = 3\n").unwrap();
    agent.wait_for_log("changes repeatedly, so its repair is suspended");
    assert_eq!(read(SYSCTL), "x = 3\n");
}

#[test]
fn drift_of_files_that_already_matched_is_reported() {
    let place = Place::with_file("/etc/found", "asked");
    let found = place.at("/etc/found");
    fs::create_dir_all(found.parent().unwrap()).unwrap();
    fs::write(&found, "asked").unwrap();
    fs::set_permissions(&found, fs::Permissions::from_mode(0o644)).unwrap();
    let agent = place.start();
    agent.wait_for_log("the machine already matches");
    let drifted = json!([{"path": "/etc/found", "kind": "content"}]);
    report(&agent, &drifted, || fs::write(&found, "edited").unwrap());
    report(&agent, &json!([]), || fs::write(&found, "asked").unwrap());
}

#[test]
fn drift_of_a_pre_existing_directorys_mode_is_reported() {
    let place = Place::new();
    let config = json!({
        "ignition": {"version": "3.4.0"},
        "storage": {"directories": [{"path": "/srv/dir", "mode": 0o750}]},
    });
    fs::write(place.source().join("10-dir.ign"), config.to_string()).unwrap();
    let dir = place.at("/srv/dir");
    fs::create_dir_all(&dir).unwrap();
    let mode = |bits| fs::set_permissions(&dir, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    let agent = place.settled();
    let drifted = json!([{"path": "/srv/dir", "kind": "mode"}]);
    report(&agent, &drifted, || mode(0o700));
    report(&agent, &json!([]), || mode(0o750));
}

#[test]
fn drift_repair_restores_a_file_before_its_hard_links() {
    let place = Place::with_file("/etc/z-file", "ours");
    let link = r#"{"ignition": {"version": "3.4.0"}, "storage": {"links":
        [{"path": "/etc/a-name", "target": "/etc/z-file", "hard": true}]}}"#;
    fs::write(place.source().join("50-link.ign"), link).unwrap();
    settings(&place, "drift: {default: repair}\n");
    let agent = place.settled();
    for name in ["/etc/a-name", "/etc/z-file"] {
        fs::remove_file(place.at(name)).unwrap();
    }
    let whole = |name| place.read(name).as_deref() == Some("ours");
    until("both repairs", || {
        whole("/etc/z-file") && whole("/etc/a-name")
    });
    until("peace", || {
        drift(&agent) == json!([]) && agent.status()["phase"] == "Idle"
    });
}
