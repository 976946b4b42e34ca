//! machinist's result for a case.

use machinist_ignition::{
    ConfigLoader, ConfigRules, MachineConfig, MergeOrder, NoLocalFiles, Refusal,
};

use super::go_program::Case;

/// Every user and group of the cases may be managed: the permitted names are a setting of machinist
/// and not part of Ignition.
pub(super) const NAMES: [&str; 6] = ["core", "ann", "bob", "web", "ops", "zoe"];

pub(super) fn read(case: &Case) -> Result<MachineConfig, Vec<Refusal>> {
    let names = || NAMES.map(str::to_owned).into();
    let rules = ConfigRules {
        users: names(),
        groups: names(),
        source: case.source,
    };
    let gathering = ConfigLoader {
        shown: "the case",
        rules: &rules,
        local: &NoLocalFiles,
        pool: "worker",
        order: MergeOrder::AsGiven,
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
