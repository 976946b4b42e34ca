//! Finds files and links that a config puts into a unit directory by another path, such as through a link of its
//! own.

use std::collections::BTreeMap;

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{PRESET_DIRECTORIES, UNIT_DIRECTORIES, is_dependency_directory};
use machinist_rootfs::RootError;

use super::parent_resolver::ParentResolver;

/// Returns the path in the unit directory for each such path of the config.
pub(super) fn find(
    config: &MachineConfig,
    places: &mut ParentResolver<'_>,
) -> Result<BTreeMap<AbsPath, AbsPath>, RootError> {
    let directories = directories(config, places)?;
    let mut found = BTreeMap::new();
    for path in config.files.keys().chain(config.links.keys()) {
        let place = places.of(path)?;
        let own = in_unit_directory(&place, &directories);
        if let Some(own) = own.filter(|own| own != path && !is_spelled_out(path)) {
            found.insert(path.clone(), own);
        }
    }
    Ok(found)
}

/// Returns the directories that systemd reads, by canonical path: the fixed ones, and those for drop-ins and
/// dependencies that the config creates as links.
fn directories(
    config: &MachineConfig,
    places: &mut ParentResolver<'_>,
) -> Result<BTreeMap<AbsPath, AbsPath>, RootError> {
    let fixed = UNIT_DIRECTORIES.into_iter().chain(PRESET_DIRECTORIES);
    let fixed = fixed.filter_map(|path| AbsPath::new(path).ok());
    let links = config.links.iter().filter(|(path, link)| {
        !link.hard && is_nested(path.file_name()) && UNIT_DIRECTORIES.contains(&path.directory())
    });
    let mut found = BTreeMap::new();
    for directory in fixed.chain(links.map(|(path, _)| path.clone())) {
        found.entry(places.end(&directory)?).or_insert(directory);
    }
    Ok(found)
}

fn in_unit_directory(place: &AbsPath, directories: &BTreeMap<AbsPath, AbsPath>) -> Option<AbsPath> {
    let directory = place.parent()?;
    if let Some(own) = directories.get(&directory) {
        return own.join(place.file_name()).ok();
    }
    let nested = directory.file_name();
    let own = directories
        .get(&directory.parent()?)
        .filter(|_| is_nested(nested))?;
    own.join(nested)
        .and_then(|own| own.join(place.file_name()))
        .ok()
}

fn is_nested(name: &str) -> bool {
    is_dependency_directory(name) || name.ends_with(".d")
}

/// Returns whether the config names it by a path in a unit directory.
fn is_spelled_out(path: &AbsPath) -> bool {
    let directory = path.directory();
    let (above, name) = directory.rsplit_once('/').unwrap_or_default();
    let fixed = |directory: &str| {
        UNIT_DIRECTORIES.contains(&directory) || PRESET_DIRECTORIES.contains(&directory)
    };
    fixed(directory) || (is_nested(name) && fixed(above))
}
