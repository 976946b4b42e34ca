//! Which differences from the config users may have caused.

use machinist_plan::Capabilities;
use machinist_update::{cache::ObservationCache, observe_and_plan};

use machinist_testkit::sandbox::conduct;

use super::*;

/// The disk is compared after the commit; a user may have changed the file in between.
#[test]
fn a_hard_link_to_a_file_exchanged_by_its_user_is_user_drift() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[File("/home/bob/f", BOB)]);
    let linked = config("linked").hard("/srv/n", "/home/bob/f");
    apply(&sandbox, &linked).unwrap();
    std::fs::remove_file(sandbox.path("/home/bob/f")).unwrap();
    for other in [
        Link("/home/bob/f", BOB, "../../etc/shadow"),
        File("/home/bob/f", BOB),
    ] {
        let _ = std::fs::remove_file(sandbox.path("/home/bob/f"));
        add(&sandbox, &other);
        let journal = sandbox.journal();
        let remembered = ObservationCache::default();
        let drift = observe_and_plan::drift(
            &sandbox.root(),
            observe_and_plan::current(&journal),
            None,
            Capabilities {
                chown: true,
                ..conduct(false).capabilities
            },
            &remembered,
        );
        let drift = drift.unwrap();
        assert!(!drift.is_empty());
        assert!(drift.iter().all(|one| one.by_user), "{drift:?}");
    }
}
