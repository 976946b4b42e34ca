//! `machinist uninstall` on a host.

use std::{fs, os::unix::fs::symlink, path::Path, process::Output};

use machinist_rootfs::Root;
use machinist_update::{journal::Journal, store::StateStore};

use crate::agent::harness::Place;

const PROGRAM: &str = "/usr/local/libexec/machinist/machinist";
const RECOVER: &str = "/etc/systemd/system/machinist-recover.service";
const GUARD: &str = "/etc/systemd/system/machinist-guard.service";
const LINK: &str = "/etc/systemd/system/sysinit.target.wants/machinist-recover.service";

fn write(place: &Place, path: &str, text: &str) {
    let path = place.at(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A host on which an agent has run.
fn installed() -> Place {
    let place = Place::new();
    write(&place, PROGRAM, "program");
    for (unit, command) in [(RECOVER, "recover"), (GUARD, "guard")] {
        write(
            &place,
            unit,
            &format!("[Service]\nExecStart={PROGRAM} {command}\n"),
        );
    }
    fs::create_dir_all(place.at(LINK).parent().unwrap()).unwrap();
    symlink(RECOVER, place.at(LINK)).unwrap();
    write(&place, "/etc/systemd/system/others.service", "[Service]\n");
    write(&place, "/etc/managed", "by a config\n");
    store(&place).save(&Journal::default()).unwrap();
    place
}

fn store(place: &Place) -> StateStore {
    StateStore::open(&Root::open(&place.root()).unwrap()).unwrap()
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn uninstall_removes_the_host_installation_and_nothing_else() {
    let place = installed();
    let asked = place.machinist(&["uninstall"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text(&asked).1.contains("--yes"), "{asked:?}");

    let looked = place.machinist(&["uninstall", "--dry-run"]);
    assert_eq!(looked.status.code(), Some(0), "{looked:?}");
    assert!(
        text(&looked)
            .0
            .contains(&format!("{PROGRAM} removed (dry run)\n"))
    );
    let parts = [LINK, RECOVER, GUARD, PROGRAM];
    assert!(parts.iter().all(|part| is_there(&place.at(part))));

    let done = place.machinist(&["uninstall", "--yes", "-o", "json"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let answer: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(answer["kind"], "Uninstall");
    assert_eq!(answer["paths"], serde_json::json!(parts));
    assert_eq!(
        (&answer["node"], &answer["purged"], &answer["stateKept"]),
        (&serde_json::Value::Null, &false.into(), &true.into())
    );
    assert!(parts.iter().all(|part| !is_there(&place.at(part))));
    assert!(!place.at("/usr/local/libexec/machinist").exists());
    for kept in [
        "/etc/systemd/system/others.service",
        "/etc/managed",
        "/var/lib/machinist/journal",
    ] {
        assert!(place.at(kept).exists(), "{kept}");
    }

    let again = place.machinist(&["uninstall", "--yes"]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(
        text(&again).0,
        "/var/lib/machinist kept; use --purge to remove it\n"
    );
    let purged = place.machinist(&["uninstall", "--yes", "--purge"]);
    assert_eq!(text(&purged).0, "/var/lib/machinist removed\n");
    assert!(!place.at("/var/lib/machinist").exists());
    assert!(place.at("/etc/managed").exists());
    let nothing = place.machinist(&["uninstall", "--yes"]);
    assert_eq!(text(&nothing).0, "Nothing to remove.\n");
}

#[test]
fn uninstall_is_refused_with_open_update_corrupt_journal_or_running_agent() {
    let place = installed();
    let refused = |printed: &str| {
        let output = place.machinist(&["uninstall", "--yes"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).1.contains(printed), "{output:?}");
        assert!(is_there(&place.at(LINK)) && is_there(&place.at(PROGRAM)));
    };
    write(&place, "/var/lib/machinist/journal", "spoilt");
    refused("machinist journal reset");

    let held = store(&place);
    refused("stop the agent first");
    held.save(&open()).unwrap();
    drop(held);
    refused("is not finished");
}

#[test]
fn uninstall_is_refused_while_cordoned_or_with_units_to_restart() {
    let place = installed();
    let refused = |printed: &[&str]| {
        for arguments in [&["uninstall", "--yes"][..], &["uninstall", "--dry-run"]] {
            let output = place.machinist(arguments);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            for part in printed {
                assert!(text(&output).1.contains(part), "{part}: {output:?}");
            }
        }
        assert!(is_there(&place.at(LINK)) && is_there(&place.at(PROGRAM)));
    };
    store(&place).save(&kept()).unwrap();
    refused(&["update to one", "monitor.service", "machinist cancel NODE"]);
    store(&place).save(&Journal::default()).unwrap();
    let record = "/var/lib/machinist/quiesced.json";
    write(&place, record, r#"{"units":["monitor.service"]}"#);
    refused(&["monitor.service", "quiesced.json"]);
    write(&place, record, "spoilt");
    refused(&["quiesced.json"]);
    fs::remove_file(place.at(record)).unwrap();
    let done = place.machinist(&["uninstall", "--yes"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

/// A journal of a node that was cordoned, and on which a unit was stopped, before anything has
/// changed.
fn kept() -> Journal {
    let name = serde_json::json!({"name": "one", "digest": format!("sha256:{}", "0".repeat(64))});
    let mut journal = serde_json::to_value(Journal::default()).unwrap();
    journal["cordon"] = serde_json::json!({
        "to": name, "since": "2026-11-21T12:00:00Z", "drainedFor": 0, "phases": [],
        "stopped": ["monitor.service"],
    });
    serde_json::from_value(journal).unwrap()
}

/// A journal with an update in progress.
fn open() -> Journal {
    let name = serde_json::json!({"name": "one", "digest": format!("sha256:{}", "0".repeat(64))});
    let transaction = serde_json::json!({
        "id": "tx-1", "direction": "Forward", "mark": "Staged", "to": name,
        "started": "2026-11-21T12:00:00Z", "operations": [], "actions": [], "staging": [],
        "adopted": [], "boots": 0, "reverted": false, "bootedInto": false, "offline": true, "phases": [],
    });
    let mut journal = serde_json::to_value(Journal::default()).unwrap();
    journal["transactions"] = serde_json::json!([transaction]);
    serde_json::from_value(journal).unwrap()
}

#[test]
fn uninstall_with_purge_removes_originals_on_other_mounts() {
    let place = installed();
    let (target, kept) = ("/boot/loader.conf", "/boot/.machinist/originals/1-0");
    write(&place, kept, "original content\n");
    write(&place, "/boot/others", "not ours\n");
    let path = |path: &str| machinist_base::abs_path::AbsPath::new(path).unwrap();
    let mut journal = Journal::default();
    journal.originals.insert(path(target), path(kept));
    store(&place).save(&journal).unwrap();
    let left = place.machinist(&["uninstall", "--yes"]);
    assert_eq!(left.status.code(), Some(0), "{left:?}");
    assert!(is_there(&place.at(kept)), "without --purge it stays");
    let purged = place.machinist(&["uninstall", "--yes", "--purge"]);
    let printed = text(&purged).0;
    assert!(printed.contains("/boot/.machinist removed"), "{printed}");
    assert!(!is_there(&place.at("/boot/.machinist")));
    assert!(is_there(&place.at("/boot/others")));
}
