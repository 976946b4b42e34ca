use super::*;
use machinist_device::dra::claim::ClaimName;

fn prepared() -> PreparedClaim {
    PreparedClaim {
        claim: ClaimName {
            namespace: "lab".into(),
            name: "c".into(),
            uid: "u-1".into(),
        },
        devices: Vec::new(),
        spec: Some(serde_json::json!({"kind": "x"})),
        links: [].into(),
        boot: None,
    }
}

#[test]
fn a_checkpoint_is_restored_and_a_damaged_one_is_kept_as_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointFile::new(Root::open(dir.path()).unwrap());
    assert_eq!(store.load(), (ClaimCheckpoint::default(), true));
    let one = prepared();
    let checkpoint = ClaimCheckpoint {
        generation: 7,
        claims: [(one.claim.uid.clone(), one)].into(),
        ..ClaimCheckpoint::default()
    };
    store.save(&checkpoint).unwrap();
    assert_eq!(store.load(), (checkpoint.clone(), true));
    let file = AbsPath::new(CHECKPOINT_PATH).unwrap();
    let content = store.root.read(&file, MAX_CHECKPOINT_BYTES).unwrap();
    for at in [0, 10, content.len() / 2, content.len() - 1] {
        let mut bad = content.clone();
        bad[at] ^= 1;
        store.root.replace(&file, &bad, 0o600).unwrap();
        assert_eq!(
            store.load(),
            (ClaimCheckpoint::default(), false),
            "byte {at}"
        );
        let damaged_copy = AbsPath::new(BROKEN_CHECKPOINT_PATH).unwrap();
        assert_eq!(
            store
                .root
                .read(&damaged_copy, MAX_CHECKPOINT_BYTES)
                .unwrap(),
            bad
        );
    }
    for cut in [0, 1, content.len() - 1] {
        store.root.replace(&file, &content[..cut], 0o600).unwrap();
        assert_eq!(
            store.load(),
            (ClaimCheckpoint::default(), false),
            "cut at {cut}"
        );
    }
}

#[test]
fn specs_stay_if_the_checkpoint_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointFile::new(Root::open(dir.path()).unwrap());
    store.write_spec(&prepared()).unwrap();
    assert_eq!(store.load(), (ClaimCheckpoint::default(), false));
    store.remove_spec("u-1").unwrap();
    assert_eq!(store.load(), (ClaimCheckpoint::default(), true));
}

#[test]
fn specs_follow_their_claims_and_foreign_specs_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointFile::new(Root::open(dir.path()).unwrap());
    let one = prepared();
    store.write_spec(&one).unwrap();
    let mine = AbsPath::new("/var/run/cdi/dra.machinist.dev-u-1.json").unwrap();
    assert_eq!(store.root.read(&mine, 100).unwrap(), b"{\"kind\":\"x\"}");
    let other = AbsPath::new("/var/run/cdi/acme.json").unwrap();
    store.root.replace(&other, b"{}", 0o644).unwrap();
    let checkpoint = ClaimCheckpoint {
        claims: [(one.claim.uid.clone(), one)].into(),
        ..ClaimCheckpoint::default()
    };
    store.remove_stale_specs(&checkpoint).unwrap();
    assert!(store.root.stat(&mine).unwrap().is_some());
    store
        .remove_stale_specs(&ClaimCheckpoint::default())
        .unwrap();
    assert!(store.root.stat(&mine).unwrap().is_none());
    assert!(store.root.stat(&other).unwrap().is_some());
    store.remove_spec("u-1").unwrap();
}
