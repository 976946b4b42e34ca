//! Where paths really lie, today or in the tree as planned.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    machine_config::{Directory, MachineConfig},
    path::AbsPath,
    plan::is_layout,
    root::{Kind, Root, RootError},
};

/// As many links as the kernel follows in one path (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Resolves the links in the parents of paths, each directory once.
pub(super) struct Places<'a> {
    root: &'a Root,
    planned: Option<(&'a MachineConfig, &'a MachineConfig)>,
    /// Entries of the two configs by the place where they lie today, where that is not their path.
    entries: HashMap<AbsPath, &'a AbsPath>,
    /// By text: parents are asked for, which are not at hand as paths.
    known: HashMap<Arc<str>, AbsPath>,
    /// Places that are no directories today: below them there is nothing to look at.
    bare: HashSet<AbsPath>,
}

impl<'a> Places<'a> {
    /// The tree as it is.
    pub(super) fn today(root: &'a Root) -> Self {
        Self {
            root,
            planned: None,
            entries: HashMap::new(),
            known: HashMap::new(),
            bare: HashSet::new(),
        }
    }

    /// The tree as it will be: links and directories of `to` are there, links that only `from` had
    /// are gone.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(super) fn planned(
        root: &'a Root,
        from: &'a MachineConfig,
        to: &'a MachineConfig,
    ) -> Result<Self, RootError> {
        let mut today = Self::today(root);
        let mut entries = HashMap::new();
        let all = to.links.keys().chain(to.directories.keys());
        for path in all.chain(to.files.keys()).chain(from.links.keys()) {
            let place = today.of(path)?;
            if place != *path {
                entries.insert(place, path);
            }
        }
        Ok(Self {
            root,
            planned: Some((from, to)),
            entries,
            known: HashMap::new(),
            bare: HashSet::new(),
        })
    }

    /// Where the object called `path` lies; the last component is kept, link or not.
    pub(super) fn of(&mut self, path: &AbsPath) -> Result<AbsPath, RootError> {
        if let Some(place) = self.known_place(path) {
            return Ok(place);
        }
        let Some(parent) = path.parent() else {
            return Ok(path.clone());
        };
        self.directory(&parent, 0)?;
        Ok(self.known_place(path).unwrap_or_else(|| path.clone()))
    }

    /// Where the object called `path` lies, and where it leads if it is a link.
    pub(super) fn end(&mut self, path: &AbsPath) -> Result<AbsPath, RootError> {
        self.directory(path, 0)
    }

    /// The place of a path in a directory that was resolved before.
    fn known_place(&self, path: &AbsPath) -> Option<AbsPath> {
        let directory = self.known.get(path.directory())?;
        Some(match directory.as_str() == path.directory() {
            true => path.clone(),
            false => child(directory, path.file_name()),
        })
    }

    /// Like [`Places::of`], but no link below `top` is followed.
    pub(super) fn below(&mut self, top: &AbsPath, path: &AbsPath) -> Result<AbsPath, RootError> {
        let rest = path.components().skip(top.components().count());
        let start = self.directory(top, 0)?;
        Ok(rest.fold(start, |at, name| child(&at, name)))
    }

    fn directory(&mut self, path: &AbsPath, links: usize) -> Result<AbsPath, RootError> {
        if let Some(known) = self.known.get(path.as_str()) {
            return Ok(known.clone());
        }
        let Some(parent) = path.parent() else {
            return Ok(path.clone());
        };
        let above = self.directory(&parent, links)?;
        let at = child(&above, path.file_name());
        let found = match self.link_at(path, &above, &at)? {
            Some(target) if links < MOST_LINKS => self.follow(&at, &target, links + 1)?,
            // A loop. The plan finds a link where it needs a directory.
            Some(_) => {
                self.bare.insert(at.clone());
                at
            }
            None => at,
        };
        self.known.insert(path.shared(), found.clone());
        Ok(found)
    }

    /// The text of the link that is, or will be, at `at`, which the config calls `path`.
    fn link_at(
        &mut self,
        path: &AbsPath,
        above: &AbsPath,
        at: &AbsPath,
    ) -> Result<Option<String>, RootError> {
        let mut link_goes = false;
        if let Some((from, to)) = self.planned {
            // The config may name the object by any path that leads there.
            let names = [Some(path), Some(at), self.entries.get(at).copied()];
            let mut links = names
                .iter()
                .flatten()
                .filter_map(|name| to.links.get(*name));
            if let Some(link) = links.find(|link| !link.hard) {
                return Ok(Some(link.target.clone()));
            }
            // A directory without mode and owner leaves a link of the layout in place.
            let stays = |directory: &Directory| is_layout(at) && directory.leaves_all();
            link_goes = names.into_iter().flatten().any(|name| {
                let directory = to.directories.get(name);
                directory.is_some_and(|directory| !stays(directory))
                    || to.files.contains_key(name)
                    || from.links.contains_key(name)
            });
        }
        let found = match self.bare.contains(above) {
            true => None,
            false => match self.root.stat(at) {
                // A link that leads below itself leads nowhere.
                Err(error) if error.is_unreachable() || error.is_loop() => None,
                stat => stat?.map(|stat| stat.kind),
            },
        };
        match found {
            Some(Kind::Link) if !link_goes => {
                let text = self.root.link_text(at)?;
                if text.is_none() {
                    self.bare.insert(at.clone());
                }
                return Ok(text);
            }
            Some(Kind::Directory) => {}
            _ => {
                self.bare.insert(at.clone());
            }
        }
        Ok(None)
    }

    fn follow(&mut self, at: &AbsPath, target: &str, links: usize) -> Result<AbsPath, RootError> {
        let above = |path: &AbsPath| path.parent().unwrap_or_else(AbsPath::root);
        let mut here = if target.starts_with('/') {
            AbsPath::root()
        } else {
            above(at)
        };
        for part in target.split('/') {
            here = match part {
                "" | "." => here,
                ".." => above(&here),
                part => self.directory(&child(&here, part), links)?,
            };
        }
        Ok(here)
    }
}

/// `directory` with one more component; a component that no path may have leads nowhere else.
fn child(directory: &AbsPath, name: &str) -> AbsPath {
    directory.join(name).unwrap_or_else(|_| directory.clone())
}
