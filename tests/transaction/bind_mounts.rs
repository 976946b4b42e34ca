//! One directory at two paths: a config that names an object by both is refused before anything is
//! changed.

use machinist_base::reason::Reason;
use machinist_ignition::{Owner, Refusal};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config, without_staging},
    stepwise_update::StepwiseUpdate,
};

/// A machine on which `/srv/a` is also mounted at `/srv/b`.
struct Bound(Sandbox);

impl Bound {
    /// `None` where mounts are not permitted.
    fn new() -> Option<Self> {
        let sandbox = Sandbox::new();
        for dir in ["/srv/a", "/srv/b", "/srv/c"] {
            sandbox.root().make_dirs(&at(dir), 0o755).unwrap();
        }
        let (from, to) = (sandbox.path("/srv/a"), sandbox.path("/srv/b"));
        let none = None::<&str>;
        match mount(Some(&from), &to, none, MsFlags::MS_BIND, none) {
            Ok(()) => Some(Self(sandbox)),
            Err(error) => {
                println!("skipped: mounting is not permitted: {error}");
                None
            }
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = umount2(&self.0.path("/srv/b"), MntFlags::MNT_DETACH);
    }
}

fn refusals(bound: &Bound, wanted: &Written) -> Vec<Refusal> {
    let mut hand = StepwiseUpdate::open(&bound.0.root());
    hand.stage(wanted).err().unwrap_or_default()
}

fn refused(bound: &Bound, wanted: &Written, names: [&str; 2]) {
    let before = without_staging(&bound.0.tree());
    let refusals = refusals(bound, wanted);
    let [refusal] = &refusals[..] else {
        panic!("{names:?}: {refusals:?}");
    };
    assert_eq!(refusal.reason, Reason::DuplicateTarget, "{refusal}");
    let text = refusal.to_string();
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert!(without_staging(&bound.0.tree()) == before, "{names:?}");
}

#[test]
fn two_entries_for_one_object_through_a_bind_mount_are_rejected() {
    let Some(bound) = Bound::new() else {
        return;
    };
    let files = |one: &str, other: &str, text: &str| {
        let wanted = config("files").file(one, "ours\n", 0o644);
        wanted.file(other, text, 0o644)
    };
    for text in ["ours\n", "others\n"] {
        for [one, other] in [
            ["/srv/a/f", "/srv/b/f"],
            ["/srv/a/new/deep/f", "/srv/b/new/deep/f"],
        ] {
            refused(&bound, &files(one, other, text), [one, other]);
        }
    }
    let tops = config("tops").dir("/srv/a", 0o750).dir("/srv/b", 0o700);
    refused(&bound, &tops, ["/srv/a", "/srv/b"]);
    let kinds = config("kinds").dir("/srv/a/x", 0o750).link("/srv/b/x", "c");
    refused(&bound, &kinds, ["/srv/a/x", "/srv/b/x"]);
    for [one, other] in [["/srv/a/f", "/srv/b/g"], ["/srv/a/f", "/srv/c/f"]] {
        assert_eq!(refusals(&bound, &files(one, other, "others\n")), []);
    }
}

#[test]
fn an_existing_object_may_have_two_equal_entries() {
    let Some(bound) = Bound::new() else {
        return;
    };
    bound
        .0
        .applied(&config("one").file("/srv/a/f", "ours\n", 0o644));
    let both = config("both").file("/srv/a/f", "ours\n", 0o644);
    bound.0.applied(&both.file("/srv/b/f", "ours\n", 0o644));
}

#[test]
fn an_entry_is_not_removed_by_a_path_to_an_object_still_in_the_config() {
    let Some(bound) = Bound::new() else {
        return;
    };
    bound
        .0
        .applied(&config("one").file("/srv/b/f", "ours\n", 0o644));
    let other = config("other").file("/srv/a/f", "ours\n", 0o644);
    refused(&bound, &other, ["/srv/a/f", "/srv/b/f"]);
    assert_eq!(bound.0.read("/srv/a/f").as_deref(), Some("ours\n"));
}

/// The config gives the directory to a user by one path, and reaches a file through the other.
#[test]
fn a_directory_passed_to_a_user_is_user_owned_at_every_bind_mount() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to give directories away");
        return;
    }
    let Some(bound) = Bound::new() else {
        return;
    };
    std::os::unix::fs::symlink("/srv/c", bound.0.path("/srv/a/l")).unwrap();
    for [given, file, link] in [
        ["/srv/a", "/srv/b/l/x", "/srv/b/l"],
        ["/srv/b", "/srv/a/l/x", "/srv/a/l"],
    ] {
        let before = without_staging(&bound.0.tree());
        let mut wanted = config("given")
            .dir(given, 0o755)
            .file(file, "ours\n", 0o644);
        let directory = wanted.0.directories.get_mut(&at(given)).unwrap();
        (directory.user, directory.group) = (Some(Owner::Id(1001)), Some(Owner::Id(1001)));
        let refusals = refusals(&bound, &wanted);
        let [refusal] = &refusals[..] else {
            panic!("{given}: {refusals:?}");
        };
        assert_eq!(refusal.reason, Reason::UnsafePath, "{refusal}");
        let text = refusal.to_string();
        let message = [file, &format!("the link {link}, which belongs to user 0")];
        assert!(
            message.iter().all(|message| text.contains(message)),
            "{text}"
        );
        assert!(without_staging(&bound.0.tree()) == before, "{given}");
    }
}
