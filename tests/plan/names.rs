//! Units with several names, where a name changes hands with the config.

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Unit};
use machinist_plan::Policies;
use machinist_update::observe::CallerFacts;

use super::support::{OFFLINE, Tree, path, unit};

const UNIT: &str = "[Service]\nExecStart=/x\n[Install]\nWantedBy=m.target\n";

fn contents(text: String, enabled: bool) -> Unit {
    Unit {
        contents: Some(text),
        enabled: Some(enabled),
        ..Unit::default()
    }
}

fn reasons(tree: &Tree, from: &MachineConfig, to: &MachineConfig) -> Vec<Reason> {
    let observed = tree.observed(from, to, CallerFacts::default());
    let plan = machinist_plan::between(from, to, &observed, &Policies::default(), OFFLINE);
    let refusals = plan.err().unwrap_or_default();
    refusals.iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn an_alias_moved_between_units_is_planned_for_the_new_unit() {
    let tree = Tree::new();
    let alias = format!("{UNIT}Alias=g.service\n");
    let mut from = MachineConfig::default();
    unit(&mut from, "h.service", contents(alias.clone(), true));
    tree.apply(&tree.plan(&MachineConfig::default(), &from));
    let mut to = MachineConfig::default();
    unit(&mut to, "e.service", contents(alias, true));
    let off = Unit {
        enabled: Some(false),
        ..Unit::default()
    };
    unit(&mut to, "g.service", off);
    assert_eq!(reasons(&tree, &from, &to), [Reason::DuplicateTarget]);
    to.units.retain(|name, _| name.as_str() == "e.service");
    assert_eq!(reasons(&tree, &from, &to), []);
}

#[test]
fn an_existing_alias_is_accepted_only_if_it_leads_to_the_same_unit() {
    let mut to = MachineConfig::default();
    let alias = format!("{UNIT}Alias=g.service\n");
    unit(&mut to, "e.service", contents(alias, true));
    for (there, expected) in [
        ("/usr/lib/systemd/system/e.service", &[][..]),
        ("/srv/e.service", &[Reason::DuplicateTarget]),
        (
            "/usr/lib/systemd/user/e.service",
            &[Reason::DuplicateTarget],
        ),
    ] {
        let tree = Tree::new();
        tree.link("/etc/systemd/system/g.service", there);
        let reasons = reasons(&tree, &MachineConfig::default(), &to);
        assert_eq!(reasons, expected, "{there}");
    }
}

#[test]
fn links_created_by_presets_are_marked_as_preset() {
    let tree = Tree::new();
    let mut to = MachineConfig::default();
    let silent = Unit {
        enabled: None,
        ..contents(UNIT.to_owned(), true)
    };
    unit(&mut to, "e.service", silent);
    let mark = "by the presets";
    let text = tree.plan(&MachineConfig::default(), &to).to_text(false);
    assert!(text.contains(mark), "{text}");
    assert!(
        !text.contains("it is started"),
        "no machine runs here: {text}"
    );
    unit(&mut to, "e.service", contents(UNIT.to_owned(), true));
    let text = tree.plan(&MachineConfig::default(), &to).to_text(false);
    assert!(!text.contains(mark), "{text}");
}

#[test]
fn ssh_keys_in_a_world_writable_directory_are_reported_in_every_owner_mode() {
    use machinist_ignition::User;
    use std::os::unix::fs::PermissionsExt;
    let tree = Tree::new();
    tree.write("/etc/passwd", "ann:x:1000:1000::/home/ann:/bin/sh\n");
    std::fs::create_dir_all(tree.at("/home/ann/.ssh")).unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(tree.at("/home/ann/.ssh"), open).unwrap();
    let mut to = MachineConfig::default();
    let keys = User {
        ssh_authorized_keys: vec!["ssh-ed25519 AAAA ann".to_owned()],
        ..User::default()
    };
    to.users.insert("ann".to_owned(), keys);
    let mut observed = tree.observed(&MachineConfig::default(), &to, CallerFacts::default());
    // Nothing there is judged by its owner.
    observed.unsafe_after.clear();
    assert!(observed.objects.contains_key(&path("/home/ann/.ssh")));
    let capabilities = machinist_plan::Capabilities {
        chown: false,
        ..OFFLINE
    };
    let nothing = MachineConfig::default();
    let plan =
        machinist_plan::between(&nothing, &to, &observed, &Policies::default(), capabilities);
    let warnings = plan.unwrap().warnings;
    let strict = |warning: &String| warning.contains("StrictModes");
    assert!(warnings.iter().any(strict), "{warnings:?}");
}
