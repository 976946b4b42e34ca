//! A mount on which root may not create the directory for staging: paths on it are refused, and
//! nothing else stops.

use std::process::Command;

use machinist_base::reason::Reason;
use machinist_ignition::Refusal;
use machinist_testkit::{
    sandbox::{Sandbox, Written, config},
    stepwise_update::StepwiseUpdate,
};

use super::tmpfs::Tmpfs;

const ON_MOUNT: &str = "/srv/data/dir/x";

/// Sets or removes the immutable flag of the mount's top. The directory below it stays writable.
fn chattr(sandbox: &Sandbox, flag: &str) -> bool {
    let top = sandbox.path("/srv/data");
    let output = Command::new("chattr").arg(flag).arg(top).output();
    output.is_ok_and(|output| output.status.success())
}

/// A machine with a file system at `/srv/data`. `None` where the test cannot make one that root may
/// not change.
fn machine() -> Option<(Sandbox, Tmpfs)> {
    let sandbox = Sandbox::new();
    let mounted = Tmpfs::new(&sandbox, "/srv/data", 0)?;
    std::fs::create_dir(sandbox.path("/srv/data/dir")).unwrap();
    if !(chattr(&sandbox, "+i") && chattr(&sandbox, "-i")) {
        println!("skipped: this file system knows no immutable directories");
        return None;
    }
    Some((sandbox, mounted))
}

fn apply(sandbox: &Sandbox, wanted: &Written) -> Result<(), Vec<Refusal>> {
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(wanted)?;
    hand.commit().unwrap();
    hand.close();
    Ok(())
}

fn wanted(plain: &str) -> Written {
    config(plain).file("/etc/plain", plain, 0o644)
}

#[test]
fn a_path_on_a_mount_without_staging_directory_is_refused_alone() {
    let Some((sandbox, _mounted)) = machine() else {
        return;
    };
    assert!(chattr(&sandbox, "+i"));
    let refusals = apply(&sandbox, &wanted("one").file(ON_MOUNT, "x", 0o644)).unwrap_err();
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}");
    };
    assert_eq!(refusal.reason, Reason::PermissionMissing, "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains(ON_MOUNT), "{text}");
    assert!(
        text.contains("is on /srv/data, where machinist cannot create"),
        "{text}"
    );
    assert_eq!(sandbox.read("/etc/plain"), None);
    // Without this path, the rest is applied.
    apply(&sandbox, &wanted("one")).unwrap();
    assert_eq!(sandbox.read("/etc/plain").as_deref(), Some("one"));
    assert!(chattr(&sandbox, "-i"));
    apply(&sandbox, &wanted("two").file(ON_MOUNT, "x", 0o644)).unwrap();
    assert_eq!(sandbox.read(ON_MOUNT).as_deref(), Some("x"));
}

#[test]
fn an_applied_path_on_a_mount_that_is_closed_later_stops_no_other_change() {
    let Some((sandbox, _mounted)) = machine() else {
        return;
    };
    apply(&sandbox, &wanted("one").file(ON_MOUNT, "x", 0o644)).unwrap();
    std::fs::remove_dir_all(sandbox.path("/srv/data/.machinist")).ok();
    assert!(chattr(&sandbox, "+i"));
    apply(&sandbox, &wanted("two").file(ON_MOUNT, "x", 0o644)).unwrap();
    assert_eq!(sandbox.read("/etc/plain").as_deref(), Some("two"));
    let changed = wanted("three").file(ON_MOUNT, "y", 0o644);
    let refusals = apply(&sandbox, &changed).unwrap_err();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_eq!(sandbox.read(ON_MOUNT).as_deref(), Some("x"));
    assert!(chattr(&sandbox, "-i"));
}
