//! Objects with which a user can replace a managed object, or that are created next to it, to cause
//! delays: files of any size, which cost nothing as sparse files and hours to read, trees of any
//! depth, names and links that are not UTF-8.

use std::{fs::File, os::unix::fs::MetadataExt as _, sync::mpsc, time::Duration};

use machinist_plan::{ChangeKind, DriftKind, Plan, Policies};
use machinist_update::{cache::ObservationCache, observe_and_plan};

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, conduct, config},
    stepwise_update::StepwiseUpdate,
};

const HUGE: u64 = 4 << 40;

/// Only relevant for a failure: reading one of these files takes an hour.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the result of `work`; fails if it reads a huge file, without waiting for the end of
/// that.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result
        .recv_timeout(PATIENCE)
        .expect("done without reading a huge file")
}

/// Makes the file at `path` a sparse one; false if the file system supports none of that size.
fn make_huge(sandbox: &Sandbox, path: &str) -> bool {
    let path = sandbox.path(path);
    std::fs::remove_file(&path).ok();
    match File::create(path).unwrap().set_len(HUGE) {
        Ok(()) => true,
        Err(error) => {
            println!("not tried: no file of {HUGE} bytes here: {error}");
            false
        }
    }
}

fn wanted(text: &str) -> Written {
    let large = "x".repeat(2 << 20);
    config(text)
        .file("/etc/managed", text, 0o644)
        .file("/etc/large", &large, 0o644)
        .file("/etc/other", text, 0o644)
        .hard("/etc/name", "/etc/large")
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (journal, policies) = (sandbox.journal(), Policies::default());
    let remembered = ObservationCache::default();
    let how = observe_and_plan::PlanOptions {
        remembered: &remembered,
        policies: &policies,
        capabilities: conduct(false).capabilities,
        units: None,
        only: None,
    };
    let looked = observe_and_plan::observe_and_plan(&sandbox.root(), &journal, &to.0, how).unwrap();
    looked.plan.unwrap()
}

fn drift(sandbox: &Sandbox) -> Vec<(String, DriftKind)> {
    let base = sandbox.journal().base;
    let capabilities = conduct(false).capabilities;
    let (root, remembered) = (sandbox.root(), ObservationCache::default());
    let drift = observe_and_plan::drift(&root, base.as_ref(), None, capabilities, &remembered);
    let message = drift.unwrap().into_iter();
    message
        .map(|drift| (drift.path.to_string(), drift.kind))
        .collect()
}

#[test]
fn a_huge_file_replacing_a_managed_one_is_drift_and_is_repaired() {
    in_time(|| {
        let sandbox = Sandbox::new();
        sandbox.applied(&wanted("one"));
        assert_eq!(drift(&sandbox), []);
        for path in ["/etc/managed", "/etc/name", "/etc/large"] {
            if !make_huge(&sandbox, path) {
                return;
            }
        }
        let changed = |path: &str| (path.to_owned(), DriftKind::Content);
        let all = ["/etc/large", "/etc/managed", "/etc/name"].map(changed);
        assert_eq!(drift(&sandbox), all);
        let plan = plan(&sandbox, &wanted("one"));
        let changes = plan
            .changes
            .iter()
            .map(|change| (&*change.name, change.change));
        let replaced = |path| (path, ChangeKind::Modify);
        let all = ["/etc/large", "/etc/managed", "/etc/name"].map(replaced);
        assert_eq!(changes.collect::<Vec<_>>(), all);
        sandbox.applied(&wanted("two"));
        assert_eq!(drift(&sandbox), []);
        assert_eq!(std::fs::read(sandbox.path("/etc/managed")).unwrap(), b"two");
        sandbox.applied(&config("empty"));
        assert!(!sandbox.path("/etc/managed").exists());
    });
}

#[test]
fn a_huge_original_file_is_kept_and_restored() {
    in_time(|| {
        let sandbox = Sandbox::new();
        if !make_huge(&sandbox, "/etc/managed") {
            return;
        }
        sandbox.applied(&wanted("one"));
        make_huge(&sandbox, "/etc/managed");
        sandbox.applied(&config("empty"));
        let size = std::fs::metadata(sandbox.path("/etc/managed"))
            .unwrap()
            .len();
        assert_eq!(size, HUGE);
    });
}

/// A config without the content of this file; its mode applies.
fn with_mode_only(name: &str, path: &str) -> Written {
    let mut wanted = config(name)
        .file(path, "", 0o640)
        .file("/etc/other", name, 0o644);
    wanted.0.files.get_mut(&at(path)).unwrap().content = None;
    wanted
}

/// Bytes on disk and length.
fn extent(sandbox: &Sandbox, path: &str) -> (u64, u64) {
    let found = std::fs::metadata(sandbox.path(path)).unwrap();
    (found.blocks() * 512, found.len())
}

#[test]
fn an_original_whose_content_comes_back_keeps_its_holes() {
    const LENGTH: u64 = 64 << 20;
    let sandbox = Sandbox::new();
    sandbox.write("/etc/managed", "first");
    let file = File::options()
        .write(true)
        .open(sandbox.path("/etc/managed"));
    file.unwrap().set_len(LENGTH).unwrap();
    sandbox.applied(&config("one").file("/etc/managed", "one", 0o644));
    sandbox.applied(&with_mode_only("two", "/etc/managed"));
    let (blocks, length) = extent(&sandbox, "/etc/managed");
    assert_eq!(length, LENGTH);
    assert!(blocks < LENGTH / 8, "{blocks}");
    let content = std::fs::read(sandbox.path("/etc/managed")).unwrap();
    assert!(content.starts_with(b"first\0"));
    assert!(content[5..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_huge_original_of_a_user_blocks_no_other_entry() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    in_time(|| {
        let sandbox = Sandbox::new();
        std::fs::create_dir_all(sandbox.path("/home/bob")).unwrap();
        if !make_huge(&sandbox, "/home/bob/app.conf") {
            return;
        }
        for path in ["/home/bob", "/home/bob/app.conf"] {
            std::os::unix::fs::chown(sandbox.path(path), Some(1001), Some(1001)).unwrap();
        }
        sandbox.applied(&config("one").file("/home/bob/app.conf", "one", 0o644));
        sandbox.applied(&with_mode_only("two", "/home/bob/app.conf"));
        assert_eq!(sandbox.read("/etc/other").unwrap(), "two");
        assert_eq!(sandbox.read("/home/bob/app.conf").unwrap(), "one");
        let journal = sandbox.journal();
        let left = journal.history.last().unwrap().left_behind.join("");
        assert!(left.contains("/home/bob/app.conf is not changed"), "{left}");
        let mode = ("/home/bob/app.conf".to_owned(), DriftKind::Mode);
        assert_eq!(drift(&sandbox), [mode]);
    });
}

#[test]
fn huge_foreign_files_in_a_managed_directory_do_not_block_rollback() {
    in_time(|| {
        let sandbox = Sandbox::new();
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        let wanted = config("wanted").file("/etc/new/dir/file", "ours", 0o644);
        hand.stage(&wanted).unwrap();
        hand.commit().unwrap();
        for path in ["/etc/new/dir/file", "/etc/new/dir/beside"] {
            if !make_huge(&sandbox, path) {
                return;
            }
        }
        hand.undo().unwrap();
        assert!(!sandbox.path("/etc/new").exists());
        // The directory is kept, because another user has put something into it.
        let kept = sandbox.path("/var/lib/machinist/drifted");
        assert_eq!(std::fs::read_dir(kept).unwrap().count(), 1);
    });
}

#[test]
fn a_large_managed_file_is_still_verified() {
    let sandbox = Sandbox::new();
    sandbox.applied(&wanted("one"));
    let text = "y".repeat(2 << 20);
    sandbox.write("/etc/large", &text);
    let changed = ("/etc/large".to_owned(), DriftKind::Content);
    assert_eq!(drift(&sandbox), [changed]);
}

#[test]
fn a_link_with_a_non_utf8_target_is_drift_and_is_replaced() {
    use std::os::unix::ffi::OsStrExt as _;
    let sandbox = Sandbox::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let put = |path: &str| {
        std::fs::remove_file(sandbox.path(path)).ok();
        std::os::unix::fs::symlink(odd, sandbox.path(path)).unwrap();
    };
    put("/etc/found");
    let wanted = |text: &str| {
        config(text)
            .file("/etc/managed", text, 0o644)
            .file("/etc/other", text, 0o644)
            .link("/etc/found", text)
            .file("/etc/way/f", text, 0o644)
    };
    sandbox.applied(&wanted("one"));
    put("/etc/managed");
    let changed = ("/etc/managed".to_owned(), DriftKind::Content);
    assert_eq!(drift(&sandbox), [changed]);
    sandbox.applied(&wanted("two"));
    assert_eq!(drift(&sandbox), []);
    // The original link is restored.
    sandbox.applied(&config("empty"));
    let back = std::fs::read_link(sandbox.path("/etc/found")).unwrap();
    assert_eq!(back.as_os_str(), odd);
}

#[test]
fn deep_trees_and_odd_names_in_a_managed_directory_do_not_block_rollback() {
    use std::os::unix::ffi::OsStrExt as _;
    let sandbox = Sandbox::new();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    let wanted = config("wanted").file("/etc/new/dir/file", "ours", 0o644);
    hand.stage(&wanted).unwrap();
    hand.commit().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let directory = sandbox.path("/etc/new/dir");
    std::os::unix::fs::symlink(odd, directory.join("link")).unwrap();
    std::fs::write(directory.join(odd), "").unwrap();
    // Deeper than a path can be long: each piece is created where it is not too deep, and moved.
    let name = "n".repeat(250);
    let piece = |inner: Option<std::path::PathBuf>| {
        let top = sandbox
            .path("/piece")
            .with_extension(inner.is_some().to_string());
        let deep = (0..10).fold(top.clone(), |at, _| at.join(&name));
        std::fs::create_dir_all(&deep).unwrap();
        if let Some(inner) = inner {
            std::fs::rename(inner, deep.join("inner")).unwrap();
        }
        top
    };
    let tree = piece(Some(piece(None)));
    std::fs::rename(tree, directory.join("deep")).unwrap();
    hand.undo().unwrap();
    assert!(!sandbox.path("/etc/new").exists());
    let kept = machinist_base::abs_path::AbsPath::new("/var/lib/machinist/drifted").unwrap();
    sandbox.root().remove_tree(&kept).unwrap();
    assert!(!sandbox.path("/var/lib/machinist/drifted").exists());
}
