use std::{
    io::{Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
};

use super::*;

/// A directory whose path alone is longer than a socket address.
fn deep(place: &Place) -> AbsPath {
    let deep = format!("/run/{}/{}", "d".repeat(100), "e".repeat(100));
    place.directory(&deep)
}

#[test]
fn a_socket_can_be_bound_at_a_path_longer_than_an_address() {
    let place = Place::new();
    let path = deep(&place).join("agent.sock").unwrap();
    let listener = place.root.bind_unix(&path, 0o660).unwrap();
    let mode = std::fs::metadata(place.real(path.as_str())).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o660);
    // Through a link as well, which is followed inside the root.
    place.link("/run/short", path.as_str());
    for p in [path, at("/run/short")] {
        let mut near = place.root.connect_unix(&p).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"hello").unwrap();
        drop(near);
        let mut received = String::new();
        far.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello");
    }
}

#[test]
fn binding_replaces_a_dead_socket_and_not_a_served_one() {
    let place = Place::new();
    let path = at("/etc/sock");
    drop(place.root.bind_unix(&path, 0o600).unwrap());
    let error = place.root.connect_unix(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let served = place.root.bind_unix(&path, 0o600).unwrap();
    assert!(matches!(
        place.root.bind_unix(&path, 0o600),
        Err(RootError::SocketServed { .. })
    ));
    drop(served);
    place.root.bind_unix(&path, 0o600).unwrap();
}

#[test]
fn binding_a_socket_does_not_remove_other_file_types() {
    let place = Place::new();
    let file = place.file("/etc/f", "kept");
    place.link("/etc/l", "f");
    for p in [file, at("/etc/l"), at("/etc")] {
        let error = place.root.bind_unix(&p, 0o600).unwrap_err();
        assert!(matches!(error, RootError::WrongKind { .. }), "{p}");
    }
    assert_eq!(place.text("/etc/f"), "kept");
    assert_eq!(place.text("/etc/l"), "kept");
    let absent = place.root.connect_unix(&at("/etc/none")).unwrap_err();
    assert!(absent.is_not_found());
}

#[test]
fn a_socket_is_never_more_accessible_than_its_final_mode() {
    let place = Place::new();
    // Stop between bind and the last change of its mode.
    let stop =
        |op: &FsOp| matches!(op.act, FsOpKind::SetMode(_)).then(|| io::ErrorKind::Other.into());
    let root = place.root.clone().with_fault(Arc::new(stop));
    root.bind_unix(&at("/etc/sock"), 0o600).unwrap_err();
    let mode = std::fs::metadata(place.real("/etc/sock")).unwrap().mode();
    assert_eq!(mode & 0o177, 0, "{mode:o}");
}

#[test]
fn a_socket_is_checked_and_connected_as_the_same_object() {
    let place = Place::new();
    let path = at("/etc/sock");
    let listener = place.root.bind_unix(&path, 0o600).unwrap();
    let (address, stat) = place.root.socket_itself(&path).unwrap().unwrap();
    assert_eq!(stat.kind, FileKind::Socket);
    // A new object at its path has another identity.
    std::fs::remove_file(place.real("/etc/sock")).unwrap();
    place.link("/etc/sock", "other");
    let mut near = std::os::unix::net::UnixStream::connect(address.path()).unwrap();
    near.write_all(b"x").unwrap();
    listener.accept().unwrap();
    let (_, link) = place.root.socket_itself(&path).unwrap().unwrap();
    assert_eq!(link.kind, FileKind::Link);
    assert!(
        place
            .root
            .socket_itself(&at("/etc/none"))
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_private_socket_is_bound_in_the_directory_that_was_made_private() {
    let place = Place::new();
    let (dir, path) = (place.directory("/var/control"), at("/var/control/sock"));
    let mode = |p: &str| std::fs::metadata(place.real(p)).unwrap().mode() & 0o7777;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.real(dir.as_str()), open).unwrap();
    // Another directory takes over the name after this one was closed.
    place.directory("/var/other");
    let (old, new) = (place.real("/var/control"), place.real("/var/other"));
    let aside = place.real("/var/aside");
    let exchange = move |op: &FsOp| {
        if matches!(op.act, FsOpKind::MakeSocket) {
            std::fs::rename(&old, &aside).unwrap();
            std::fs::rename(&new, &old).unwrap();
        }
        None
    };
    let root = place.root.clone().with_fault(Arc::new(exchange));
    root.bind_unix_private(&path, 0o600).unwrap();
    assert_eq!(
        (mode("/var/aside"), mode("/var/aside/sock")),
        (0o700, 0o600)
    );
    assert!(!place.real("/var/control/sock").exists());

    place.link("/var/link", "aside");
    place
        .root
        .bind_unix_private(&at("/var/link/sock"), 0o600)
        .unwrap_err();
}
