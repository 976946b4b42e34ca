//! The stored copy of the current config is missing or damaged; and a journal that appears again.

use machinist_base::reason::Reason;
use machinist_update::phase::Phase;

use crate::faults::{
    harness::{Driver, machine, tree},
    io_errors::paused,
};
use machinist_testkit::{
    sandbox::{Sandbox, Written, config},
    scripted_services::Script,
};

fn one() -> Written {
    config("one")
        .file("/etc/found", "one\n", 0o644)
        .file("/etc/a/b", "one\n", 0o600)
}

fn two() -> Written {
    config("two").file("/etc/found", "two\n", 0o644)
}

/// A machine on the first config whose stored copy is then damaged.
async fn harmed(harm: fn(&std::path::Path)) -> (Sandbox, std::path::PathBuf) {
    let sandbox = machine();
    let mut driver = Driver::start(&sandbox, &Script::new(), one().desired());
    driver.until_on(&one()).await;
    driver.stop().await;
    let digest = machinist_ignition::digest(&one().0).hex();
    let copy = sandbox.path(&format!("/var/lib/machinist/configs/{digest}"));
    harm(&copy);
    (sandbox, copy)
}

fn remove(copy: &std::path::Path) {
    std::fs::remove_file(copy).unwrap();
}

fn damage(copy: &std::path::Path) {
    std::fs::write(copy, "{}").unwrap();
}

#[test]
fn another_config_waits_until_the_lost_current_config_is_supplied_again() {
    for harm in [remove, damage] {
        paused(async move {
            let (sandbox, copy) = harmed(harm).await;
            let before = tree(&sandbox);
            let mut driver = Driver::start(&sandbox, &Script::new(), two().desired());
            let report = driver.until_failed().await;
            let failure = report.failure.clone().unwrap();
            assert_eq!(failure.code, Reason::StoredConfigLost);
            assert!(
                failure.message.contains("provide one again"),
                "{}",
                failure.message
            );
            assert!(tree(&sandbox) == before);
            driver.wants(&one());
            driver
                .until("healed", |report| {
                    report.phase == Phase::Idle && report.failure.is_none() && copy.exists()
                })
                .await;
            driver.wants(&two());
            driver.until_on(&two()).await;
            driver.stop().await;
            assert_eq!(sandbox.read("/etc/found").unwrap(), "two\n");
            assert_eq!(sandbox.read("/etc/a/b"), None);
        });
    }
}

#[test]
fn a_lost_stored_config_is_rewritten_from_the_source() {
    for harm in [remove, damage] {
        paused(async move {
            let (sandbox, copy) = harmed(harm).await;
            let mut driver = Driver::start(&sandbox, &Script::new(), one().desired());
            let digest = machinist_ignition::digest(&one().0);
            let whole = |_: &_| {
                let text = std::fs::read(&copy).unwrap_or_default();
                machinist_base::digest::Digest::of(&text) == digest
            };
            // The report that follows it is that of drift.
            sandbox.write("/etc/found", "somebody's\n");
            driver.until("whole", whole).await;
            driver
                .until("drift", |report| !report.drift.is_empty())
                .await;
            driver.stop().await;
        });
    }
}

#[test]
fn a_config_that_matches_the_disk_is_adopted_without_the_lost_one() {
    paused(async {
        let (sandbox, _) = harmed(remove).await;
        // The same objects, and one more that exists already.
        sandbox.write("/etc/more", "more\n");
        std::fs::set_permissions(
            sandbox.path("/etc/more"),
            std::os::unix::fs::PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        let same = one().file("/etc/more", "more\n", 0o644);
        let mut driver = Driver::start(&sandbox, &Script::new(), same.desired());
        let report = driver.until_on(&same).await;
        assert_eq!(report.failure, None);
        driver.stop().await;
    });
}

#[test]
fn a_repaired_journal_is_used_again() {
    paused(async {
        let sandbox = machine();
        let mut driver = Driver::start(&sandbox, &Script::new(), one().desired());
        driver.until_on(&one()).await;
        driver.stop().await;
        let journal = sandbox.path("/var/lib/machinist/journal");
        let good = std::fs::read(&journal).unwrap();
        std::fs::write(&journal, "torn").unwrap();
        let mut driver = Driver::start(&sandbox, &Script::new(), two().desired());
        let report = driver.until_failed().await;
        let failure = report.failure.clone().unwrap();
        assert_eq!(failure.code, Reason::JournalUnreadable);
        assert!(report.unknown);
        assert_eq!(sandbox.read("/etc/found").unwrap(), "one\n");
        std::fs::write(&journal, good).unwrap();
        driver.patience = std::time::Duration::from_secs(3600);
        let report = driver.until_on(&two()).await;
        assert!(!report.unknown);
        driver.stop().await;
    });
}

#[test]
fn a_umask_of_777_leaves_the_lock_file_usable_by_its_owner() {
    use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
    let sandbox = machine();
    // In a process of its own: the umask belongs to all threads.
    let mut command = std::process::Command::new("/bin/sh");
    let binary = env!("CARGO_BIN_EXE_machinist");
    let root = sandbox.path("");
    command.arg0("sh").args([
        "-c",
        "umask 0777; exec \"$@\"",
        "sh",
        binary,
        "recover",
        "--root",
    ]);
    let ran = command.arg(&root).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let lock = std::fs::metadata(sandbox.path("/var/lib/machinist/lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o7777, 0o600);
}
