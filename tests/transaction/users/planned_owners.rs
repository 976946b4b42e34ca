//! Directories whose mode or owner the config itself changes: the plan judges the paths below them
//! on the machine as the config will make it, as the commit does.

use std::collections::BTreeSet;

use machinist_base::reason::Reason;

use super::*;

/// The config with a directory of this owner and mode more.
fn with_dir(wanted: Written, path: &str, owner: u32, mode: u32) -> Written {
    let mut wanted = wanted.dir(path, mode);
    let directory = wanted.0.directories.get_mut(&at(path)).unwrap();
    directory.user = Some(Owner::Id(owner));
    directory.group = Some(Owner::Id(owner));
    wanted
}

pub(super) fn without_contents(path: &str, owner: u32) -> Written {
    let mut wanted = with_file(path, owner);
    let file = wanted.0.files.get_mut(&at(path)).unwrap();
    (file.content, file.mode) = (None, Some(0o640));
    wanted
}

/// The reasons for which the config is refused, without repetitions.
fn reasons(sandbox: &Sandbox, wanted: &Written) -> BTreeSet<Reason> {
    let refusals = apply(sandbox, wanted).unwrap_err();
    refusals.iter().map(|it| it.reason).collect()
}

/// Applies the config, which must be refused as unsafe with this text, and nothing may change.
fn refused(name: &str, objects: &[Object<'_>], wanted: &Written, why: &[&str]) {
    let sandbox = machine(objects);
    let before = without_staging(&sandbox.tree());
    let refusals = apply(&sandbox, wanted).expect_err(name);
    let [refusal] = &refusals[..] else {
        panic!("{name}: {refusals:?}");
    };
    assert_eq!(refusal.reason, Reason::UnsafePath, "{name}: {refusal}");
    let text = refusal.to_string();
    for why in why {
        assert!(text.contains(why), "{name}: {text}");
    }
    assert!(without_staging(&sandbox.tree()) == before, "{name}");
}

#[test]
fn a_link_in_a_directory_passed_to_a_user_is_rejected_at_once() {
    if !plays_users() {
        return;
    }
    let objects = [
        Dir("/srv/e", 0, 0o755),
        Dir("/srv/real", 0, 0o755),
        Link("/srv/e/l", 0, "/srv/real"),
    ];
    let wanted = || with_file("/srv/e/l/app", 0);
    let shown = ["/srv/e/l/app", "the link /srv/e/l, which belongs to user 0"];
    let open = with_dir(wanted(), "/srv/e", 0, 0o777);
    refused("everybody may write", &objects, &open, &shown);
    let given = with_dir(wanted(), "/srv/e", BOB, 0o755);
    refused("given to bob", &objects, &given, &shown);
    let why = ["user 1001 controls /srv/e"];
    refused("given to bob", &objects, &given, &why);
}

#[test]
fn a_third_users_object_below_a_directory_passed_to_a_user_is_rejected() {
    if !plays_users() {
        return;
    }
    let objects = [Dir("/srv/e", 0, 0o755), Dir("/srv/e/sub", ALICE, 0o755)];
    let wanted = with_dir(with_file("/srv/e/sub/app", 0), "/srv/e", BOB, 0o755);
    let shown = ["/srv/e/sub/app", "/srv/e/sub belongs to user 1002"];
    refused("a directory of alice's", &objects, &wanted, &shown);
    let new = with_dir(
        with_file("/home/bob/new/app", 0),
        "/home/bob/new",
        ALICE,
        0o755,
    );
    let shown = ["/home/bob/new/app", "/home/bob/new belongs to user 1002"];
    refused("a new directory of alice's", &[], &new, &shown);
    let deeper = with_dir(with_file("/srv/e/x/app", 0), "/srv/e", BOB, 0o755);
    let deeper = with_dir(deeper, "/srv/e/x", ALICE, 0o755);
    let shown = ["/srv/e/x/app", "/srv/e/x belongs to user 1002"];
    refused("both new", &[], &deeper, &shown);
}

#[test]
fn an_unchanged_file_is_checked_in_a_directory_passed_to_a_user() {
    if !plays_users() {
        return;
    }
    let file = || without_contents("/srv/e/t", BOB);
    let given = with_dir(file(), "/srv/e", BOB, 0o755);
    let link = || given.clone().hard("/srv/e/h", "/srv/e/t");
    let found = [Dir("/srv/e", 0, 0o755), File("/srv/e/t", 0)];
    let sandbox = machine(&found);
    let same = BTreeSet::from([Reason::DuplicateTarget]);
    assert_eq!(reasons(&sandbox, &link()), same);
    let mut before = file().hard("/srv/e/h", "/srv/e/t");
    before.0.files.get_mut(&at("/srv/e/t")).unwrap().mode = Some(0o600);
    sandbox.applied(&before);
    assert_eq!(reasons(&sandbox, &link()), same);
    let sandbox = machine(&[
        Dir("/srv/e", 0, 0o755),
        File("/srv/e/t", 0),
        Hard("/srv/x", "/srv/e/t"),
    ]);
    let both = BTreeSet::from([Reason::DuplicateTarget, Reason::UnsafePath]);
    assert_eq!(reasons(&sandbox, &given), both);
    let mut kept = file();
    let entry = kept.0.files.get_mut(&at("/srv/e/t")).unwrap();
    (entry.user, entry.group) = (None, None);
    let kept = with_dir(kept, "/srv/e", BOB, 0o755);
    let objects = [Dir("/srv/e", 0, 0o755), File("/srv/e/t", ALICE)];
    let shown = ["/srv/e/t belongs to user 1002"];
    refused("a third user's file", &objects, &kept, &shown);
}

#[test]
fn paths_accepted_below_changed_directories_commit_verify_and_leave() {
    if !plays_users() {
        return;
    }
    let file = |path, owner| with_file(path, owner);
    let given = |wanted| with_dir(wanted, "/srv/e", BOB, 0o755);
    let linked = with_dir(with_file("/srv/app/current/x", BOB), "/srv/app", BOB, 0o755);
    let cases: [(&str, &[Object<'_>], Written, &str); 6] = [
        (
            "a link of the config to a directory that is created for it",
            &[],
            linked.link("/srv/app/current", "v1"),
            "/srv/app/v1/x",
        ),
        (
            "a file",
            &[Dir("/srv/e", 0, 0o755)],
            given(file("/srv/e/app", 0)),
            "/srv/e/app",
        ),
        (
            "a third user's file that is replaced",
            &[Dir("/srv/e", 0, 0o755), File("/srv/e/app", ALICE)],
            given(file("/srv/e/app", 0)),
            "/srv/e/app",
        ),
        (
            "a directory that follows",
            &[Dir("/srv/e", 0, 0o755), Dir("/srv/e/sub", ALICE, 0o755)],
            with_dir(given(file("/srv/e/sub/app", 0)), "/srv/e/sub", BOB, 0o755),
            "/srv/e/sub/app",
        ),
        (
            "all new",
            &[],
            given(file("/srv/e/sub/app", BOB)),
            "/srv/e/sub/app",
        ),
        (
            "taken back to root",
            &[Dir("/srv/e", BOB, 0o755), Dir("/srv/e/sub", BOB, 0o755)],
            with_dir(file("/srv/e/sub/app", 0), "/srv/e", 0, 0o755),
            "/srv/e/sub/app",
        ),
    ];
    for (name, objects, wanted, path) in cases {
        let sandbox = machine(objects);
        let before = without_staging(&sandbox.tree());
        sandbox.applied(&wanted);
        assert_eq!(sandbox.read(path).as_deref(), Some("ours\n"), "{name}");
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&wanted)
            .unwrap_or_else(|why| panic!("{name}: {why:?}"));
        assert_eq!(hand.journal.transactions[0].operations.len(), 0, "{name}");
        hand.undo().unwrap();
        drop(hand);
        sandbox.applied(&config("nothing"));
        let after = without_staging(&sandbox.tree());
        let shown = machinist_testkit::sandbox::difference(&before, &after);
        assert!(before == after, "{name}: {shown}");
    }
}

#[test]
fn a_path_made_safe_only_by_the_config_is_rejected_until_it_is_applied() {
    if !plays_users() {
        return;
    }
    let objects = [
        Dir("/srv/e", 0, 0o777),
        Dir("/srv/real", 0, 0o755),
        Link("/srv/e/l", 0, "/srv/real"),
    ];
    let only = || with_dir(config("directory"), "/srv/e", 0, 0o755);
    let both = || with_dir(with_file("/srv/e/l/app", 0), "/srv/e", 0, 0o755);
    let shown = [
        "the link /srv/e/l, which belongs to user 0",
        "apply its modes and owners of directories without this path first",
    ];
    refused("at once", &objects, &both(), &shown);
    let sandbox = machine(&objects);
    sandbox.applied(&only());
    sandbox.applied(&both());
    assert_eq!(sandbox.read("/srv/real/app").as_deref(), Some("ours\n"));
}

/// The base config gave the directory to root; without it, bob has it back.
#[test]
fn a_directory_of_a_leaving_entry_counts_as_its_original_owners() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir("/srv/e", BOB, 0o755), Dir("/srv/e/sub", 0, 0o755)]);
    sandbox.applied(&with_dir(config("base"), "/srv/e", 0, 0o755));
    let sub = sandbox.path("/srv/e/sub");
    std::os::unix::fs::chown(sub, Some(ALICE), Some(ALICE)).unwrap();
    let refusals = apply(&sandbox, &with_file("/srv/e/sub/app", 0)).unwrap_err();
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}");
    };
    assert_eq!(refusal.reason, Reason::UnsafePath, "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains("/srv/e/sub belongs to user 1002"), "{text}");
}

/// What leaves the config stays, and the rest of the config is applied.
#[test]
fn an_entry_leaving_an_unsafe_directory_is_left_behind() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[Dir("/srv/e", 0, 0o755), Dir("/srv/e/sub", ALICE, 0o755)]);
    sandbox.applied(&with_file("/srv/e/sub/app", 0));
    sandbox.applied(&with_dir(config("next"), "/srv/e", BOB, 0o755));
    assert_eq!(owner(&sandbox, "/srv/e"), BOB);
    assert_eq!(sandbox.read("/srv/e/sub/app").as_deref(), Some("ours\n"));
    assert_eq!(sandbox.read("/etc/plain"), None);
}

/// A missing directory gets the owner that it has on a fresh machine.
#[test]
fn a_missing_directory_below_one_that_root_takes_back_belongs_to_root() {
    if !plays_users() {
        return;
    }
    for stays in [false, true] {
        let sandbox = machine(&[Dir("/srv", 0, 0o755)]);
        apply(&sandbox, &with_dir(config("one"), "/srv/n", BOB, 0o750)).unwrap();
        let mut wanted = with_file("/srv/n/a/c", BOB).file("/srv/n/a/root", "root's\n", 0o644);
        if stays {
            wanted = with_dir(wanted, "/srv/n", 0, 0o755);
        }
        apply(&sandbox, &wanted).unwrap();
        let owners = ["/srv/n", "/srv/n/a", "/srv/n/a/c", "/srv/n/a/root"];
        assert_eq!(
            owners.map(|path| owner(&sandbox, path)),
            [0, 0, BOB, 0],
            "{stays}"
        );
    }
}

/// A user who keeps the directory above a file of root can replace the file.
#[test]
fn a_directory_made_for_a_user_goes_back_to_root_with_its_entries() {
    if !plays_users() {
        return;
    }
    let roots = |path| with_file(path, 0);
    let mixed = || with_file("/srv/n/a/b/c", BOB).file("/srv/n/a/b/d", "x", 0o644);
    for (name, after, owners) in [
        (
            "all to root",
            with_dir(roots("/srv/n/a/b/c"), "/srv/n", 0, 0o755),
            [0, 0, 0],
        ),
        (
            "another file",
            with_dir(roots("/srv/n/a/b/d"), "/srv/n", 0, 0o755),
            [0, 0, 0],
        ),
        ("directory leaves", roots("/srv/n/a/b/c"), [0, 0, 0]),
        (
            "directory to root",
            with_dir(mixed(), "/srv/n", 0, 0o755),
            [0, 0, 0],
        ),
        (
            "file to root",
            with_dir(roots("/srv/n/a/b/c"), "/srv/n", BOB, 0o755),
            [BOB, 0, 0],
        ),
        (
            "nothing",
            with_dir(mixed(), "/srv/n", BOB, 0o755),
            [BOB, BOB, BOB],
        ),
    ] {
        let sandbox = machine(&[Dir("/srv", 0, 0o755)]);
        let first = with_dir(with_file("/srv/n/a/b/c", BOB), "/srv/n", BOB, 0o755);
        apply(&sandbox, &first).unwrap();
        let paths = ["/srv/n", "/srv/n/a", "/srv/n/a/b"];
        assert_eq!(paths.map(|path| owner(&sandbox, path)), [BOB; 3]);
        apply(&sandbox, &after).unwrap();
        assert_eq!(paths.map(|path| owner(&sandbox, path)), owners, "{name}");
        apply(&sandbox, &config("none")).unwrap();
        assert_eq!(sandbox.root().stat(&at("/srv/n")).unwrap(), None, "{name}");
    }
}
