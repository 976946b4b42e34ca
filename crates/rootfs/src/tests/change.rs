use std::{
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::*;
use machinist_base::reason::Reason;

fn real_mode(place: &Place, p: &str) -> u32 {
    std::fs::symlink_metadata(place.real(p)).unwrap().mode() & 0o7777
}

#[test]
fn files_directories_and_links_can_be_exchanged() {
    let place = Place::new();
    let file = place.file("/etc/f", "file");
    let dir = place.directory("/etc/d");
    place.file("/etc/d/below", "below");
    let link = place.link("/etc/l", "target");
    place.root.exchange(&file, &dir).unwrap();
    assert_eq!(place.text("/etc/d"), "file");
    assert_eq!(place.text("/etc/f/below"), "below");
    place.root.exchange(&file, &link).unwrap();
    assert_eq!(place.text("/etc/l/below"), "below");
    assert_eq!(place.root.read_link(&file).unwrap(), "target");
    let error = place.root.exchange(&file, &at("/etc/none")).unwrap_err();
    assert!(error.is_not_found());
    assert!(!error.exchange_unsupported());
    assert_eq!(place.root.read_link(&file).unwrap(), "target");
}

#[test]
fn move_new_never_replaces() {
    let place = Place::new();
    let (a, b) = (place.file("/etc/a", "a"), place.file("/etc/b", "b"));
    let error = place.root.move_new(&a, &b).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    let base = place.real("/etc");
    let expected = format!("cannot move {0}/a to {0}/b: File exists", base.display());
    assert!(chain(&error).starts_with(&expected), "{}", chain(&error));
    place.root.move_new(&a, &at("/etc/c")).unwrap();
    assert_eq!(
        (place.text("/etc/b"), place.text("/etc/c")),
        ("b".into(), "a".into())
    );
}

#[test]
fn a_created_object_has_its_full_mode_and_owner() {
    let place = Place::new();
    let can = place.root.can_chown();
    let owned = |mode| Meta {
        mode,
        uid: 12,
        gid: 34,
        chown: can,
    };
    let file = at("/etc/f");
    place.root.build_file(&file, b"x", &owned(0o6755)).unwrap();
    place.root.build_dir(&at("/etc/d"), &owned(0o1777)).unwrap();
    place.root.build_link(&at("/etc/l"), "../none").unwrap();
    place.root.own_link(&at("/etc/l"), &owned(0)).unwrap();
    // An unprivileged user may lose setgid if not a member of the file's group.
    assert_eq!(real_mode(&place, "/etc/f") & 0o4777, 0o4755);
    assert_eq!(real_mode(&place, "/etc/d"), 0o1777);
    for p in ["/etc/f", "/etc/d", "/etc/l"] {
        let found = std::fs::symlink_metadata(place.real(p)).unwrap();
        assert_eq!((found.uid(), found.gid()) == (12, 34), can, "{p}");
    }
    let again = place
        .root
        .build_file(&file, b"y", &meta(0o600))
        .unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    let forced = Meta {
        chown: true,
        ..owned(0o600)
    };
    let answer = place.root.build_file(&at("/etc/g"), b"", &forced);
    match can {
        true => answer.unwrap(),
        false => assert_eq!(answer.unwrap_err().reason(), Reason::PermissionMissing),
    }
}

#[test]
fn a_directory_changes_mode_in_place_and_a_link_to_one_does_not() {
    let place = Place::new();
    let dir = place.directory("/etc/d");
    let before = place.root.stat(&dir).unwrap().unwrap().identity;
    place.root.set_meta(&dir, &meta(0o710)).unwrap();
    assert_eq!(real_mode(&place, "/etc/d"), 0o710);
    assert_eq!(place.root.stat(&dir).unwrap().unwrap().identity, before);
    let link = place.link("/etc/l", "d");
    assert!(place.root.set_meta(&link, &meta(0o777)).is_err());
    assert_eq!(real_mode(&place, "/etc/d"), 0o710);
}

#[test]
fn a_reader_never_sees_a_mix_of_two_writers() {
    let place = Place::new();
    let file = place.file("/etc/state", &"a".repeat(100_000));
    let done = AtomicBool::new(false);
    let seen = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = ["a", "b"]
            .map(|letter| {
                let (root, file) = (place.root.clone(), file.clone());
                scope.spawn(move || {
                    for _ in 0..50 {
                        root.replace(&file, letter.repeat(100_000).as_bytes(), 0o640)
                            .unwrap();
                    }
                })
            })
            .into();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let text = place.root.read_text(&file, 1 << 20).unwrap();
                let first = &text[..1];
                assert!(text == first.repeat(100_000), "torn after {}", text.len());
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        let ends: Vec<_> = writers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(Result::unwrap);
    });
    assert!(seen.into_inner() > 0);
    assert_eq!(real_mode(&place, "/etc/state"), 0o640);
    assert_eq!(std::fs::read_dir(place.real("/etc")).unwrap().count(), 1);
}

#[test]
fn a_leftover_temporary_file_is_overwritten_by_the_next_replace() {
    let place = Place::new();
    place.file("/etc/.state.new", "left over and longer");
    place
        .root
        .replace(&at("/etc/state"), b"new", 0o600)
        .unwrap();
    assert_eq!(place.text("/etc/state"), "new");
    assert_eq!(std::fs::read_dir(place.real("/etc")).unwrap().count(), 1);
}

#[test]
fn missing_directories_are_created_and_existing_ones_unchanged() {
    let place = Place::new();
    place.directory("/var/real");
    place.link("/lib", "/var/real");
    place.root.set_meta(&at("/var"), &meta(0o711)).unwrap();
    place.root.make_dirs(&at("/lib/a/b"), 0o770).unwrap();
    place.root.make_dirs(&at("/lib/a/b"), 0o700).unwrap();
    assert_eq!(real_mode(&place, "/var/real/a/b"), 0o770);
    assert_eq!(real_mode(&place, "/var/real/a"), 0o770);
    assert_eq!(real_mode(&place, "/var"), 0o711);
    place.file("/etc/f", "");
    let error = place.root.make_dirs(&at("/etc/f/x"), 0o755).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn removing_a_tree_does_not_follow_links() {
    let place = Place::new();
    place.directory("/keep");
    place.file("/keep/file", "kept");
    let tree = place.directory("/etc/tree/deep");
    place.link("/etc/tree/deep/dir", "/keep");
    place.link("/etc/tree/file", "../../keep/file");
    std::fs::hard_link(place.real("/keep/file"), place.real("/etc/tree/hard")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"bad\xff");
    std::fs::write(place.real("/etc/tree").join(odd), "").unwrap();
    assert!(!place.root.remove_empty_dir(&tree).unwrap());
    place.root.remove_tree(&at("/etc/tree")).unwrap();
    place.root.remove_tree(&at("/etc/tree")).unwrap();
    assert_eq!(std::fs::read_dir(place.real("/etc")).unwrap().count(), 0);
    assert_eq!(place.text("/keep/file"), "kept");
    assert!(place.root.remove_empty_dir(&at("/etc")).unwrap());
    assert!(!place.root.remove_empty_dir(&at("/etc")).unwrap());
    place.root.remove_file(&at("/etc/none")).unwrap();
}

/// The user has the directory open from before it was moved to a place that only root may enter.
#[test]
fn removing_a_tree_ends_although_its_user_changes_it_meanwhile() {
    use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this needs root, to act as another user");
        return;
    }
    const BOB: u32 = 61_234;
    let place = Place::new();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.real("/"), everybody).unwrap();
    for act in [": > \"f$i\"", "mkdir -p e/\"$i\"", ": > f0; rm -f f*"] {
        let directory = place.real("/etc/tree/deep/of-bob");
        std::fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(BOB), Some(BOB)).unwrap();
        let script = format!("i=0; while :; do i=$((i+1)); {act}; done 2>/dev/null");
        let mut bob = std::process::Command::new("sh");
        bob.args(["-c", &script]).current_dir(&directory).uid(BOB);
        let mut bob = bob.spawn().unwrap();
        while std::fs::read_dir(&directory).unwrap().next().is_none() {
            std::thread::yield_now();
        }
        let removed = place.root.remove_tree(&at("/etc/tree"));
        bob.kill().unwrap();
        bob.wait().unwrap();
        removed.unwrap();
        assert!(!place.real("/etc/tree").exists(), "{act}");
    }
}

#[test]
fn removing_a_tree_stops_at_a_mount() {
    let place = Place::new();
    place.directory("/etc/tree/mount");
    place.file("/etc/tree/mount/kept", "kept");
    let root = place
        .root
        .clone()
        .with_simulated_mounts(vec![at("/etc/tree/mount")]);
    let error = root.remove_tree(&at("/etc/tree")).unwrap_err();
    assert_eq!(error.reason(), Reason::TargetIsMountPoint);
    assert_eq!(place.text("/etc/tree/mount/kept"), "kept");
}

#[test]
fn a_simulated_mount_separates_paths_as_a_real_one_does() {
    let place = Place::new();
    place.directory("/var");
    let root = place.root.clone().with_simulated_mounts(vec![at("/var")]);
    let (a, b) = (place.file("/etc/a", "a"), place.file("/var/b", "b"));
    let exdev = Some(rustix::io::Errno::XDEV.raw_os_error());
    assert_eq!(root.exchange(&a, &b).unwrap_err().raw_os_error(), exdev);
    assert_ne!(root.mount(&a).unwrap().id, root.mount(&b).unwrap().id);
    assert_eq!(root.mount(&at("/var/no/such")).unwrap().top, at("/var"));
    assert!(root.stat(&at("/var")).unwrap().unwrap().mount_point);
}

#[test]
fn a_file_lock_has_one_holder_until_it_is_dropped() {
    let place = Place::new();
    let held = place.root.lock(&at("/lock")).unwrap();
    assert!(held.is_some());
    assert!(place.root.lock(&at("/lock")).unwrap().is_none());
    drop(held);
    assert!(place.root.lock(&at("/lock")).unwrap().is_some());
}

/// An access control list as xattr(7) carries it: version 2, then tag, permissions and id of each
/// entry, for owner rw, user 1000 rw, group r, mask rw, others none.
fn some_acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (1, 6, NOBODY),
        (2, 6, 1000),
        (4, 4, NOBODY),
        (16, 6, NOBODY),
        (32, 0, NOBODY),
    ];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([tag, 0, permissions, 0_u8]);
        acl.extend(u32::to_le_bytes(id));
    }
    acl
}

#[test]
fn a_replacement_file_inherits_xattrs_and_keeps_its_own_mode() {
    let place = Place::new();
    let (old, new) = (place.file("/etc/old", ""), place.file("/etc/new", ""));
    place.root.set_meta(&at("/etc"), &meta(0o755)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let long = vec![b'v'; 2000];
    let mut expected = Vec::new();
    for (name, value) in [("user.long", long), ("system.posix_acl_access", some_acl())] {
        match rustix::fs::setxattr(place.real("/etc/old"), name, &value, flags) {
            Ok(()) => expected.push((name, value)),
            Err(errno) => println!("{name} cannot be tried here: {errno}"),
        }
    }
    std::fs::set_permissions(
        place.real("/etc/new"),
        std::os::unix::fs::PermissionsExt::from_mode(0o640),
    )
    .unwrap();
    let extras = place.root.copy_meta_extras(&old, &new, None).unwrap();
    assert!(extras.left.is_empty(), "{:?}", extras.left);
    for (name, value) in &expected {
        let mut found = vec![0; 4096];
        let length = rustix::fs::getxattr(place.real("/etc/new"), *name, &mut found[..]).unwrap();
        // The mode determines the list's mask, and through it these bytes differ: 0640 means r.
        if name.starts_with("user.") {
            assert_eq!(found[..length], value[..], "{name}");
        } else {
            assert_eq!(length, value.len(), "{name}");
        }
    }
    assert_eq!(real_mode(&place, "/etc/new"), 0o640);
}

#[test]
fn an_xattr_that_cannot_be_set_is_reported_and_not_fatal() {
    let place = Place::new();
    let (old, new) = (place.file("/etc/old", ""), place.file("/etc/new", ""));
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(errno) = rustix::fs::setxattr(place.real("/etc/old"), "user.a", b"1", flags) {
        println!("user attributes cannot be tried here: {errno}");
        return;
    }
    let refuse = |op: &FsOp| {
        matches!(op.act, FsOpKind::SetAttribute(..)).then(|| io::ErrorKind::Unsupported.into())
    };
    let root = place.root.clone().with_fault(Arc::new(refuse));
    let extras = root.copy_meta_extras(&old, &new, None).unwrap();
    assert_eq!(extras.left[0].0, "user.a");
    assert!(extras.copied.is_empty());
}

#[test]
fn an_immutable_file_is_distinguished_from_a_missing_permission() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let place = Place::new();
    let file = place.file("/etc/f", "kept");
    let opened = std::fs::File::open(place.real("/etc/f")).unwrap();
    let flags = ioctl_getflags(&opened).and_then(|flags| {
        ioctl_setflags(&opened, flags | IFlags::IMMUTABLE)?;
        Ok(flags)
    });
    let Ok(flags) = flags else {
        println!("the immutable flag cannot be set here");
        return;
    };
    let immutable = place.root.stat(&file).unwrap().unwrap().immutable;
    let removed = place.root.remove_file(&file);
    ioctl_setflags(&opened, flags).unwrap();
    assert!(immutable);
    assert_eq!(removed.unwrap_err().reason(), Reason::Immutable);
}

#[test]
fn an_injected_io_error_replaces_the_operation_and_maps_to_its_reason() {
    for (errno, reason, again) in [
        (rustix::io::Errno::NOSPC, Reason::NoSpace, true),
        (rustix::io::Errno::DQUOT, Reason::NoSpace, true),
        (rustix::io::Errno::ROFS, Reason::ReadOnly, true),
        (rustix::io::Errno::ACCESS, Reason::PermissionMissing, false),
        (rustix::io::Errno::IO, Reason::Io, true),
    ] {
        let place = Place::new();
        let file = place.file("/etc/f", "old");
        let count = AtomicUsize::new(0);
        // The third operation of a replacement sets the mode.
        let third =
            move |_: &FsOp| (count.fetch_add(1, Ordering::Relaxed) == 2).then(|| errno.into());
        let root = place.root.clone().with_fault(Arc::new(third));
        let error = root.replace(&file, b"new", 0o600).unwrap_err();
        assert_eq!(
            (error.reason(), error.is_retryable()),
            (reason, again),
            "{errno}"
        );
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
        assert_eq!(place.text("/etc/f"), "old");
        root.replace(&file, b"new", 0o600).unwrap();
        assert_eq!(place.text("/etc/f"), "new");
    }
}

#[test]
fn a_failed_sync_is_reported_and_a_good_one_recorded() {
    let place = Place::new();
    let (root, recording) = place.root.clone().recording();
    let file = place.file("/etc/f", "x");
    root.sync_file(&file).unwrap();
    root.sync_dir(&at("/etc")).unwrap();
    root.sync_point(&at("/etc/not/there"))
        .unwrap()
        .sync()
        .unwrap();
    let acts: Vec<_> = recording
        .log()
        .into_iter()
        .map(|op| (op.path, op.act))
        .collect();
    let expected = [
        (file.clone(), FsOpKind::SyncFile),
        (at("/etc"), FsOpKind::SyncDir),
        (at("/etc"), FsOpKind::SyncFs),
    ];
    assert_eq!(acts, expected);
    let fail = |op: &FsOp| (op.act == FsOpKind::SyncFs).then(|| rustix::io::Errno::IO.into());
    let root = root.with_fault(Arc::new(fail));
    let error = root
        .sync_point(&file.parent().unwrap())
        .unwrap()
        .sync()
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Io);
    assert_eq!(recording.len(), 3);
}
