//! Hard links that another process separates, and hosts that cannot create one.

use std::collections::BTreeSet;

use machinist::{
    plan::{DriftEntry, DriftKind},
    reason::Reason,
    update::{cache::ObservationCache, observe_and_plan},
};

use crate::{
    sandbox::{Sandbox, Written, at, conduct, config},
    stepwise_update::ByHand,
};

fn wanted() -> Written {
    config("linked")
        .file("/etc/file", "one\n", 0o644)
        .hard("/etc/first", "/etc/file")
        .hard("/etc/second", "/etc/first")
}

fn told(drift: Vec<DriftEntry>) -> Vec<(String, DriftKind)> {
    let told = drift.into_iter();
    told.map(|drift| (drift.path.to_string(), drift.kind))
        .collect()
}

fn inode(sandbox: &Sandbox, path: &str) -> u64 {
    let stat = sandbox.root().stat(&at(path)).unwrap();
    stat.unwrap().identity.ino
}

#[test]
fn names_that_somebody_parts_are_drift_and_are_joined_again() {
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
    assert_eq!(told(all.unwrap()), parted);
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
    assert_eq!(told(found), parted);
    sandbox.applied(&wanted());
    let file = inode(&sandbox, "/etc/file");
    assert_eq!(inode(&sandbox, "/etc/first"), file);
    assert_eq!(inode(&sandbox, "/etc/second"), file);
}

#[test]
fn a_file_on_another_mount_cannot_have_a_name_here() {
    let sandbox = Sandbox::with_mounts(&["/data"]);
    sandbox.write("/data/found", "found\n");
    for target in ["/data/found", "/data/new"] {
        let to = config("across")
            .file("/data/new", "new\n", 0o644)
            .hard("/etc/link", target);
        let refusals = ByHand::open(&sandbox.root()).stage(&to).unwrap_err();
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
