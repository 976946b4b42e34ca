//! Compares the links that enable units with those that `systemctl --root` creates for the same
//! units, and the answers of `systemctl is-enabled`.

mod administrator;
mod files;
mod generate;
mod sshd;

use std::{collections::BTreeMap, fs};

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal, Unit, UnitName};
use machinist_plan::{Plan, Policies};
use machinist_update::observe::CallerFacts;

pub(crate) use self::generate::install;
use self::{
    administrator::{by_hand, states, systemctl_version},
    generate::{presets, units},
};
use super::{
    machine::Base,
    support::{Dice, OFFLINE, Tree, from_environment, show},
};

pub(crate) const UNITS: &str = "/etc/systemd/system";

/// Further parts of machines and configs have numbers of their own: a round keeps its other parts.
const FURTHER: u64 = 0x5EED_0F0E_5715_0001;

#[test]
fn units_are_enabled_disabled_masked_and_preset_as_by_systemctl() {
    let Some(version) = systemctl_version() else {
        eprintln!("skipped: no systemctl on this machine");
        return;
    };
    let seed = from_environment("PLAN_SEED", 1);
    let rounds = from_environment("PLAN_ROUNDS", 8);
    for round in from_environment("PLAN_FIRST", 0)..rounds {
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let mut further = Dice(dice.0 ^ FURTHER);
        let (ours, theirs) = (Tree::new(), Tree::new());
        let presets = presets(&mut dice);
        for tree in [&ours, &theirs] {
            tree.write("/usr/lib/systemd/system-preset/50-test.preset", &presets);
            fs::create_dir_all(tree.at(UNITS)).unwrap();
            tree.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
            tree.write("/usr/lib/os-release", "ID=fedora\n");
        }
        let mut base = Base::throw(&mut dice, version >= 254);
        base.add_masks_and_generated(&mut further);
        base.add_to(&ours);
        base.add_to(&theirs);
        let mut before = MachineConfig::default();
        for step in 0..3 {
            let mut after = units(&mut dice, version >= 254, step == 2);
            base.ask(&mut after, &mut dice);
            base.ask_further(&mut after, &mut further, &presets);
            files::add(&mut after, &mut further, version >= 254);
            let told = || {
                format!(
                    "PLAN_SEED={seed}, round {round}, step {step}:\n{presets}\n{base:#?}\n{}",
                    describe(&before, &after)
                )
            };
            let plan = plan_unless_taken(&ours, &before, &after, &told);
            let taken = by_hand(&theirs, &base, &before, &after);
            assert_eq!(taken, plan.is_none(), "a name is taken: {}", told());
            // systemctl creates the other links all the same; machinist creates none.
            let Some(plan) = plan else { break };
            ours.apply(&plan);
            compare("objects", objects(&ours), objects(&theirs), &told);
            compare_states([&ours, &theirs], &after, &told);
            let again = ours.plan(&after, &after);
            assert!(again.is_empty(), "{:#?}\n{}", again.operations, told());
            before = after;
        }
    }
}

/// The plan; `None` if it is refused because another unit has a name already.
fn plan_unless_taken(
    tree: &Tree,
    before: &MachineConfig,
    after: &MachineConfig,
    told: &dyn Fn() -> String,
) -> Option<Plan> {
    let observed = tree.observed(before, after, CallerFacts::default());
    match machinist_plan::between(before, after, &observed, &Policies::default(), OFFLINE) {
        Ok(plan) => Some(plan),
        Err(refusals) => {
            let taken = |refusal: &Refusal| refusal.reason == Reason::DuplicateTarget;
            let all = refusals.iter().all(taken);
            assert!(all, "{}{}", show(&refusals), told());
            None
        }
    }
}

/// Fails with the entries that only machinist (`-`) or only systemctl (`+`) has.
fn compare(
    what: &str,
    ours: BTreeMap<String, String>,
    theirs: BTreeMap<String, String>,
    told: &dyn Fn() -> String,
) {
    let only = |sign, these: &BTreeMap<String, String>, those: &BTreeMap<String, String>| {
        let these = these.iter();
        let only = these.filter(|(name, value)| those.get(*name) != Some(value));
        only.map(|(name, value)| format!("{sign} {name} {value}\n"))
            .collect::<String>()
    };
    let differing = only('-', &ours, &theirs) + &only('+', &theirs, &ours);
    assert!(differing.is_empty(), "{what}:\n{differing}{}", told());
}

/// Everything but directories. `systemctl enable` also accepts a link to another file of the same name in the unit
/// directories.
fn objects(tree: &Tree) -> BTreeMap<String, String> {
    let all = tree.dump().into_iter();
    let all = all.filter(|(_, what)| !what.starts_with("directory"));
    let named = |what: String| match what.rsplit_once("/systemd/system/") {
        Some((start, name)) if start.starts_with("link ") => format!("link to unit {name}"),
        _ => what,
    };
    all.map(|(path, what)| (path, named(what))).collect()
}

/// `systemctl is-enabled` gives the same answer for every unit in both trees, and the one that the config sets.
fn compare_states([ours, theirs]: [&Tree; 2], after: &MachineConfig, told: &dyn Fn() -> String) {
    let (our, their) = (states(ours, after), states(theirs, after));
    compare("states", our.clone(), their, told);
    for (name, unit) in &after.units {
        let state = our[name.as_str()].as_str();
        let off = unit.enabled == Some(false) && !name.is_template();
        assert!(!off || state != "enabled", "{name} {state}\n{}", told());
        let masked = !unit.mask || state == "masked";
        assert!(masked, "{name} {state}\n{}", told());
        let unmasked = !unit.lifts_mask() || state != "masked";
        assert!(unmasked, "{name} {state}\n{}", told());
    }
}

fn describe(before: &MachineConfig, after: &MachineConfig) -> String {
    let one = |config: &MachineConfig| -> String {
        let line = |(name, unit): (&UnitName, &Unit)| {
            format!(
                "{name} enabled={:?} mask={} unmask={}\n{}\n",
                unit.enabled,
                unit.mask,
                unit.unmask,
                unit.contents.as_deref().unwrap_or("-")
            ) + &unit.dropins.values().cloned().collect::<String>()
        };
        let files = files::texts(config).map(|(path, text)| format!("{path}\n{text}\n"));
        let units = config.units.iter().map(line);
        units.chain(files).collect()
    };
    format!("BEFORE\n{}AFTER\n{}", one(before), one(after))
}
