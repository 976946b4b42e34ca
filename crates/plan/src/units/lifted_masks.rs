//! Removes the masks that entries with `mask: false` lift.

use crate::{
    desired_tree::{ConfigSide, DesiredEntry, DesiredTree, PathResolver},
    enablement::UNIT_DIR,
    machine_facts::UnitEntry,
    unit_tree::{self, UnitTree},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, MachineConfig};

/// Removes the masks that `mask: false` lifts: a link to the null device or an empty file below
/// `/etc`. A unit file stays, and masks elsewhere are not managed.
pub(super) fn lift_masks(
    layout: &mut DesiredTree,
    config: &MachineConfig,
    place: &PathResolver<'_>,
    side: ConfigSide<'_>,
) {
    let mut lifted = config
        .units
        .iter()
        .filter(|(_, unit)| unit.lifts_mask())
        .peekable();
    if lifted.peek().is_none() {
        return;
    }
    let there = UnitTree::without_ours(place.observed, side);
    for (name, unit) in lifted {
        let Some(path) = unit_tree::unit_path(name.as_str()) else {
            continue;
        };
        let original = place.observed.unit_originals.get(&path);
        let masked = match there.at(&path) {
            Some(entry) => entry.is_mask(),
            None => original.is_some_and(UnitEntry::is_mask),
        };
        if masked {
            let entry = DesiredEntry::new(EntryKind::Mask, name.as_str(), &unit.origin);
            layout.absent.insert(place.of(&path), entry);
        }
        let mut elsewhere = unit_tree::UNIT_DIRECTORIES.iter();
        let elsewhere = elsewhere.find(|directory| {
            if **directory == UNIT_DIR {
                return false;
            }
            let path = AbsPath::new(format!("{directory}/{name}")).ok();
            path.is_some_and(|path| {
                there
                    .at(&path)
                    .is_some_and(unit_tree::UnitTreeEntry::is_mask)
            })
        });
        if let Some(directory) = elsewhere {
            layout.warnings.push(format!(
                "{name} stays masked: it is masked in {directory}, but mask: false only removes \
                 masks in {UNIT_DIR}"
            ));
        }
    }
}
