//! Leases that the owners of files hold (fcntl(2), `F_SETLEASE`), so that root cannot open them: only the leased
//! path is concerned.

use machinist_plan::{Capabilities, DriftEntry, Plan, Policies};
use machinist_testkit::{file_lease::FileLease, sandbox::conduct};
use machinist_update::{
    cache::ObservationCache,
    observe_and_plan::{self, PlanOptions},
};

use super::*;

const KEYS: &str = "/home/bob/.ssh/authorized_keys";

fn capabilities() -> Capabilities {
    Capabilities {
        chown: true,
        ..conduct(false).capabilities
    }
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (journal, policies) = (sandbox.journal(), Policies::default());
    let remembered = ObservationCache::default();
    let how = PlanOptions {
        remembered: &remembered,
        policies: &policies,
        capabilities: capabilities(),
        units: None,
        only: None,
    };
    let looked = observe_and_plan::observe_and_plan(&sandbox.root(), &journal, &to.0, how).unwrap();
    looked.plan.unwrap()
}

fn drift(sandbox: &Sandbox) -> Vec<DriftEntry> {
    let (journal, remembered) = (sandbox.journal(), ObservationCache::default());
    let current = observe_and_plan::current(&journal);
    let drift =
        observe_and_plan::drift(&sandbox.root(), current, None, capabilities(), &remembered);
    drift.unwrap()
}

fn lease(sandbox: &Sandbox, path: &str) -> FileLease {
    FileLease::on(&sandbox.path(path))
}

/// The mode of one file, without contents.
fn with_mode(path: &str, mode: u32) -> Written {
    let mut wanted = config("mode").file(path, "", mode);
    let file = wanted.0.files.get_mut(&at(path)).unwrap();
    (file.content, file.user, file.group) = (None, None, None);
    wanted
}

#[test]
fn a_leased_file_is_replaced_and_every_other_path_is_applied() {
    if !plays_users() {
        return;
    }
    for path in ["/home/bob/app", "/srv/app"] {
        let sandbox = machine(&[]);
        apply(&sandbox, &with_file(path, BOB)).unwrap();
        let _first = lease(&sandbox, path);
        let message: Vec<String> = drift(&sandbox).iter().map(ToString::to_string).collect();
        let expected = format!("{path} cannot be read: it is held by a lease of another process");
        assert_eq!(message, [expected]);
        assert!(drift(&sandbox).iter().all(|one| one.by_user));
        let next = with_file(path, BOB).file("/etc/next", "next\n", 0o644);
        let warnings = plan(&sandbox, &next).warnings;
        let expected = format!(
            "{path} cannot be read, because it is held by a lease of another process: this update replaces it"
        );
        assert_eq!(warnings, [expected]);
        apply(&sandbox, &next).unwrap();
        assert_eq!(sandbox.read("/etc/next").as_deref(), Some("next\n"));
        // The lease is on the file that was replaced.
        assert_eq!(sandbox.read(path).as_deref(), Some("ours\n"));
        assert_eq!(drift(&sandbox), []);
        let _second = lease(&sandbox, path);
        apply(&sandbox, &config("nothing")).unwrap();
        let gone = [path, "/etc/plain", "/etc/next"].map(|path| sandbox.read(path));
        assert_eq!(gone, [None, None, None]);
    }
}

#[test]
fn leased_keys_are_skipped_with_a_warning() {
    if !plays_users() {
        return;
    }
    let keys = |comment: &str| {
        let key = format!("ssh-ed25519 BBBB {comment}");
        let keys = config(comment).key("bob", &key);
        keys.file("/etc/plain", comment, 0o644)
    };
    for comment in ["first", "second"] {
        let sandbox = machine(&[]);
        sandbox.write("/etc/passwd", "bob:x:1001:1001::/home/bob:/bin/sh\n");
        apply(&sandbox, &keys("first")).unwrap();
        let before = sandbox.read(KEYS).unwrap();
        assert!(before.contains("first"));
        let held = lease(&sandbox, KEYS);
        let warnings = plan(&sandbox, &keys(comment)).warnings;
        let skipped = format!(
            "KeysSkipped: {KEYS} is held by a lease of another process; the SSH keys for bob are skipped"
        );
        assert!(warnings.contains(&skipped), "{warnings:?}");
        apply(&sandbox, &keys(comment)).unwrap();
        assert_eq!(sandbox.read("/etc/plain").as_deref(), Some(comment));
        apply(&sandbox, &config("nothing")).unwrap();
        assert_eq!(sandbox.read("/etc/plain"), None);
        drop(held);
        assert_eq!(sandbox.read(KEYS), Some(before));
    }
}

#[test]
fn a_leased_original_is_kept_and_restored() {
    if !plays_users() {
        return;
    }
    let path = "/srv/app";
    let replaced = |bring_content_back: bool| {
        let sandbox = machine(&[File(path, BOB)]);
        let mut opened = std::fs::File::options();
        let opened = opened.read(true).write(true).open(sandbox.path(path));
        apply(&sandbox, &with_file(path, 0)).unwrap();
        let held = FileLease::through(opened.unwrap());
        let more = with_file(path, 0).file("/etc/more", "more\n", 0o644);
        apply(&sandbox, &more).unwrap();
        assert_eq!(sandbox.read("/etc/more").as_deref(), Some("more\n"));
        if bring_content_back {
            let without = with_mode(path, 0o640);
            let warnings = plan(&sandbox, &without).warnings;
            let message =
                |warning: &String| warning.contains("the original of /srv/app cannot be read");
            assert!(warnings.iter().any(message), "{warnings:?}");
            apply(&sandbox, &without).unwrap();
            assert_eq!(sandbox.read(path).as_deref(), Some(""));
        }
        apply(&sandbox, &config("nothing")).unwrap();
        assert_eq!(sandbox.read("/etc/more"), None);
        drop(held);
        assert_eq!(sandbox.read(path).as_deref(), Some("found\n"));
        assert_eq!(owner(&sandbox, path), BOB);
    };
    replaced(false);
    replaced(true);
}

#[test]
fn mode_and_owner_of_a_leased_file_are_set_and_restored() {
    if !plays_users() {
        return;
    }
    for path in ["/home/bob/app", "/srv/app"] {
        let sandbox = machine(&[File(path, BOB)]);
        let mode = || sandbox.root().stat(&at(path)).unwrap().unwrap().mode;
        let _held = lease(&sandbox, path);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&with_mode(path, 0o600)).unwrap();
        hand.commit().unwrap();
        assert_eq!(mode(), 0o600);
        hand.undo().unwrap();
        assert_eq!(mode(), 0o644);
    }
}
