//! Reads unit files, drop-ins and presets that a config brings as links: their texts are those of other files, also
//! of files that the config does not contain.

use std::collections::BTreeMap;

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{MachineFacts, PRESET_DIRECTORIES, UNIT_DIRECTORIES};
use machinist_rootfs::{Root, RootError};

use super::{
    parent_resolver::ParentResolver,
    planned_texts::{ConfigChange, PlannedTexts},
};

/// What a link in a unit or preset directory brings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextOrigin {
    Unit,
    /// A drop-in or a preset file, which a symbolic link may bring as well.
    Part,
    DropInDirectory,
}

/// Fills in the texts behind the links of both configs.
pub(super) fn add(
    root: &Root,
    [from, to]: [&MachineConfig; 2],
    places: &mut ParentResolver<'_>,
    seen: &mut MachineFacts,
) -> Result<(), RootError> {
    let today = PlannedTexts::today(root);
    let before = texts(from, &seen.unit_paths_before, today)?;
    let change = ConfigChange {
        from,
        to,
        originals: &seen.originals,
        adopted: &seen.adopted,
    };
    let planned = PlannedTexts::planned(root, change, places);
    let after = texts(to, &seen.unit_paths, planned)?;
    (seen.linked_texts_before, seen.linked_texts) = (before, after);
    Ok(())
}

/// Returns the texts by the path in the unit or preset directory. A text that cannot be read is left out.
fn texts(
    config: &MachineConfig,
    names: &BTreeMap<AbsPath, AbsPath>,
    mut texts: PlannedTexts<'_, '_, '_>,
) -> Result<BTreeMap<AbsPath, String>, RootError> {
    let mut files = Vec::new();
    for (path, link) in &config.links {
        let own = names.get(path).unwrap_or(path);
        match (entry_kind(own), link.hard) {
            (Some(TextOrigin::DropInDirectory), false) => {
                let listed = known(texts.files(path.as_str(), ".conf"))?;
                let listed = listed.into_iter().flatten();
                files.extend(
                    listed.filter_map(|file| Some((own.join(file.file_name()).ok()?, file))),
                );
            }
            (Some(TextOrigin::Unit), true) | (Some(TextOrigin::Part), _) => {
                files.push((own.clone(), path.clone()));
            }
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    for (own, file) in files {
        let text = known(texts.text(file.as_str()))?;
        found.extend(text.filter(|text| !text.is_empty()).map(|text| (own, text)));
    }
    Ok(found)
}

/// Returns none for an object that cannot be read, unless a retry is needed.
fn known<T>(read: Result<T, RootError>) -> Result<Option<T>, RootError> {
    match read {
        Err(error) if error.is_starved() => Err(error),
        read => Ok(read.ok()),
    }
}

fn entry_kind(own: &AbsPath) -> Option<TextOrigin> {
    let (directory, name) = (own.directory(), own.file_name());
    let (above, nested) = directory.rsplit_once('/').unwrap_or_default();
    if PRESET_DIRECTORIES.contains(&directory) {
        return name.ends_with(".preset").then_some(TextOrigin::Part);
    }
    if UNIT_DIRECTORIES.contains(&directory) {
        return Some(match name.ends_with(".d") {
            true => TextOrigin::DropInDirectory,
            false => TextOrigin::Unit,
        });
    }
    let is_drop_in = nested.ends_with(".d") && name.ends_with(".conf");
    (is_drop_in && UNIT_DIRECTORIES.contains(&above)).then_some(TextOrigin::Part)
}
