//! Reads small text files in the current tree, or in the tree as a config will make it.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{FILE_MODE, MachineConfig};
use machinist_rootfs::{FileKind, MAX_SYMLINKS, Root, RootError};

use super::{
    MAX_DATABASE_BYTES, bytes_if_there, files_in, list_if_there, parent_resolver::ParentResolver,
};

/// The bits of a mode of which a program has one.
const EXECUTE: u32 = 0o111;

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
    /// Content and mode.
    Text(&'a [u8], u32),
    Link(&'a str),
    /// The content is that of the object at this place, or empty.
    Original(Option<AbsPath>),
    Unchanged,
}

/// The object at the end of the links at a path.
enum End<'a> {
    /// Content and mode that the config sets.
    Planned(&'a [u8], u32),
    /// What exists at this place, if anything.
    At(AbsPath),
    Nothing,
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
        let bytes = self.bytes(path)?;
        Ok(String::from_utf8(bytes).unwrap_or_default())
    }

    /// Works like [`Self::text`] for a program that reads bytes: invalid UTF-8 is replaced.
    pub(super) fn lossy_text(&mut self, path: &str) -> Result<String, RootError> {
        let bytes = self.bytes(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn bytes(&mut self, path: &str) -> Result<Vec<u8>, RootError> {
        let Ok(path) = AbsPath::new(path) else {
            return Ok(Vec::new());
        };
        if self.planned.is_none() {
            return bytes_if_there(self.root, &path, MAX_DATABASE_BYTES);
        }
        match self.end(&path)? {
            End::Planned(bytes, _) => Ok(bytes.to_vec()),
            End::At(place) => bytes_if_there(self.root, &place, MAX_DATABASE_BYTES),
            End::Nothing => Ok(Vec::new()),
        }
    }

    /// Returns whether a path is a regular file that may be executed.
    pub(super) fn is_program(&mut self, path: &AbsPath) -> Result<bool, RootError> {
        let place = match self.end(path)? {
            End::Planned(_, mode) => return Ok(mode & EXECUTE != 0),
            End::At(place) => place,
            End::Nothing => return Ok(false),
        };
        let stat = match self.root.stat(&place) {
            Err(error) if error.is_absent() || error.is_loop() => return Ok(false),
            stat => stat?,
        };
        let planned = match &mut self.planned {
            Some((change, places)) => change.mode(&place, places)?,
            None => None,
        };
        let is_program = |mode: u32| planned.unwrap_or(mode) & EXECUTE != 0;
        Ok(stat.is_some_and(|stat| stat.kind == FileKind::File && is_program(stat.mode)))
    }

    /// Follows the links at a path.
    fn end(&mut self, path: &AbsPath) -> Result<End<'a>, RootError> {
        let mut today;
        let (change, places) = match &mut self.planned {
            Some((change, places)) => (Some(*change), &mut **places),
            None => {
                today = ParentResolver::today(self.root);
                (None, &mut today)
            }
        };
        let mut path = path.clone();
        for _ in 0..MAX_SYMLINKS {
            let place = places.of(&path)?;
            let text = match change {
                Some(change) => change.text(&place, places)?,
                None => PlannedText::Unchanged,
            };
            let stored = match text {
                PlannedText::Text(bytes, mode) => return Ok(End::Planned(bytes, mode)),
                PlannedText::Link(target) => {
                    path = machinist_plan::resolve(&place, target);
                    continue;
                }
                PlannedText::Original(None) => return Ok(End::Nothing),
                PlannedText::Original(Some(original)) => original,
                PlannedText::Unchanged => place.clone(),
            };
            match self.root.read_link(&stored) {
                Ok(target) => path = machinist_plan::resolve(&place, &target),
                Err(_) => return Ok(End::At(stored)),
            }
        }
        Ok(End::Nothing)
    }

    /// Returns the names in a directory that a test accepts, in order. Some of them may not exist.
    pub(super) fn names(
        &mut self,
        directory: &str,
        accepts: &dyn Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>, RootError> {
        let directory = match directory {
            "" => AbsPath::root(),
            other => match AbsPath::new(other) {
                Ok(directory) => directory,
                Err(_) => return Ok(BTreeSet::new()),
            },
        };
        let place = match &mut self.planned {
            Some((_, places)) => places.end(&directory)?,
            None => directory,
        };
        let entries = match list_if_there(self.root, &place) {
            // It is no directory, or a config replaces it by one.
            Err(error) if error.is_absent() => Vec::new(),
            entries => entries?,
        };
        let names = entries.into_iter().map(|entry| entry.name);
        let mut names: BTreeSet<String> = names.filter(|name| accepts(name)).collect();
        let Some((change, places)) = &mut self.planned else {
            return Ok(names);
        };
        let to = change.to;
        let named = to.files.keys().chain(to.links.keys());
        for path in named.chain(to.directories.keys()) {
            for path in std::iter::once(path.clone()).chain(path.ancestors()) {
                let name = path.file_name();
                let new = accepts(name) && !names.contains(name);
                if new && places.of(&path)?.directory() == place.as_str() {
                    names.insert(name.to_owned());
                }
            }
        }
        Ok(names)
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
        let file = self.to.files.get(name);
        let content = file.and_then(|file| Some((file.content.as_ref()?, file.mode)));
        Ok(match content {
            // A config from the store has no bytes; its files are in place.
            Some((content, mode)) => content.bytes().map_or(PlannedText::Unchanged, |bytes| {
                PlannedText::Text(bytes, mode.unwrap_or(FILE_MODE))
            }),
            None => leaves,
        })
    }

    /// Returns the mode that the desired config sets for a file at a canonical path without giving its content.
    fn mode(
        &self,
        place: &AbsPath,
        places: &mut ParentResolver<'_>,
    ) -> Result<Option<u32>, RootError> {
        let name = self.name(self.to, place, places)?;
        let file = name.and_then(|name| self.to.files.get(name));
        Ok(file.and_then(|file| file.mode))
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
