//! Paths on a file system that does not respond, such as a FUSE mount of another user.

use machinist_base::reason::Reason;
use machinist_ignition::MachineConfig;
use machinist_plan::{MachineFacts, Plan, Policies};
use machinist_update::observe::CallerFacts;

use super::support::{OFFLINE, Tree, config, path, show};

fn files(behind: &str, other: &str) -> MachineConfig {
    config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"files": [
            {{"path": "/srv/u/a", "mode": 420, "contents": {{"source": "data:,{behind}"}}}},
            {{"path": "/etc/f", "mode": 420, "contents": {{"source": "data:,{other}"}}}}]}}}}"#
    ))
}

/// The machine on `from`, with a mount over `/srv/u`.
fn observed(tree: &Tree, from: &MachineConfig, to: &MachineConfig) -> MachineFacts {
    let mut observed = tree.observed(from, to, CallerFacts::default());
    let mount = path("/srv/u");
    observed.objects.retain(|at, _| !at.is_under(&mount));
    let why = (Reason::PermissionMissing, "Permission denied".to_owned());
    observed.unreachable.insert(mount, why);
    observed
}

fn changes(plan: &Plan) -> Vec<&str> {
    let changes = plan.changes.iter();
    changes.map(|change| change.name.as_str()).collect()
}

#[test]
fn an_unreadable_path_does_not_block_the_plan_of_other_paths() {
    let (tree, from) = (Tree::new(), files("a", "one"));
    tree.apply(&tree.plan(&MachineConfig::default(), &from));
    let to = files("a", "two");
    let seen = observed(&tree, &from, &to);
    let plan = machinist_plan::between(&from, &to, &seen, &Policies::default(), OFFLINE);
    let plan = plan.unwrap_or_else(|refusals| panic!("{}", show(&refusals)));
    assert_eq!(changes(&plan), ["/etc/f"]);
    let message = plan.warnings.iter();
    assert!(
        message
            .clone()
            .any(|message| message.contains("/srv/u/a cannot be examined")),
        "{message:?}"
    );
    // Its entry is removed from the config: nothing can be done there now, and the other entries
    // are removed.
    let nothing = MachineConfig::default();
    let seen = observed(&tree, &from, &nothing);
    let plan =
        machinist_plan::between(&from, &nothing, &seen, &Policies::default(), OFFLINE).unwrap();
    assert_eq!(changes(&plan), ["/etc/f"]);
}

#[test]
fn a_change_of_an_unreadable_path_is_rejected_and_others_are_repaired() {
    let (tree, from) = (Tree::new(), files("a", "one"));
    tree.apply(&tree.plan(&MachineConfig::default(), &from));
    let to = files("b", "two");
    let seen = observed(&tree, &from, &to);
    let refused =
        machinist_plan::between(&from, &to, &seen, &Policies::default(), OFFLINE).unwrap_err();
    assert_eq!(refused.len(), 1, "{}", show(&refused));
    assert_eq!(refused[0].reason, Reason::PermissionMissing);
    let (other, policies) = (path("/etc/f"), Policies::default());
    let plan = machinist_plan::only(&from, &to, &seen, &policies, OFFLINE, &other).unwrap();
    assert_eq!(changes(&plan), ["/etc/f"]);
}
