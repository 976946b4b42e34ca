//! A mount where every user may create files: another user's object at the path of the staging
//! directory is neither used nor changed, and it blocks nothing.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, FsOpKind};
use machinist_testkit::{
    sandbox::{Sandbox, Written, apply, config},
    stepwise_update::StepwiseUpdate,
};

const TOP: &str = "/srv/shared";

fn machine() -> Sandbox {
    let sandbox = Sandbox::with_mounts(&[TOP]);
    sandbox.write("/srv/shared/found", "found\n");
    chmod(&sandbox, TOP, 0o1777);
    sandbox
}

fn chmod(sandbox: &Sandbox, path: &str, mode: u32) {
    fs::set_permissions(sandbox.path(path), fs::Permissions::from_mode(mode)).unwrap();
}

fn wanted(text: &str) -> Written {
    config(text)
        .file("/srv/shared/found", text, 0o644)
        .file("/srv/shared/new", text, 0o644)
        .file("/etc/unrelated", text, 0o644)
}

/// The names of staging directories at the top, other than the usual one.
fn others(sandbox: &Sandbox) -> Vec<String> {
    let names = fs::read_dir(sandbox.path(TOP)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with(".machinist-"))
        .collect()
}

/// Two updates and the way back, with an object at the path of the usual directory.
fn check(put: &dyn Fn(&Sandbox)) {
    let sandbox = machine();
    put(&sandbox);
    let usual = sandbox.path("/srv/shared/.machinist");
    let before = fs::symlink_metadata(&usual).unwrap();
    sandbox.applied(&wanted("one"));
    let [other] = &others(&sandbox)[..] else {
        panic!("one directory: {:?}", others(&sandbox));
    };
    let made = fs::symlink_metadata(sandbox.path(TOP).join(other)).unwrap();
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!((made.uid(), made.mode() & 0o7777), (own, 0o700));
    assert!(sandbox.path(TOP).join(other).join("originals").is_dir());
    // It is recorded from now on.
    sandbox.applied(&wanted("two"));
    assert_eq!(&others(&sandbox), std::slice::from_ref(other));
    sandbox.applied(&config("empty"));
    let found = fs::read_to_string(sandbox.path("/srv/shared/found")).unwrap();
    assert_eq!(found, "found\n");
    assert!(!sandbox.path("/srv/shared/new").exists());
    assert_eq!(others(&sandbox), [""; 0]);
    assert!(sandbox.journal().holders.is_empty());
    let after = fs::symlink_metadata(&usual).unwrap();
    let facts = |it: &fs::Metadata| (it.ino(), it.mode(), it.uid(), it.mtime(), it.mtime_nsec());
    assert_eq!(facts(&after), facts(&before));
}

#[test]
fn a_file_at_the_staging_path_does_not_block_updates() {
    check(&|sandbox| sandbox.write("/srv/shared/.machinist", ""));
}

#[test]
fn a_link_at_the_staging_path_is_not_followed() {
    check(&|sandbox| {
        fs::create_dir_all(sandbox.path("/srv/elsewhere")).unwrap();
        symlink("/srv/elsewhere", sandbox.path("/srv/shared/.machinist")).unwrap();
    });
}

#[test]
fn a_staging_directory_accessible_to_other_users_is_not_used() {
    for (mode, owner) in [(0o777, None), (0o755, None), (0o700, Some(1000))] {
        if owner.is_some() && !nix::unistd::geteuid().is_root() {
            println!("not tried: only root may give directories away");
            continue;
        }
        check(&|sandbox| {
            let usual = sandbox.path("/srv/shared/.machinist");
            fs::create_dir(&usual).unwrap();
            chmod(sandbox, "/srv/shared/.machinist", mode);
            std::os::unix::fs::chown(&usual, owner, owner).unwrap();
        });
    }
}

#[test]
fn a_staging_directory_unknown_to_the_journal_is_not_used() {
    check(&|sandbox| {
        fs::create_dir(sandbox.path("/srv/shared/.machinist")).unwrap();
        chmod(sandbox, "/srv/shared/.machinist", 0o700);
    });
}

#[test]
fn a_staging_directory_with_originals_of_an_older_version_is_used() {
    let sandbox = machine();
    sandbox.applied(&wanted("one"));
    let store = machinist_update::store::StateStore::open(&sandbox.root()).unwrap();
    let mut journal = store.load().unwrap();
    assert_eq!(journal.holders.len(), 1);
    journal.holders.clear();
    store.save(&journal).unwrap();
    drop(store);
    sandbox.applied(&wanted("two"));
    assert_eq!(others(&sandbox), [""; 0]);
    sandbox.applied(&config("empty"));
    assert!(!sandbox.path("/srv/shared/.machinist").exists());
}

#[test]
fn a_crash_after_staging_leaves_no_directory_behind() {
    let sandbox = machine();
    sandbox.write("/srv/shared/.machinist", "");
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&wanted("one")).unwrap();
    assert_eq!(others(&sandbox).len(), 1);
    drop(hand);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.undo().unwrap();
    drop(hand);
    assert_eq!(others(&sandbox), [""; 0]);
    assert!(sandbox.path("/srv/shared/.machinist").is_file());
    assert!(!sandbox.path("/etc/unrelated").exists());
}

#[test]
fn a_staging_directory_created_by_others_meanwhile_is_not_used() {
    let sandbox = machine();
    let top = sandbox.path(TOP);
    // Another process creates the directory in the moment before machinist does.
    let hook = move |op: &FsOp| {
        if matches!(op.act, FsOpKind::MakeDir(_)) && op.path.file_name() == ".machinist" {
            let usual = top.join(".machinist");
            if fs::create_dir(&usual).is_ok() {
                fs::set_permissions(&usual, fs::Permissions::from_mode(0o777)).unwrap();
            }
        }
        None
    };
    let root = sandbox.root().with_fault(std::sync::Arc::new(hook));
    let report = apply(&root, &wanted("one")).unwrap();
    assert_eq!(report.failure, None, "the second attempt uses another name");
    let journal = sandbox.journal();
    let ends: Vec<_> = journal.history.iter().map(|it| it.reason).collect();
    assert_eq!(ends, [Some(Reason::TargetChanged), None]);
    assert_eq!(others(&sandbox).len(), 1);
    let usual = sandbox.path("/srv/shared/.machinist");
    assert_eq!(fs::read_dir(usual).unwrap().count(), 0);
}
