//! Detects objects in users' directories that an entry must not replace or read.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as _,
};

use super::{super::ObserveError, LocatedPaths, ObjectObserver};
use machinist_base::abs_path::AbsPath;
use machinist_plan::ObservedPath;
use machinist_rootfs::{DirectoryControl, ExpectedObject, Root, RootError, Stat};

impl ObjectObserver<'_> {
    /// Records the permitted owners of objects in users' directories, for [`ObjectObserver::why_foreign`], and the objects
    /// that cannot be observed.
    pub(super) fn note_owners<'p>(
        &mut self,
        asked: impl Iterator<Item = &'p ObservedPath> + Clone,
    ) -> Result<(), RootError> {
        let mut own: BTreeMap<&AbsPath, (Vec<u32>, u32)> = BTreeMap::new();
        let mut linked: BTreeMap<&AbsPath, Vec<&AbsPath>> = BTreeMap::new();
        let controlled = |asked: &&ObservedPath| self.controlled.contains_key(&asked.path);
        for asked in asked.clone().filter(controlled) {
            let (users, names) = own.entry(&asked.path).or_default();
            users.extend(asked.owner);
            *names = asked.names.max(*names);
            linked.entry(&asked.path).or_default().extend(&asked.file);
        }
        for (path, (mut users, names)) in own {
            let stat = match self.root.stat(path) {
                Err(error) if error.is_starved() => return Err(error),
                stat => stat,
            };
            let names = match stat {
                Ok(Some(stat)) => {
                    let mut files = linked.get(path).into_iter().flatten();
                    // A name of the file that the config gave it may go, whatever user owns the file. A user could give both
                    // paths to another file only in directories of theirs.
                    let own = |file: &AbsPath| {
                        !self.controlled.contains_key(file) && self.is_same(file, &stat)
                    };
                    if files.any(|file| own(file)) {
                        users.push(stat.uid);
                        stat.nlink
                    } else if names > 1 {
                        self.names_of(&stat, asked.clone())
                    } else {
                        names
                    }
                }
                Ok(None) => names,
                // If an object in a user's directory cannot be observed, that user has caused it.
                Err(error) => {
                    let why = machinist_base::error_chain::chain(&error);
                    self.foreign.insert(path.clone(), why);
                    continue;
                }
            };
            self.own.insert(path.clone(), (users, names));
        }
        Ok(())
    }

    /// Counts the requested paths that are names of the same object.
    pub(in crate::observe) fn names_of<'p>(
        &self,
        object: &Stat,
        asked: impl Iterator<Item = &'p ObservedPath>,
    ) -> u32 {
        let paths: BTreeSet<&AbsPath> = asked.map(|asked| &asked.path).collect();
        let same = |path: &&&AbsPath| self.is_same(path, object);
        u32::try_from(paths.iter().filter(same).count()).unwrap_or(u32::MAX)
    }

    /// Returns whether this object is at `path`.
    pub(super) fn is_same(&self, path: &AbsPath, object: &Stat) -> bool {
        let stat = self.root.stat(path).ok().flatten();
        stat.is_some_and(|stat| stat.identity == object.identity && stat.device == object.device)
    }

    /// Records that `path` and everything below it are unreachable.
    pub(super) fn unreachable(&mut self, path: &AbsPath, error: &RootError) {
        let cause = error.source().map(ToString::to_string);
        let text = cause.unwrap_or_else(|| error.to_string());
        let why = (error.reason(), text);
        self.seen.unreachable.insert(path.clone(), why);
    }

    /// Returns the tree with the directory of these paths fixed, if a user could put a link there while it is observed.
    /// Returns `None` if the user has done that already: then nothing is observed there.
    pub(super) fn fixed(
        &mut self,
        directory: &AbsPath,
        paths: &[&AbsPath],
    ) -> Result<Option<Root>, RootError> {
        if !paths.iter().any(|path| self.controlled.contains_key(*path)) {
            return Ok(Some(self.root.clone()));
        }
        let why = match self.root.fixed_at(directory) {
            // The user has removed it.
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) if error.is_moved() => machinist_base::error_chain::chain(&error),
            fixed => return fixed.map(Some),
        };
        let all = paths.iter().map(|path| ((*path).clone(), why.clone()));
        self.foreign.extend(all);
        Ok(None)
    }

    /// Returns why the object at a path may not be replaced or read; `None` if it may, or if no entry needs it.
    pub(super) fn why_foreign(
        &self,
        path: &AbsPath,
        stat: &Stat,
    ) -> Result<Option<String>, RootError> {
        let (Some(control), Some((users, names))) = (self.controlled.get(path), self.own.get(path))
        else {
            return Ok(None);
        };
        let own = ExpectedObject {
            users,
            names: *names,
        };
        self.root.foreign_target(path, stat, control, &own)
    }

    /// Converts an error that a user can cause by moving objects in a directory of theirs.
    pub(in crate::observe) fn blame(&self, error: RootError) -> ObserveError {
        let top = |control: &DirectoryControl| match control {
            DirectoryControl::User { top, .. } => Some(top.clone()),
            DirectoryControl::Root | DirectoryControl::Sticky => None,
        };
        let mut tops = self.controlled.values().filter_map(top);
        let there = tops.find(|top| error.is_about(&self.root.host_path(top)));
        match there.filter(|_| error.is_moved()) {
            Some(top) => ObserveError::Moved { top, source: error },
            None => error.into(),
        }
    }

    /// Returns the users who control the directories of paths.
    pub(in crate::observe) fn users_directories(&self) -> BTreeMap<AbsPath, u32> {
        let users = self.controlled.iter().filter_map(|(path, control)| {
            let uid = match control {
                DirectoryControl::User { uid, .. } => *uid,
                DirectoryControl::Root | DirectoryControl::Sticky => None,
            };
            Some((path.clone(), uid?))
        });
        users.collect()
    }

    /// Returns the topmost directories in which users may move and remove objects, above paths.
    pub(in crate::observe) fn user_tops(&self) -> BTreeMap<AbsPath, AbsPath> {
        let tops = self
            .controlled
            .iter()
            .filter_map(|(path, control)| match control {
                DirectoryControl::User { top, .. } => Some((path.clone(), top.clone())),
                DirectoryControl::Root | DirectoryControl::Sticky => None,
            });
        tops.collect()
    }

    /// Returns the paths whose parent directories others than root may change.
    pub(in crate::observe) fn exposed_paths(&self) -> BTreeSet<AbsPath> {
        let exposed = self
            .controlled
            .iter()
            .filter(|(_, control)| **control != DirectoryControl::Root);
        exposed.map(|(path, _)| path.clone()).collect()
    }

    /// Returns the reasons why some of these paths may not be modified.
    pub(in crate::observe) fn unsafe_paths(
        &self,
        located: &LocatedPaths,
    ) -> BTreeMap<AbsPath, String> {
        let mut unsafe_paths = located.unsafe_paths.clone();
        let foreign = located.paths.iter().filter_map(|asked| {
            let why = self.foreign.get(&asked.path)?;
            Some((asked.path.clone(), why.clone()))
        });
        unsafe_paths.extend(foreign);
        unsafe_paths
    }
}
