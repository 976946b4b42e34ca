//! machinist's result for a case.

use machinist::machine_config::{Gathering, MachineConfig, NoLocal, Order, Refusal, Rules};

use super::verdict::Case;

/// Every user and group of the cases may be managed: the permitted names are a setting of machinist
/// and not part of Ignition.
pub(super) const NAMES: [&str; 5] = ["core", "ann", "bob", "web", "ops"];

pub(super) fn read(case: &Case) -> Result<MachineConfig, Vec<Refusal>> {
    let names = || NAMES.map(str::to_owned).into();
    let rules = Rules {
        users: names(),
        groups: names(),
        ..Rules::default()
    };
    let gathering = Gathering {
        shown: "the case",
        rules: &rules,
        local: &NoLocal,
        pool: "worker",
        order: Order::AsGiven,
        roles: &[],
    };
    let files = case
        .texts
        .iter()
        .map(|(name, text)| (name.clone(), text.clone().into_bytes()));
    match gathering.config(files.collect(), Vec::new()) {
        Ok((config, _)) => Ok(config),
        Err(refused) => Err(refused.refusals),
    }
}
