//! Builds the desired tree of a config from its files, accounts, hard links, units and SSH keys.

use super::{
    MachineFacts,
    accounts::{self, Accounts},
    desired_tree::{ConfigSide, DesiredTree, PathResolver},
    hard_links, ssh_keys, units,
};
use machinist_ignition::MachineConfig;

impl DesiredTree {
    /// The objects of `config` on the machine that `observed` shows.
    pub(super) fn of(
        config: &MachineConfig,
        observed: &MachineFacts,
        side: ConfigSide<'_>,
    ) -> Self {
        let mut layout = Self::default();
        let accounts = match side {
            ConfigSide::Before => Accounts::default(),
            ConfigSide::After(_) => accounts::accounts(config, observed),
        };
        let place = PathResolver {
            observed,
            before: matches!(side, ConfigSide::Before),
            from: match side {
                ConfigSide::Before => None,
                ConfigSide::After(from) => Some(from),
            },
            users: accounts.users.clone(),
            groups: accounts.groups.clone(),
            gone: accounts.gone.clone(),
        };
        layout.add_accounts(accounts, &place);
        layout.add_entries(config, &place);
        hard_links::add(&mut layout, config, &place);
        units::add(&mut layout, config, &place, side);
        ssh_keys::add(&mut layout, config, &place);
        let objects = &layout.objects;
        let freed = layout
            .absent
            .extract_if(.., |path, _| objects.contains_key(path));
        layout.freed = freed.map(|(path, _)| path).collect();
        layout.refuse_objects_below_others(observed);
        layout.refuse_odd_hard_links();
        layout
    }
}
