//! Original objects are restored, new ones are removed, and no foreign content is lost.

use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use machinist_rootfs::{FsOp, FsOpKind};
use machinist_testkit::sandbox::{Sandbox, apply, config, difference};

fn chmod(sandbox: &Sandbox, path: &str, mode: u32) {
    std::fs::set_permissions(sandbox.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A machine with objects of every kind, and files of other owners where the test may create them.
fn furnished(mounts: &[&str]) -> Sandbox {
    let sandbox = Sandbox::with_mounts(mounts);
    for (path, text, mode) in [
        ("/etc/chrony.conf", "pool a\n", 0o640),
        ("/etc/motd", "hello\n", 0o644),
        ("/etc/swap/f", "in a directory\n", 0o600),
        ("/data/kept", "kept\n", 0o4755),
        ("/data/deep/er/file", "deep\n", 0o400),
    ] {
        sandbox.write(path, text);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(sandbox.path(path), Some(77), Some(88)).unwrap();
        }
        chmod(&sandbox, path, mode);
    }
    std::fs::create_dir_all(sandbox.path("/srv/empty")).unwrap();
    chmod(&sandbox, "/srv/empty", 0o2775);
    std::os::unix::fs::symlink("motd", sandbox.path("/etc/issue")).unwrap();
    std::os::unix::fs::symlink("/nowhere", sandbox.path("/etc/dangling")).unwrap();
    sandbox
}

/// A user may fill the file system as soon as the new object is there.
#[test]
fn what_follows_the_commit_needs_no_new_directory() {
    let sandbox = Sandbox::with_mounts(&["/srv"]);
    sandbox.write("/srv/a", "original\n");
    let file = sandbox.path("/srv/a");
    let root = sandbox.root().with_fault(Arc::new(move |op: &FsOp| {
        let is_made =
            matches!(op.act, FsOpKind::MakeDir(_)) && op.path.as_str().starts_with("/srv");
        let is_full = is_made && std::fs::read(&file).is_ok_and(|text| text == b"ours\n");
        is_full.then(|| std::io::Error::from_raw_os_error(nix::libc::ENOSPC))
    }));
    let report = apply(&root, &config("ours").file("/srv/a", "ours\n", 0o644)).unwrap();
    assert_eq!(report.failure, None);
    assert_eq!(sandbox.journal().transactions, []);
    sandbox.applied(&config("none"));
    assert_eq!(sandbox.read("/srv/a").unwrap(), "original\n");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of changes")]
fn each_kind_of_change_is_applied_and_rolled_back_exactly() {
    let mut wrong = String::new();
    for (name, wanted) in [
        (
            "file modified",
            config("a").file("/etc/chrony.conf", "pool b\n", 0o644),
        ),
        (
            "file mode",
            config("a").file("/etc/chrony.conf", "pool a\n", 0o600),
        ),
        ("file made", config("a").file("/etc/new", "x", 0o600)),
        (
            "tree made",
            config("a")
                .file("/etc/a/b/c/d", "x", 0o600)
                .dir("/etc/a/b", 0o711),
        ),
        ("link made", config("a").link("/etc/a/link", "../motd")),
        (
            "link for a file",
            config("a").link("/etc/motd", "chrony.conf"),
        ),
        (
            "file for a link",
            config("a").file("/etc/issue", "x", 0o644),
        ),
        (
            "directory for a file",
            config("a")
                .dir("/etc/motd", 0o755)
                .file("/etc/motd/x", "x", 0o644),
        ),
        (
            "directory for a link",
            config("a").dir("/etc/dangling", 0o700),
        ),
        ("mode of a directory", config("a").dir("/srv/empty", 0o700)),
        (
            "mode of a full directory",
            config("a").dir("/etc/swap", 0o700),
        ),
        ("directory made", config("a").dir("/srv/new/er", 0o700)),
        (
            "on another mount",
            config("a")
                .file("/data/kept", "x", 0o644)
                .file("/data/deep/n/ew", "x", 0o644),
        ),
        (
            "a link and what it leads to",
            config("a").link("/etc/l", "t").file("/etc/t", "x", 0o644),
        ),
    ] {
        for mounts in [&[][..], &["/data"], &["/data", "/etc"]] {
            let sandbox = furnished(mounts);
            let before = sandbox.tree();
            sandbox.applied(&wanted);
            expect(&sandbox, &wanted, name);
            sandbox.applied(&config("nothing"));
            let after = sandbox.tree();
            if after != before {
                wrong += &format!("{name} {mounts:?}: {}", difference(&before, &after));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Asserts that the tree matches the config, as the file system shows it.
fn expect(sandbox: &Sandbox, wanted: &machinist_testkit::sandbox::Written, name: &str) {
    let mode = |path: &str| {
        std::fs::symlink_metadata(sandbox.path(path))
            .unwrap_or_else(|e| panic!("{name}: {path}: {e}"))
            .permissions()
            .mode()
            & 0o7777
    };
    for (path, file) in &wanted.0.files {
        let bytes = std::fs::read(sandbox.path(path.as_str()))
            .unwrap_or_else(|e| panic!("{name}: {path}: {e}"));
        assert_eq!(
            Some(&*bytes),
            file.content.as_ref().unwrap().bytes(),
            "{name}: {path}"
        );
        assert_eq!(Some(mode(path.as_str())), file.mode, "{name}: {path}");
    }
    for (path, dir) in &wanted.0.directories {
        assert!(
            std::fs::symlink_metadata(sandbox.path(path.as_str()))
                .unwrap()
                .is_dir()
        );
        assert_eq!(Some(mode(path.as_str())), dir.mode, "{name}: {path}");
    }
    for (path, link) in &wanted.0.links {
        let target = std::fs::read_link(sandbox.path(path.as_str())).unwrap();
        assert_eq!(
            target.to_str(),
            Some(link.target.as_str()),
            "{name}: {path}"
        );
    }
}
