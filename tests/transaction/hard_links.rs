//! Hard links that another process separates, and hosts that cannot create one.

use std::collections::BTreeSet;

use machinist_base::reason::Reason;
use machinist_plan::{DriftEntry, DriftKind};
use machinist_update::{cache::ObservationCache, observe_and_plan};

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, conduct, config},
    stepwise_update::StepwiseUpdate,
};

fn wanted() -> Written {
    config("linked")
        .file("/etc/file", "one\n", 0o644)
        .hard("/etc/first", "/etc/file")
        .hard("/etc/second", "/etc/first")
}

fn drift_texts(drift: Vec<DriftEntry>) -> Vec<(String, DriftKind)> {
    let report = drift.into_iter();
    report
        .map(|drift| (drift.path.to_string(), drift.kind))
        .collect()
}

fn inode(sandbox: &Sandbox, path: &str) -> u64 {
    let stat = sandbox.root().stat(&at(path)).unwrap();
    stat.unwrap().identity.ino
}

#[test]
fn separated_hard_links_are_drift_and_are_linked_again() {
    let sandbox = Sandbox::new();
    sandbox.applied(&wanted());
    // As an editor saves: the same text in a new file.
    sandbox.write("/etc/new", "one\n");
    std::fs::rename(sandbox.path("/etc/new"), sandbox.path("/etc/file")).unwrap();
    let parted = [
        ("/etc/first".to_owned(), DriftKind::Content),
        ("/etc/second".to_owned(), DriftKind::Content),
    ];
    let (base, capabilities) = (sandbox.journal().base, conduct(false).capabilities);
    let fresh = ObservationCache::default();
    let all = observe_and_plan::drift(&sandbox.root(), base.as_ref(), None, capabilities, &fresh);
    assert_eq!(drift_texts(all.unwrap()), parted);
    // The event concerns only the file.
    let touched = BTreeSet::from([at("/etc/file")]);
    let around = observe_and_plan::drift_around(
        &sandbox.root(),
        base.as_ref(),
        touched,
        capabilities,
        &fresh,
    );
    let (looked, found) = around.unwrap();
    let names = ["/etc/file", "/etc/first", "/etc/second"].map(at);
    assert_eq!(looked, BTreeSet::from(names));
    assert_eq!(drift_texts(found), parted);
    sandbox.applied(&wanted());
    let file = inode(&sandbox, "/etc/file");
    assert_eq!(inode(&sandbox, "/etc/first"), file);
    assert_eq!(inode(&sandbox, "/etc/second"), file);
}

#[test]
fn a_hard_link_across_mounts_is_rejected() {
    let sandbox = Sandbox::with_mounts(&["/data"]);
    sandbox.write("/data/found", "found\n");
    for target in ["/data/found", "/data/new"] {
        let to = config("across")
            .file("/data/new", "new\n", 0o644)
            .hard("/etc/link", target);
        let refusals = StepwiseUpdate::open(&sandbox.root())
            .stage(&to)
            .unwrap_err();
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0].reason, Reason::HardLinkTarget);
        let message = format!(
            "the hard link /etc/link points to {target}, which is on the mount /data, but a hard \
             link must be on the same mount: here /"
        );
        assert_eq!(*refusals[0].message, *message);
    }
    sandbox.applied(&config("within").hard("/data/link", "/data/found"));
    assert_eq!(
        inode(&sandbox, "/data/link"),
        inode(&sandbox, "/data/found")
    );
}

/// A config that sets only the mode of a file, and gives the file another name.
fn with_mode_alone(mode: u32, linked: bool) -> Written {
    let wanted = config("mode").file("/etc/t", "", mode);
    let mut wanted = match linked {
        true => wanted.hard("/etc/h", "/etc/t"),
        false => wanted,
    };
    wanted.0.files.get_mut(&at("/etc/t")).unwrap().content = None;
    wanted
}

fn mode(sandbox: &Sandbox, path: &str) -> u32 {
    sandbox.root().stat(&at(path)).unwrap().unwrap().mode
}

#[test]
fn a_hard_link_of_the_config_does_not_block_a_mode_change_of_its_file() {
    let sandbox = Sandbox::new();
    sandbox.write("/etc/t", "found\n");
    let before = mode(&sandbox, "/etc/t");
    sandbox.applied(&with_mode_alone(0o600, true));
    sandbox.applied(&with_mode_alone(0o640, true));
    assert_eq!(inode(&sandbox, "/etc/h"), inode(&sandbox, "/etc/t"));
    // The link leaves in the same update that changes the mode.
    sandbox.applied(&with_mode_alone(0o604, false));
    assert_eq!(
        (mode(&sandbox, "/etc/t"), sandbox.read("/etc/h")),
        (0o604, None)
    );
    sandbox.applied(&with_mode_alone(0o600, true));
    // Both leave.
    sandbox.applied(&config("nothing"));
    assert_eq!(
        (mode(&sandbox, "/etc/t"), sandbox.read("/etc/h")),
        (before, None)
    );
    assert_eq!(sandbox.read("/etc/t").as_deref(), Some("found\n"));
}

#[test]
fn a_foreign_hard_link_blocks_a_mode_change_of_its_file() {
    for linked in [true, false] {
        let sandbox = Sandbox::new();
        sandbox.write("/etc/t", "found\n");
        sandbox.applied(&with_mode_alone(0o600, linked));
        std::fs::hard_link(sandbox.path("/etc/t"), sandbox.path("/srv-a")).unwrap();
        let to = with_mode_alone(0o640, linked);
        let refusals = StepwiseUpdate::open(&sandbox.root())
            .stage(&to)
            .unwrap_err();
        let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, [Reason::DuplicateTarget], "{linked}");
        assert_eq!(mode(&sandbox, "/srv-a"), 0o600);
    }
    // A link that the config wants and that does not exist yet does not count as an existing name.
    let sandbox = Sandbox::new();
    sandbox.write("/etc/t", "found\n");
    std::fs::hard_link(sandbox.path("/etc/t"), sandbox.path("/etc/other")).unwrap();
    let refusals = StepwiseUpdate::open(&sandbox.root())
        .stage(&with_mode_alone(0o600, true))
        .unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::DuplicateTarget]);
}

#[test]
fn a_pre_existing_hard_link_is_foreign_after_the_config_leaves() {
    let sandbox = Sandbox::new();
    sandbox.write("/etc/t", "found\n");
    std::fs::hard_link(sandbox.path("/etc/t"), sandbox.path("/etc/h")).unwrap();
    let before = mode(&sandbox, "/etc/t");
    sandbox.applied(&with_mode_alone(0o600, true));
    let refusals = StepwiseUpdate::open(&sandbox.root())
        .stage(&with_mode_alone(0o640, false))
        .unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::DuplicateTarget]);
    // Both names get back the mode that they had.
    sandbox.applied(&config("nothing"));
    assert_eq!(
        (mode(&sandbox, "/etc/t"), mode(&sandbox, "/etc/h")),
        (before, before)
    );
}

/// A program that writes the file must not write another file of the machine.
#[test]
fn a_file_without_contents_is_no_longer_linked_to_the_target_of_an_earlier_config() {
    for text in ["", "theirs\n"] {
        let sandbox = Sandbox::new();
        sandbox.write("/srv/e", text);
        sandbox.applied(&config("linked").hard("/etc/new", "/srv/e"));
        assert_eq!(inode(&sandbox, "/etc/new"), inode(&sandbox, "/srv/e"));
        let mut bare = config("bare").file("/etc/new", "", 0o644);
        let file = bare.0.files.get_mut(&at("/etc/new")).unwrap();
        (file.content, file.mode, file.user, file.group) = (None, None, None, None);
        sandbox.applied(&bare);
        assert_ne!(inode(&sandbox, "/etc/new"), inode(&sandbox, "/srv/e"));
        assert_eq!(sandbox.read("/etc/new").as_deref(), Some(""));
        sandbox.applied(&config("none"));
        assert_eq!(sandbox.read("/etc/new"), None);
        assert_eq!(sandbox.read("/srv/e").as_deref(), Some(text));
    }
}
