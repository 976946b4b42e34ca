//! Units with several names, where a name changes hands with the config.

use machinist::{
    machine_config::{MachineConfig, Unit},
    plan::{self, Policies},
    reason::Reason,
    update::observe::Known,
};

use super::support::{OFFLINE, Tree, unit};

const UNIT: &str = "[Service]\nExecStart=/x\n[Install]\nWantedBy=m.target\n";

fn contents(text: String, enabled: bool) -> Unit {
    Unit {
        contents: Some(text),
        enabled: Some(enabled),
        ..Unit::default()
    }
}

fn reasons(tree: &Tree, from: &MachineConfig, to: &MachineConfig) -> Vec<Reason> {
    let observed = tree.observed(from, to, Known::default());
    let plan = plan::between(from, to, &observed, &Policies::default(), OFFLINE);
    let refusals = plan.err().unwrap_or_default();
    refusals.iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn a_name_that_one_unit_hands_to_another_is_the_new_units_in_the_plan() {
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
    assert_eq!(reasons(&tree, &from, &to), [Reason::SameObject]);
    to.units.retain(|name, _| name.as_str() == "e.service");
    assert_eq!(reasons(&tree, &from, &to), []);
}
