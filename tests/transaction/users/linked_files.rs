//! Hard links in a user's directory, to files of third users and to files with other names.

use super::{
    planned_owners::without_contents,
    third_users::{applies_and_leaves, give, refused},
    *,
};

#[test]
fn a_hard_link_in_a_users_directory_is_checked_by_its_target_file() {
    if !plays_users() {
        return;
    }
    let link = "/home/bob/h";
    let linked = |wanted: Written| wanted.hard(link, "/etc/h1");
    let host = || linked(config("host"));
    let alices = [File("/etc/h1", ALICE)];
    let roots = [File("/etc/h1", 0)];
    let twice = [File("/etc/h1", 0), Hard("/etc/f", "/etc/h1")];
    let cases: [(&str, &[Object<'_>], Written); 6] = [
        ("new contents", &[], linked(with_file("/etc/h1", ALICE))),
        (
            "no contents",
            &roots,
            linked(without_contents("/etc/h1", ALICE)),
        ),
        ("created", &[], linked(without_contents("/etc/h1", ALICE))),
        ("of the host", &alices, host()),
        ("another name", &twice, host()),
        (
            "in everybody's",
            &alices,
            config("tmp").hard("/tmp/h", "/etc/h1"),
        ),
    ];
    for (name, objects, wanted) in cases {
        let path = if name == "in everybody's" {
            "/tmp/h"
        } else {
            link
        };
        refused(name, &machine(objects), &wanted, path);
    }
    let bobs = [File("/etc/h1", BOB)];
    let allowed: [(&str, &[Object<'_>], Written); 6] = [
        ("root's contents", &[], linked(with_file("/etc/h1", 0))),
        ("bob's contents", &[], linked(with_file("/etc/h1", BOB))),
        ("replaced", &twice, linked(with_file("/etc/h1", 0))),
        (
            "no contents",
            &roots,
            linked(without_contents("/etc/h1", BOB)),
        ),
        ("root's file", &roots, host()),
        ("bob's file", &bobs, host()),
    ];
    for (name, objects, wanted) in allowed {
        applies_and_leaves(name, &machine(objects), &wanted);
    }
}

#[test]
fn a_hard_link_in_a_directory_passed_to_a_user_is_checked_by_its_target_file() {
    if !plays_users() {
        return;
    }
    for (owner, mode, more) in [(BOB, 0o755, false), (BOB, 0o755, true), (0, 0o777, true)] {
        let objects = [
            Dir("/srv/e", 0, 0o755),
            File("/srv/e/h", 0),
            File("/etc/h1", ALICE),
        ];
        let sandbox = machine(&objects);
        if more {
            add(&sandbox, &Hard("/etc/f", "/etc/h1"));
        }
        let mut wanted = config("given")
            .dir("/srv/e", mode)
            .hard("/srv/e/h", "/etc/h1");
        let directory = wanted.0.directories.get_mut(&at("/srv/e")).unwrap();
        directory.user = Some(Owner::Id(owner));
        let name = format!("{owner} {mode:o} {more}");
        refused(&name, &sandbox, &wanted, "/srv/e/h");
    }
}

#[test]
fn an_existing_hard_link_is_replaced_by_the_restored_original() {
    if !plays_users() {
        return;
    }
    for (name, contents, original, more) in [
        ("of the host", false, true, false),
        ("without contents", true, false, false),
        ("another name", false, true, true),
    ] {
        let sandbox = machine(&[Dir("/srv/e", 0, 0o755), File("/etc/h1", ALICE)]);
        if original {
            sandbox.write("/srv/e/h", "original\n");
        }
        if more {
            add(&sandbox, &Hard("/etc/f", "/etc/h1"));
        }
        let before = without_staging(&sandbox.tree()).without(|path| *path == at("/srv/e"));
        let wanted = match contents {
            true => without_contents("/etc/h1", ALICE),
            false => config("linked"),
        };
        sandbox.applied(&wanted.hard("/srv/e/h", "/etc/h1"));
        give(&sandbox, "/srv/e", BOB);
        sandbox.applied(&config("nothing"));
        let after = without_staging(&sandbox.tree()).without(|path| *path == at("/srv/e"));
        let shown = machinist_testkit::sandbox::difference(&before, &after);
        assert!(before == after, "{name}: {shown}");
    }
}

/// A user may have made both paths names of another file.
#[test]
fn a_hard_link_into_another_users_directory_is_left_behind_alone() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir("/srv/e", 0, 0o755), File("/srv/a/f", ALICE)]);
    sandbox.applied(&with_file("/etc/q", 0).hard("/srv/e/h", "/srv/a/f"));
    give(&sandbox, "/srv/e", BOB);
    give(&sandbox, "/srv/a", ALICE);
    sandbox.applied(&config("nothing"));
    assert_eq!(sandbox.read("/etc/q"), None);
    assert_eq!(sandbox.read("/srv/e/h").as_deref(), Some("found\n"));
    sandbox.applied(&config("next").file("/etc/q", "next\n", 0o644));
}
