//! Paths in directories that users control: written where they lead nowhere else, and refused where
//! a user could redirect root's writes.

use machinist_base::reason::Reason;

use super::*;
use machinist_testkit::sandbox::difference;

#[test]
#[expect(clippy::too_many_lines, reason = "a table of machines")]
fn safe_paths_in_a_users_directory_are_written_and_removed() {
    if !plays_users() {
        return;
    }
    let cases: [(&str, &[Object<'_>], &str, u32, &str); 11] = [
        (
            "a user's own file",
            &[],
            "/home/bob/.profile",
            BOB,
            "/home/bob/.profile",
        ),
        (
            "a file deeper",
            &[Dir("/home/bob/.config", BOB, 0o700)],
            "/home/bob/.config/containers/systemd/app.container",
            BOB,
            "/home/bob/.config/containers/systemd/app.container",
        ),
        (
            "root's file in a home",
            &[File("/home/bob/.hushlogin", BOB)],
            "/home/bob/.hushlogin",
            0,
            "/home/bob/.hushlogin",
        ),
        (
            "a directory of root's in a home",
            &[Dir("/home/bob/.config", 0, 0o755)],
            "/home/bob/.config/app",
            BOB,
            "/home/bob/.config/app",
        ),
        (
            "a service's directory",
            &[Dir("/var/lib/app", 500, 0o750)],
            "/var/lib/app/conf",
            0,
            "/var/lib/app/conf",
        ),
        (
            "homes elsewhere",
            &[
                Dir("/data/home", 0, 0o755),
                Dir("/data/home/ann", ALICE, 0o755),
                Link("/srv/home", 0, "/data/home"),
            ],
            "/srv/home/ann/x",
            ALICE,
            "/data/home/ann/x",
        ),
        (
            "one home elsewhere",
            &[
                Dir("/data/ann", ALICE, 0o755),
                Link("/home/ann", 0, "/data/ann"),
            ],
            "/home/ann/x",
            ALICE,
            "/data/ann/x",
        ),
        (
            "a user's link to a directory of hers",
            &[
                Dir("/home/bob/dotfiles", BOB, 0o755),
                Link("/home/bob/.config", BOB, "dotfiles"),
            ],
            "/home/bob/.config/x",
            BOB,
            "/home/bob/dotfiles/x",
        ),
        (
            "the state of a dynamic user",
            &[
                Dir("/var/lib/private", 0, 0o700),
                Dir("/var/lib/private/x", 61_184, 0o755),
                Link("/var/lib/x", 0, "private/x"),
            ],
            "/var/lib/x/conf",
            0,
            "/var/lib/private/x/conf",
        ),
        (
            "a link of root's in /usr",
            &[
                Dir("/var/usrlocal", 0, 0o755),
                Link("/usr/local", 0, "../var/usrlocal"),
            ],
            "/usr/local/x",
            0,
            "/var/usrlocal/x",
        ),
        (
            "a file in /tmp",
            &[File("/tmp/x", 0)],
            "/tmp/x",
            0,
            "/tmp/x",
        ),
    ];
    for (name, objects, path, uid, place) in cases {
        let sandbox = machine(objects);
        let before = without_staging(&sandbox.tree());
        apply(&sandbox, &with_file(path, uid)).unwrap_or_else(|why| panic!("{name}: {why:?}"));
        assert_eq!(sandbox.read(place).as_deref(), Some("ours\n"), "{name}");
        assert_eq!(owner(&sandbox, place), uid, "{name}");
        if let Some(parent) = at(place)
            .parent()
            .filter(|parent| !before.0.contains_key(parent))
        {
            assert_eq!(owner(&sandbox, parent.as_str()), uid, "{name}: {parent}");
        }
        apply(&sandbox, &with_file(path, uid)).unwrap_or_else(|why| panic!("{name}: {why:?}"));
        apply(&sandbox, &config("nothing")).unwrap_or_else(|why| panic!("{name}: {why:?}"));
        let after = without_staging(&sandbox.tree());
        assert!(before == after, "{name}: {}", difference(&before, &after));
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of machines")]
fn a_path_through_a_users_link_is_rejected_naming_link_and_owner() {
    if !plays_users() {
        return;
    }
    let path = "/home/bob/a/b/app";
    let cases: [(&str, &[Object<'_>], &str, &str); 13] = [
        (
            "an absolute link",
            &[
                Dir("/home/bob/a", BOB, 0o755),
                Link("/home/bob/a/b", BOB, "/etc/systemd/system"),
            ],
            path,
            "the link /home/bob/a/b, which belongs to user 1001",
        ),
        (
            "a link higher up",
            &[
                Link("/home/bob/a", BOB, "/etc/systemd"),
                Dir("/etc/systemd/b", 0, 0o755),
            ],
            path,
            "the link /home/bob/a, which belongs to user 1001",
        ),
        (
            "a relative link",
            &[
                Dir("/home/bob/a", BOB, 0o755),
                Link("/home/bob/a/b", BOB, "../../../etc"),
            ],
            path,
            "the link /home/bob/a/b",
        ),
        (
            "a way through .. and back",
            &[
                Dir("/home/bob/c", BOB, 0o755),
                Dir("/home/bob/a", BOB, 0o755),
                Link("/home/bob/a/b", BOB, "../../bob/c"),
            ],
            path,
            "the link /home/bob/a/b",
        ),
        (
            "a link of root's that was moved",
            &[Link("/home/bob/a", 0, "/etc")],
            "/home/bob/a/app",
            "the link /home/bob/a, which belongs to user 0",
        ),
        (
            "a link to a directory of root's in the home",
            &[Dir("/home/bob/r", 0, 0o755), Link("/home/bob/a", BOB, "r")],
            "/home/bob/a/app",
            "the link /home/bob/a",
        ),
        (
            "a chain of links",
            &[
                Link("/home/bob/c", BOB, "/etc"),
                Link("/home/bob/a", BOB, "c"),
            ],
            "/home/bob/a/app",
            "the link /home/bob/",
        ),
        (
            "another user's directory",
            &[Dir("/home/bob/a", ALICE, 0o755)],
            "/home/bob/a/app",
            "/home/bob/a belongs to user 1002",
        ),
        (
            "another user's file",
            &[File("/home/bob/app", ALICE)],
            "/home/bob/app",
            "/home/bob/app belongs to user 1002",
        ),
        (
            "another name of a file",
            &[Hard("/home/bob/app", "/etc/shadow")],
            "/home/bob/app",
            "/home/bob/app has 2 hard links",
        ),
        (
            "a user's file in /tmp",
            &[File("/tmp/app", BOB)],
            "/tmp/app",
            "/tmp/app belongs to user 1001",
        ),
        (
            "a user's link in /tmp",
            &[Link("/tmp/a", BOB, "/etc")],
            "/tmp/a/app",
            "the link /tmp/a, which belongs to user 1001",
        ),
        (
            "a link where a group may write",
            &[
                Dir("/srv/shared", 0, 0o2777),
                Link("/srv/shared/a", 0, "/etc"),
            ],
            "/srv/shared/a/app",
            "the link /srv/shared/a",
        ),
    ];
    for (name, objects, path, why) in cases {
        let sandbox = machine(objects);
        let before = sandbox.tree();
        let refusals = apply(&sandbox, &with_file(path, 0)).expect_err(name);
        let [refusal] = &refusals[..] else {
            panic!("{name}: {refusals:?}");
        };
        assert_eq!(refusal.reason, Reason::UnsafePath, "{name}: {refusal}");
        let text = refusal.to_string();
        assert!(text.contains(why) && text.contains(path), "{name}: {text}");
        assert!(
            without_staging(&sandbox.tree()) == without_staging(&before),
            "{name}"
        );
    }
}

#[test]
fn a_mode_only_entry_for_a_hard_linked_user_file_is_rejected() {
    if !plays_users() {
        return;
    }
    let (app, other) = ("/home/bob/app", "/home/bob/other");
    let mut wanted = config("wanted").file(app, "", 0o640).hard(other, app);
    let file = wanted.0.files.get_mut(&at(app)).unwrap();
    (file.content, file.user, file.group) = (None, Some(Owner::Id(BOB)), Some(Owner::Id(BOB)));
    for (objects, reason) in [
        (&[File(app, BOB)][..], Reason::DuplicateTarget),
        (
            &[File(app, BOB), Hard("/home/bob/third", app)],
            Reason::UnsafePath,
        ),
    ] {
        let sandbox = machine(objects);
        let before = sandbox.tree();
        let refusals = apply(&sandbox, &wanted).unwrap_err();
        let [refusal] = &refusals[..] else {
            panic!("{refusals:?}");
        };
        assert_eq!(refusal.reason, reason, "{refusal}");
        assert!(refusal.to_string().contains(app), "{refusal}");
        assert!(without_staging(&sandbox.tree()) == without_staging(&before));
    }
}
