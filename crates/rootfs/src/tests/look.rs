use std::{
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    time::Instant,
};

use super::*;

#[test]
fn absolute_and_parent_relative_links_stay_inside_the_root() {
    let place = Place::new();
    place.directory("/run");
    place.file("/run/real", "inside");
    for (name, target) in [
        ("/etc/absolute", "/run/real"),
        ("/etc/climbing", "../../../../../run/real"),
        ("/etc/chained", "absolute"),
    ] {
        let link = place.link(name, target);
        assert_eq!(place.root.read(&link, 100).unwrap(), b"inside", "{name}");
    }
    let outside = place.dir.path().join("outside");
    for (name, target) in [
        ("/etc/out", "../../outside"),
        ("/etc/named", outside.to_str().unwrap()),
        ("/etc/magic", "/proc/self/root/etc/passwd"),
    ] {
        let link = place.link(name, target);
        let error = place.root.read(&link, 100).unwrap_err();
        assert!(error.is_not_found(), "{name}: {}", chain(&error));
    }
}

#[test]
fn writing_through_a_linked_directory_stays_inside_the_root() {
    let place = Place::new();
    place.link("/var", "/../../tmp");
    place.directory("/tmp");
    place.root.replace(&at("/var/new"), b"x", 0o600).unwrap();
    assert_eq!(place.text("/tmp/new"), "x");
}

#[test]
fn a_loop_of_links_is_an_error() {
    let place = Place::new();
    place.link("/etc/a", "b");
    place.link("/etc/b", "a");
    let eloop = Some(rustix::io::Errno::LOOP.raw_os_error());
    let error = place.root.read(&at("/etc/a/x"), 100).unwrap_err();
    assert_eq!(error.raw_os_error(), eloop);
    let error = place.root.canonical(&at("/etc/a/x")).unwrap_err();
    assert_eq!(error.raw_os_error(), eloop);
}

#[test]
fn reading_a_pipe_or_a_device_fails_without_blocking() {
    let place = Place::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, place.real("/etc/pipe"), mode).unwrap();
    place.link("/etc/to-pipe", "pipe");
    let (done, answer) = std::sync::mpsc::channel();
    let root = place.root.clone();
    std::thread::spawn(move || {
        let found = |error| match error {
            RootError::WrongKind { found, .. } => found,
            other => panic!("{}", chain(&other)),
        };
        let read = root.read(&at("/etc/to-pipe"), 100).map_err(found);
        let digest = root.digest(&at("/etc/pipe")).map_err(found);
        let device = Root::open(Path::new("/")).unwrap();
        let device = device.read(&at("/dev/zero"), 100).map_err(found);
        done.send((read, digest, device)).unwrap();
    });
    let (read, digest, device) = answer.recv_timeout(WAIT_TIMEOUT).unwrap();
    assert_eq!(read, Err(FileKind::Fifo));
    assert_eq!(digest, Err(FileKind::Fifo));
    assert_eq!(device, Err(FileKind::CharDevice));
}

#[test]
fn reads_are_size_limited_and_can_reject_links() {
    let place = Place::new();
    let file = place.file("/etc/f", "12345");
    let link = place.link("/etc/l", "f");
    assert_eq!(place.root.read_text(&file, 5).unwrap(), "12345");
    assert_eq!(place.root.read_end(&file, 6).unwrap(), b"12345");
    assert_eq!(place.root.read_end(&file, 2).unwrap(), b"45");
    assert!(matches!(
        place.root.read(&file, 4),
        Err(RootError::TooLarge { limit: 4, .. })
    ));
    assert_eq!(place.root.read(&link, 5).unwrap(), b"12345");
    assert!(matches!(
        place.root.read_nofollow(&link, 5),
        Err(RootError::WrongKind {
            found: FileKind::Link,
            ..
        })
    ));
    assert_eq!(place.root.read_link(&link).unwrap(), "f");
    assert_eq!(
        place.root.read_link(&file).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    let digest = machinist_base::digest::Digest::of(b"12345");
    assert_eq!(place.root.digest(&file).unwrap(), digest);
    let within = |most| place.root.digest_within(&file, most).unwrap();
    assert_eq!((within(4), within(5)), (None, Some(digest)));
}

#[test]
fn a_pseudo_file_of_size_zero_is_read_completely() {
    let root = Root::open(Path::new("/")).unwrap();
    let pid = std::process::id().to_string();
    let status = root.read_text(&at(&format!("/proc/{pid}/status")), 1 << 20);
    assert!(status.unwrap().contains(&format!("Pid:\t{pid}\n")));
}

#[test]
fn stat_distinguishes_existing_and_missing_objects() {
    let place = Place::new();
    let file = place.file("/etc/f", "12345");
    let mode = std::fs::Permissions::from_mode(0o4750);
    std::fs::set_permissions(place.real("/etc/f"), mode).unwrap();
    let stat = place.root.stat(&file).unwrap().unwrap();
    assert_eq!(
        (stat.kind, stat.mode, stat.size),
        (FileKind::File, 0o4750, 5)
    );
    assert_eq!(
        (stat.uid, stat.nlink),
        (rustix::process::geteuid().as_raw(), 1)
    );
    let link = place.link("/etc/l", "/nowhere");
    assert_eq!(
        place.root.stat(&link).unwrap().unwrap().kind,
        FileKind::Link
    );
    for absent in ["/etc/none", "/none/none", "/etc/f/below"] {
        assert_eq!(place.root.stat(&at(absent)).unwrap(), None, "{absent}");
    }
    let whole = Root::open(Path::new("/")).unwrap();
    let null = whole.stat(&at("/dev/null")).unwrap().unwrap();
    assert_eq!((null.kind, null.rdev), (FileKind::CharDevice, Some((1, 3))));
    assert!(whole.stat(&at("/proc")).unwrap().unwrap().mount_point);
}

#[test]
fn identity_survives_a_rename_and_differs_after_re_creation() {
    let place = Place::new();
    let (a, b) = (place.file("/etc/a", "x"), at("/etc/b"));
    let identity = |p: &AbsPath| place.root.stat(p).unwrap().unwrap().identity;
    let first = identity(&a);
    place.root.move_new(&a, &b).unwrap();
    assert_eq!(identity(&b), first);
    // Birth times advance with the kernel's tick; an inode number reused within one tick cannot be
    // distinguished.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        std::fs::remove_file(place.real("/etc/b")).unwrap();
        place.file("/etc/b", "x");
        if identity(&b) != first {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the same identity for {WAIT_TIMEOUT:?}"
        );
    }
}

#[test]
fn a_directory_listing_is_sorted_and_counts_non_utf8_names() {
    let place = Place::new();
    place.file("/etc/b", "");
    place.directory("/etc/a");
    place.link("/etc/c", "nowhere");
    place.link("/list", "/etc");
    let odd = std::ffi::OsStr::from_bytes(b"bad\xff");
    std::fs::write(place.real("/etc").join(odd), "").unwrap();
    let listing = place.root.listing(&at("/list")).unwrap();
    let found: Vec<_> = listing.entries.iter().map(|e| (&*e.name, e.kind)).collect();
    let expected = [
        ("a", FileKind::Directory),
        ("b", FileKind::File),
        ("c", FileKind::Link),
    ];
    assert_eq!(found, expected);
    assert_eq!(listing.unreadable_names, 1);
    let error = place.root.list(&at("/etc/b")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn two_paths_to_one_object_have_one_canonical_path() {
    let place = Place::new();
    place.directory("/var/home");
    place.link("/home", "var/home");
    place.link("/var/up", "..");
    place.link("/later", "/var/not-yet");
    place.link("/var/home/last", "/etc");
    for (given, expected) in [
        ("/home/core/.ssh", "/var/home/core/.ssh"),
        ("/var/home/core/.ssh", "/var/home/core/.ssh"),
        ("/var/up/home/core", "/var/home/core"),
        ("/later/x", "/var/not-yet/x"),
        ("/home/last", "/var/home/last"),
        ("/home", "/home"),
        ("/", "/"),
    ] {
        assert_eq!(place.root.canonical(&at(given)).unwrap(), at(expected));
    }
}

/// The reference is /proc/self/mountinfo (proc(5)): fields 1, 5 and, after the dash, the type.
#[test]
fn mounts_match_the_kernels_mount_table() {
    let root = Root::open(Path::new("/")).unwrap();
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = list
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/proc"));
    let line = line.unwrap();
    let mount = root.mount(&at("/proc/self/no/such")).unwrap();
    assert_eq!(mount.id.mount.to_string(), line.split(' ').next().unwrap());
    assert_eq!((mount.top, mount.fs_type.as_str()), (at("/proc"), "proc"));
    let place = Place::new();
    let mount = place.root.mount(&at("/etc/not/there")).unwrap();
    assert_eq!(mount.top, AbsPath::root());
    assert!(mount.free_bytes > 0 && !mount.read_only && !mount.network);
}

#[test]
fn a_root_with_a_running_systemd_is_live() {
    let place = Place::new();
    assert!(!place.root.is_live());
    place.directory("/run/systemd/system");
    assert!(place.root.is_live());
    assert!(Root::open(Path::new("/")).unwrap().is_live());
}

#[test]
fn a_missing_root_directory_is_created() {
    let place = Place::new();
    let new = place.dir.path().join("new/root");
    assert!(Root::open(&new).unwrap_err().is_not_found());
    let (root, created) = Root::open_or_create(&new).unwrap();
    assert!(created);
    assert_eq!(root.display(), new);
    assert_eq!(root.host_path(&at("/etc/x")), new.join("etc/x"));
    assert!(!Root::open_or_create(&new).unwrap().1);
    let file = place.dir.path().join("outside");
    assert!(Root::open_or_create(&file).is_err());
}
