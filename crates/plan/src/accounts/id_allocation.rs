//! Chooses the numbers of new users and groups as useradd(8) does with an empty login.defs(5).

use std::collections::BTreeSet;

use super::{
    super::{
        MachineFacts,
        passwd::{Database, DatabaseEntries, Edit},
    },
    AccountDraft, field,
    removal::part,
};
use machinist_ignition::MachineConfig;

/// The range for human users: the default of all distributions, without 60000, where some
/// distributions start another range.
const HUMAN_ID_RANGE: std::ops::RangeInclusive<u32> = 1000..=59999;
/// The range for system accounts, assigned downwards from its end.
const SYSTEM_ID_RANGE: std::ops::RangeInclusive<u32> = 101..=999;
/// The first subordinate id, the number of ids per user, and the last one (login.defs(5)).
const MIN_SUBID: u64 = 100_000;
const SUBIDS_PER_USER: u64 = 65_536;
const MAX_SUBID: u64 = 600_100_000;

/// The numbers that are in use.
#[derive(Debug)]
pub(super) struct UsedIds {
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl UsedIds {
    /// The numbers in use on the machine and those that the config names; neither may be assigned
    /// to another account.
    pub(super) fn taken(to: &MachineConfig, observed: &MachineFacts) -> Self {
        let asked = to
            .users
            .values()
            .filter_map(|user| user.account.as_ref()?.uid);
        let users = observed.users.values().map(|account| account.uid);
        let groups = to.groups.values().filter_map(|group| group.gid);
        // Entries that an earlier config removed come back with their numbers.
        let removed = |database| {
            let kept = observed.accounts.kept.iter();
            kept.filter_map(move |edit| match edit {
                Edit::Line {
                    database: own,
                    before: Some(line),
                    after: None,
                    ..
                } if *own == database => part(line, field::ID_FIELD)?.parse().ok(),
                _ => None,
            })
        };
        let there = observed.groups.values().copied();
        Self {
            users: users
                .chain(asked)
                .chain(removed(Database::Passwd))
                .collect(),
            groups: there
                .chain(groups)
                .chain(removed(Database::Group))
                .collect(),
        }
    }

    /// The next number for a user.
    pub(super) fn user(&mut self, system: bool) -> Option<u32> {
        let number = next(&self.users, system)?;
        self.users.insert(number);
        Some(number)
    }

    /// The next number for a group: `like`, the number of its user, if that is free.
    pub(super) fn group(&mut self, like: Option<u32>, system: bool) -> Option<u32> {
        let free = like.filter(|like| !self.groups.contains(like));
        let number = free.or_else(|| next(&self.groups, system))?;
        self.groups.insert(number);
        Some(number)
    }
}

impl AccountDraft<'_> {
    /// The name of the entry with this number.
    pub(super) fn with_id(&self, database: Database, id: Option<&str>) -> Option<String> {
        let mut rows = self.now.get(&database)?.rows(database);
        let row = rows.find(|row| Some(row[field::ID_FIELD]) == id)?;
        Some(row[0].to_owned())
    }
}

/// For human users the number after the highest one in use, so that no number is reused; for system
/// accounts the highest free number.
fn next(taken: &BTreeSet<u32>, system: bool) -> Option<u32> {
    let free = |number: &u32| !taken.contains(number);
    if system {
        return SYSTEM_ID_RANGE.rev().find(free);
    }
    let after = match taken.range(HUMAN_ID_RANGE).next_back() {
        Some(highest) => highest + 1,
        None => *HUMAN_ID_RANGE.start(),
    };
    let after = Some(after).filter(|number| HUMAN_ID_RANGE.contains(number));
    after.or_else(|| HUMAN_ID_RANGE.clone().find(free))
}

/// The first free range of subordinate ids.
pub(super) fn range(database: Database, there: &DatabaseEntries) -> Option<(u64, u64)> {
    let number = |text: &str| text.parse::<u64>().ok();
    let mut taken: Vec<(u64, u64)> = there
        .rows(database)
        .filter_map(|row| Some((number(row[1])?, number(row[2])?)))
        .collect();
    taken.sort_unstable();
    let mut first = MIN_SUBID;
    for (start, count) in taken {
        if first + SUBIDS_PER_USER <= start {
            break;
        }
        first = first.max(start.saturating_add(count));
    }
    (first + SUBIDS_PER_USER - 1 <= MAX_SUBID).then_some((first, SUBIDS_PER_USER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_ids_follow_the_highest_used_and_system_ids_take_the_highest_free() {
        for (taken, system, wanted) in [
            (&[0, 65534][..], false, 1000),
            (&[1000, 1005], false, 1006),
            (&[1000, 59999], false, 1001),
            (&[0, 998], true, 999),
            (&[999, 998], true, 997),
        ] {
            let taken = taken.iter().copied().collect();
            assert_eq!(next(&taken, system), Some(wanted), "{taken:?} {system}");
        }
        assert_eq!(next(&HUMAN_ID_RANGE.collect(), false), None);
    }

    #[test]
    fn subordinate_ids_are_allocated_in_the_first_gap() {
        for (text, wanted) in [
            ("", 100_000),
            ("a:100000:65536\n", 165_536),
            ("a:165536:65536\n", 100_000),
            ("a:100001:10\nb:300000:5\n", 100_011),
        ] {
            let there = DatabaseEntries::read(text.as_bytes());
            let range = range(Database::Subuid, &there);
            assert_eq!(range, Some((wanted, SUBIDS_PER_USER)), "{text:?}");
        }
    }
}
