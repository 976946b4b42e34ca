//! Reads small text files in the current tree, or in the tree as a config will make it.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_rootfs::{MAX_SYMLINKS, Root, RootError};

use super::{MAX_DATABASE_BYTES, files_in, parent_resolver::ParentResolver, text_if_there};

/// The change from one config to another.
#[derive(Clone, Copy)]
pub(super) struct ConfigChange<'a> {
    pub(super) from: &'a MachineConfig,
    pub(super) to: &'a MachineConfig,
    /// The originals, and the paths that matched when a config first named them: these stay when the config no longer
    /// names them.
    pub(super) originals: &'a BTreeMap<AbsPath, AbsPath>,
    pub(super) adopted: &'a BTreeSet<AbsPath>,
}

/// Reads texts; links are followed inside the root.
pub(super) struct PlannedTexts<'a, 'p, 'r> {
    root: &'a Root,
    /// None for the current tree.
    planned: Option<(ConfigChange<'a>, &'p mut ParentResolver<'r>)>,
}

/// What a config makes of one path.
enum PlannedText<'a> {
    Text(&'a [u8]),
    Link(&'a str),
    /// The content is that of the object at this place, or empty.
    Original(Option<AbsPath>),
    Unchanged,
}

impl<'a, 'p, 'r> PlannedTexts<'a, 'p, 'r> {
    pub(super) fn today(root: &'a Root) -> Self {
        let planned = None;
        Self { root, planned }
    }

    pub(super) fn planned(
        root: &'a Root,
        change: ConfigChange<'a>,
        places: &'p mut ParentResolver<'r>,
    ) -> Self {
        let planned = Some((change, places));
        Self { root, planned }
    }

    /// Returns the text of a file; empty if it is missing, too long, or not text.
    pub(super) fn text(&mut self, path: &str) -> Result<String, RootError> {
        let Some((change, places)) = &mut self.planned else {
            return text_if_there(self.root, path, MAX_DATABASE_BYTES);
        };
        let Ok(mut path) = AbsPath::new(path) else {
            return Ok(String::new());
        };
        for _ in 0..MAX_SYMLINKS {
            let place = places.of(&path)?;
            path = match change.text(&place, places)? {
                PlannedText::Text(bytes) => {
                    return Ok(String::from_utf8(bytes.to_vec()).unwrap_or_default());
                }
                PlannedText::Link(target) => machinist_plan::resolve(&place, target),
                PlannedText::Original(None) => return Ok(String::new()),
                PlannedText::Original(Some(original)) => match self.root.read_link(&original) {
                    Ok(target) => machinist_plan::resolve(&place, &target),
                    Err(_) => {
                        return text_if_there(self.root, original.as_str(), MAX_DATABASE_BYTES);
                    }
                },
                PlannedText::Unchanged => match self.root.read_link(&place) {
                    Ok(target) => machinist_plan::resolve(&place, &target),
                    Err(_) => return text_if_there(self.root, place.as_str(), MAX_DATABASE_BYTES),
                },
            };
        }
        Ok(String::new())
    }

    /// Returns the files of a directory whose names end with `suffix`, in order. Some of them may not exist.
    pub(super) fn files(
        &mut self,
        directory: &str,
        suffix: &str,
    ) -> Result<BTreeSet<AbsPath>, RootError> {
        let Some((change, places)) = &mut self.planned else {
            let listed = files_in(self.root, directory, suffix)?;
            return Ok(listed.into_iter().collect());
        };
        let Ok(directory) = AbsPath::new(directory) else {
            return Ok(BTreeSet::new());
        };
        let directory = places.end(&directory)?;
        let listed = match files_in(self.root, directory.as_str(), suffix) {
            // A config replaces the object by a directory.
            Err(error) if error.is_absent() => Vec::new(),
            listed => listed?,
        };
        let mut files: BTreeSet<AbsPath> = listed.into_iter().collect();
        let to = change.to;
        let named = to.files.keys().chain(to.links.keys());
        for path in named.filter(|path| path.file_name().ends_with(suffix)) {
            let place = places.of(path)?;
            if place.directory() == directory.as_str() {
                files.insert(place);
            }
        }
        Ok(files)
    }
}

impl<'a> ConfigChange<'a> {
    /// Returns what the change makes of the object at a canonical path.
    fn text(
        &self,
        place: &AbsPath,
        places: &mut ParentResolver<'_>,
    ) -> Result<PlannedText<'a>, RootError> {
        let gave_content = |name: &AbsPath| {
            let file = self.from.files.get(name);
            file.is_some_and(|file| file.content.is_some()) || self.from.links.contains_key(name)
        };
        let gave = self.name(self.from, place, places)?;
        let gave = gave.is_some_and(gave_content) && !self.adopted.contains(place);
        let leaves = match gave {
            true => PlannedText::Original(self.originals.get(place).cloned()),
            false => PlannedText::Unchanged,
        };
        let Some(name) = self.name(self.to, place, places)? else {
            return Ok(leaves);
        };
        if let Some(link) = self.to.links.get(name) {
            return Ok(PlannedText::Link(&link.target));
        }
        let content = self.to.files.get(name).map(|file| file.content.as_ref());
        Ok(match content {
            Some(Some(content)) => content
                .bytes()
                // A config from the store has no bytes; its files are in place.
                .map_or(PlannedText::Unchanged, PlannedText::Text),
            Some(None) | None => leaves,
        })
    }

    /// Returns the name that a config gives to the file or link at a canonical path.
    fn name(
        &self,
        config: &'a MachineConfig,
        place: &AbsPath,
        places: &mut ParentResolver<'_>,
    ) -> Result<Option<&'a AbsPath>, RootError> {
        let all = config.files.keys().chain(config.links.keys());
        for path in all.filter(|path| path.file_name() == place.file_name()) {
            if places.of(path)? == *place {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}
