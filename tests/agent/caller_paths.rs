//! Files and sockets that a command creates in a directory where other users may write.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _, lchown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use super::{
    harness::{Place, code, err, until},
    trusted::is_root,
};

const USER: u32 = 1000;

/// A directory like `/tmp`, and beside it a directory of root's that stays empty.
struct Shared(Place);

impl Shared {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.root()).unwrap();
        for (name, mode) in [("shared", 0o1777), ("open", 0o777), ("private", 0o755)] {
            let dir = place.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        }
        Self(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn private(&self) -> usize {
        fs::read_dir(self.path("private")).unwrap().count()
    }

    /// A link of the user's.
    fn link(&self, name: &str, to: &str) -> PathBuf {
        symlink(self.path(to), self.path(name)).unwrap();
        give(&self.path(name));
        self.path(name)
    }

    fn refused(&self, arguments: &[&str], at: &Path, why: &str) {
        let shown = at.display().to_string();
        let output = self.0.machinist(&[arguments, &[&shown]].concat());
        assert_eq!(code(&output), 1, "{shown}: {}", err(&output));
        // Messages are wrapped.
        let message = err(&output)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(message.contains(why), "{shown}: {message}");
    }
}

/// Makes the object the user's.
fn give(path: &Path) {
    lchown(path, Some(USER), Some(USER)).unwrap();
}

#[test]
fn history_follows_no_link_of_another_user_and_replaces_no_file_of_theirs() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    let timeline = ["history", "--timeline"];
    let link = shared.link("shared/link.svg", "private/target");
    shared.refused(&timeline, &link, "link.svg belongs to user 1000");
    assert!(link.is_symlink());
    let file = shared.path("shared/file.svg");
    fs::write(&file, "theirs").unwrap();
    give(&file);
    shared.refused(&timeline, &file, "file.svg belongs to user 1000");
    assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    let below = shared.link("shared/dir", "private").join("new.svg");
    shared.refused(&timeline, &below, "shared/dir, which belongs to user 1000");
    let exchangeable = shared.link("open/dir", "private").join("new.svg");
    shared.refused(
        &timeline,
        &exchangeable,
        "open/dir, which belongs to user 1000",
    );
    assert_eq!(shared.private(), 0);

    let own = shared.path("shared/own.svg");
    // A new file, and then one that exists.
    for _ in 0..2 {
        let shown = own.display().to_string();
        let output = shared.0.machinist(&["history", "--timeline", &shown]);
        assert_eq!((code(&output), err(&output).as_str()), (0, ""));
        assert!(fs::read_to_string(&own).unwrap().starts_with("<svg "));
    }
    let names = fs::read_dir(shared.path("shared")).unwrap().count();
    assert_eq!(names, 4, "no temporary file is left");
}

#[test]
fn vendor_check_uses_no_socket_or_link_of_another_user() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    let file = shared.path("acme.yaml");
    let vendor = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\n\
        spec: {connects: program, resources: [acme.dev/*], devices: ['/dev/acme*']}\n";
    fs::write(&file, vendor).unwrap();
    let file = file.display().to_string();
    let check = ["vendor-check", "--file", &file, "--socket"];

    let served = shared.path("shared/served.sock");
    let listener = UnixListener::bind(&served).unwrap();
    listener.set_nonblocking(true).unwrap();
    let stale = shared.path("shared/stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    for socket in [&served, &stale] {
        give(socket);
        shared.refused(&check, socket, ".sock belongs to user 1000");
        assert!(
            fs::symlink_metadata(socket)
                .unwrap()
                .file_type()
                .is_socket()
        );
    }
    assert!(listener.accept().is_err(), "the command did not connect");
    let link = shared.link("shared/link.sock", "private/target");
    shared.refused(&check, &link, "link.sock belongs to user 1000");
    let below = shared.link("shared/dir", "private").join("new.sock");
    shared.refused(&check, &below, "shared/dir, which belongs to user 1000");
    assert_eq!(shared.private(), 0);
    let exchangeable = shared.path("open/new.sock");
    shared.refused(&check, &exchangeable, "every user may exchange a socket in");

    let own = shared.path("shared/own.sock");
    let shown = own.display().to_string();
    let mut running = shared
        .0
        .command(&[&check[..], &[&shown]].concat())
        .spawn()
        .unwrap();
    until("the socket", || own.exists());
    running.kill().unwrap();
    running.wait().unwrap();
}
