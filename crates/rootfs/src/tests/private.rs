use super::*;

/// A directory of root's machine on a mount of this file system.
fn mount(place: &Place, fs_type: &str) -> Mount {
    Mount {
        fs_type: fs_type.to_owned(),
        top: at("/boot"),
        ..place.root.mount(&at("/boot")).unwrap()
    }
}

/// vfat and exfat store no owners and no modes: the mount gives every object the same ones.
#[test]
fn a_private_directory_on_a_file_system_without_owners_may_be_read_but_not_written_by_others() {
    let place = Place::new();
    place.directory("/boot");
    for (mode, readable, writable) in [
        (0o700, false, false),
        (0o755, true, false),
        (0o750, true, false),
        (0o775, true, true),
        (0o757, true, true),
        (0o1777, true, true),
    ] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.real("/boot"), permissions).unwrap();
        let stat = place.root.stat(&at("/boot")).unwrap().unwrap();
        for fs_type in ["vfat", "exfat"] {
            assert_eq!(stat.is_private(fs_type), !writable, "{mode:o} on {fs_type}");
            let takes = place.root.takes_private_dirs(&mount(&place, fs_type));
            assert_eq!(takes.unwrap(), !writable, "{mode:o} on {fs_type}");
        }
        assert_eq!(stat.is_private("ext4"), !readable, "{mode:o} on ext4");
        // Where the new directory gets an owner and a mode of its own, those of the top do not matter.
        let takes = place.root.takes_private_dirs(&mount(&place, "ext4"));
        assert!(takes.unwrap(), "{mode:o} on ext4");
    }
    if rustix::process::geteuid().is_root() {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.real("/boot"), permissions).unwrap();
        std::os::unix::fs::chown(place.real("/boot"), Some(1000), None).unwrap();
        let takes = place.root.takes_private_dirs(&mount(&place, "vfat"));
        assert!(
            !takes.unwrap(),
            "the mount option uid= gives all of it to a user"
        );
    }
}
