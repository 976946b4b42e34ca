//! Repairs of drift: which are made, and what a failed one does.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use machinist_plan::DriftKind;
use machinist_testkit::{
    sandbox::{Sandbox, Written, config, restarting},
    scripted_services::Script,
};
use machinist_update::{
    journal::ConfigName,
    phase::Phase,
    reconciler::{DriftAction, DriftHandling, ReconcilerOptions},
    store,
};

use crate::update::harness::{Driver, UNIT, machine};

const BOB: u32 = 61_234;

fn repairing() -> ReconcilerOptions {
    ReconcilerOptions {
        drift: DriftHandling {
            default: DriftAction::Repair,
            rules: Vec::new(),
        },
        ..restarting(UNIT)
    }
}

fn chown(sandbox: &Sandbox, path: &str) {
    std::os::unix::fs::lchown(sandbox.path(path), Some(BOB), Some(BOB)).unwrap();
}

/// A config with a file in a directory of bob's, which bob replaces by a link to the unit directory.
#[tokio::test]
async fn drift_at_a_path_that_a_user_redirected_is_reported_and_not_repaired() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let (sandbox, script) = (machine(), Script::new());
    let (directory, units) = ("/srv/bob/user", "/etc/systemd/system");
    for path in [directory, units] {
        std::fs::create_dir_all(sandbox.path(path)).unwrap();
    }
    chown(&sandbox, "/srv/bob");
    chown(&sandbox, directory);
    let wanted = config("one").file("/etc/cron.d/one", "one\n", 0o644).file(
        "/srv/bob/user/app.service",
        "[Service]\n",
        0o644,
    );
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    driver.until_on(&wanted).await;
    std::fs::rename(sandbox.path(directory), sandbox.path("/srv/bob/moved-away")).unwrap();
    std::os::unix::fs::symlink(units, sandbox.path(directory)).unwrap();
    chown(&sandbox, directory);
    sandbox.write("/etc/cron.d/one", "changed\n");
    let report = driver
        .until("the other file is repaired", |report| {
            let unsafe_only = report
                .drift
                .iter()
                .all(|entry| entry.kind == DriftKind::Unsafe);
            let repaired = !report.drift.is_empty() && unsafe_only && report.updates.len() > 1;
            repaired && report.phase == Phase::Idle
        })
        .await;
    assert_eq!(report.failure, None);
    assert_eq!(sandbox.read("/etc/cron.d/one").as_deref(), Some("one\n"));
    let units = std::fs::read_dir(sandbox.path(units)).unwrap();
    assert_eq!(units.count(), 0, "nothing follows the user's link");
    driver.stop().await;
}

/// The gate `Config` follows the failure: the machine is on its config, apart from the reported drift.
#[tokio::test]
async fn a_repair_that_is_refused_is_no_failed_update() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to set owners");
        return;
    }
    let (sandbox, script) = (machine(), Script::new());
    let wanted = config("one").file("/etc/cron.d/one", "one\n", 0o644);
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    driver.until_on(&wanted).await;
    driver.stop().await;
    let mut refusing = repairing();
    refusing.capabilities.chown = false;
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), refusing);
    driver.until_on(&wanted).await;
    sandbox.write("/etc/cron.d/one", "changed\n");
    let seen = Arc::new(AtomicBool::new(false));
    let (mut reports, planned) = (driver.reports.clone(), Arc::clone(&seen));
    let watch = tokio::spawn(async move {
        let mut failed = false;
        while reports.changed().await.is_ok() {
            let report = reports.borrow_and_update().clone();
            planned.fetch_or(report.phase == Phase::Planned, Ordering::Relaxed);
            failed |= report.failure.is_some() || report.phase == Phase::Failed;
        }
        failed
    });
    driver
        .until("the repair was refused", |report| {
            let drifted = report.phase == Phase::Idle && report.drift.len() == 1;
            drifted && seen.load(Ordering::Relaxed)
        })
        .await;
    driver.stop().await;
    assert!(!watch.await.unwrap(), "no failure is reported");
    assert_eq!(
        sandbox.read("/etc/cron.d/one").as_deref(),
        Some("changed\n")
    );
}

#[tokio::test]
async fn repairs_leave_the_configs_of_earlier_updates_to_roll_back_to() {
    let (sandbox, script) = (machine(), Script::new());
    let earlier = config("earlier").file("/etc/cron.d/0", "earlier\n", 0o644);
    let paths: Vec<_> = (0..24)
        .map(|number| format!("/etc/cron.d/{number}"))
        .collect();
    let with = |config: Written, path: &String| config.file(path, "wanted\n", 0o644);
    let wanted = paths.iter().fold(config("wanted"), with);
    let mut driver = Driver::conducted(&sandbox, &script, earlier.desired(), repairing());
    driver.until_on(&earlier).await;
    driver.desired.send_replace(wanted.desired());
    driver.until_on(&wanted).await;
    for path in &paths {
        sandbox.write(path, "changed\n");
    }
    let is_repaired = |path: &String| sandbox.read(path).as_deref() == Some("wanted\n");
    driver
        .until("all files are repaired", |report| {
            report.phase == Phase::Idle && report.drift.is_empty() && paths.iter().all(is_repaired)
        })
        .await;
    driver.stop().await;
    let journal = sandbox.journal();
    let first = &journal.history[0];
    assert_eq!((first.to.as_str(), first.repair), ("earlier", false));
    assert!(journal.history.last().unwrap().repair);
    let stored = ConfigName::new(first.to.clone(), first.digest);
    store::whole_config(&sandbox.root(), &stored).unwrap();
}

#[tokio::test]
async fn a_path_that_is_changed_after_three_repairs_is_reported_as_suspended() {
    let (sandbox, script) = (machine(), Script::new());
    let wanted = config("one").file("/etc/cron.d/one", "ours\n", 0o644);
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    driver.until_on(&wanted).await;
    for _ in 0..3 {
        sandbox.write("/etc/cron.d/one", "theirs\n");
        driver
            .until("the repair", |report| {
                let repaired = sandbox.read("/etc/cron.d/one").as_deref() == Some("ours\n");
                repaired && report.phase == Phase::Idle && report.drift.is_empty()
            })
            .await;
    }
    sandbox.write("/etc/cron.d/one", "theirs\n");
    driver
        .until("the suspension", |report| {
            let suspended = report.suspended_repairs.iter();
            suspended.map(|path| path.as_str()).eq(["/etc/cron.d/one"])
        })
        .await;
    // Without drift nothing is suspended.
    sandbox.write("/etc/cron.d/one", "ours\n");
    driver
        .until("no drift", |report| {
            report.drift.is_empty() && report.suspended_repairs.is_empty()
        })
        .await;
    driver.stop().await;
}

/// Each change is an event of its own, and the path in it is not that of the config.
#[tokio::test]
async fn a_file_behind_a_link_is_repaired_after_each_change() {
    let (sandbox, script) = (machine(), Script::new());
    std::fs::create_dir_all(sandbox.path("/srv/real")).unwrap();
    std::os::unix::fs::symlink("real", sandbox.path("/srv/link")).unwrap();
    let wanted = config("one").file("/srv/link/app.conf", "ours\n", 0o644);
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    driver.until_on(&wanted).await;
    for change in ["one", "two"] {
        sandbox.write("/srv/real/app.conf", change);
        let repaired = || sandbox.read("/srv/real/app.conf").unwrap() == "ours\n";
        driver.until("the repair", |_| repaired()).await;
        driver
            .until("no drift", |report| {
                report.phase == Phase::Idle && report.drift.is_empty()
            })
            .await;
    }
    driver.stop().await;
}

/// An administrator has removed it from the boot loader's configuration, for example.
#[tokio::test]
async fn a_missing_kernel_argument_is_reported_and_causes_no_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    sandbox.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz nosmt a=1 b=\"x y\"\n");
    let mut wanted = config("one").file("/etc/cron.d/one", "one\n", 0o644);
    wanted.0.kernel_arguments = ["nosmt", "\"b=x y\"", "a=1"].map(str::to_owned).into();
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    let report = driver.until_on(&wanted).await;
    assert_eq!(report.drift, []);
    driver.stop().await;
    sandbox.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz b=1 a=1\n");
    sandbox.write("/etc/cron.d/one", "changed\n");
    let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), repairing());
    let report = driver
        .until("only the arguments differ", |report| {
            report.phase == Phase::Idle && report.drift.len() == 1 && report.updates.len() > 1
        })
        .await;
    let [drift] = &report.drift[..] else {
        panic!("{:?}", report.drift);
    };
    assert_eq!(drift.kind, DriftKind::KernelArgument);
    assert_eq!(drift.to_string(), "/proc/cmdline lacks nosmt \"b=x y\"");
    assert_eq!(report.suspended_repairs, [].into());
    assert_eq!(crate::update::reboots::reboots(&script), 0);
    driver.stop().await;
}
