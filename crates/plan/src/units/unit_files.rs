//! Adds the files, drop-ins and masks of units.

use crate::{
    desired_tree::{DesiredEntry, DesiredTree, ObjectSpec, PathResolver},
    enablement::UNIT_DIR,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, Unit, UnitName};

/// Adds what a unit entry contains.
pub(super) fn add(
    layout: &mut DesiredTree,
    place: &PathResolver<'_>,
    name: &UnitName,
    unit: &Unit,
) {
    let Ok(path) = AbsPath::new(format!("{UNIT_DIR}/{name}")) else {
        return;
    };
    if unit.mask {
        let entry = DesiredEntry::new(EntryKind::Mask, name.as_str(), &unit.origin);
        layout.add(place, &path, entry, ObjectSpec::link("/dev/null"));
    } else if let Some(text) = &unit.contents {
        let entry = DesiredEntry::new(EntryKind::Unit, name.as_str(), &unit.origin);
        layout.add(place, &path, entry, ObjectSpec::unit_file(text));
    }
    for (file, text) in &unit.dropins {
        let Ok(path) = AbsPath::new(format!("{UNIT_DIR}/{name}.d/{file}")) else {
            continue;
        };
        let entry = DesiredEntry::new(EntryKind::DropIn, format!("{name}/{file}"), &unit.origin);
        if text.is_empty() {
            layout.absent.insert(place.of(&path), entry);
        } else {
            layout.add(place, &path, entry, ObjectSpec::unit_file(text));
        }
    }
}
