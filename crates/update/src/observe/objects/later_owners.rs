//! Judges the objects in users' directories by the owners that they have after an update: an object of a third user
//! there would block the next update. Objects that the transaction would refuse are found here, too, while the plan
//! is made.

use std::collections::{BTreeMap, BTreeSet};

use super::{LocatedPaths, ObjectObserver};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{ObservedPath, PlannedObjects};
use machinist_rootfs::{DirectoryControl, ExpectedObject, FileKind, RootError, Stat};

/// The entries of both configs, by canonical path, and what the update does.
pub(in crate::observe) struct LaterOwners<'a> {
    before: BTreeMap<&'a AbsPath, &'a ObservedPath>,
    after: BTreeMap<&'a AbsPath, &'a ObservedPath>,
    /// The hard links of each config and their files.
    names_before: BTreeSet<&'a AbsPath>,
    names_after: BTreeSet<&'a AbsPath>,
    planned: &'a PlannedObjects,
}

impl<'a> LaterOwners<'a> {
    pub(in crate::observe) fn new(
        [before, after]: [&'a LocatedPaths; 2],
        planned: &'a PlannedObjects,
    ) -> Self {
        let by_path = |paths: &'a LocatedPaths| {
            let described = paths.paths.iter().filter(|asked| asked.described);
            described.map(|asked| (&asked.path, asked)).collect()
        };
        let (before, after) = (by_path(before), by_path(after));
        Self {
            names_before: Self::names(&before),
            names_after: Self::names(&after),
            before,
            after,
            planned,
        }
    }

    fn names(side: &BTreeMap<&'a AbsPath, &'a ObservedPath>) -> BTreeSet<&'a AbsPath> {
        let linked = side.values().filter(|asked| asked.file.is_some());
        let names = linked.flat_map(|asked| std::iter::once(&asked.path).chain(&asked.file));
        names.collect()
    }
}

impl ObjectObserver<'_> {
    /// Adds the paths in directories that users control today.
    pub(in crate::observe) fn judge_owners(
        &mut self,
        [from, to]: [&MachineConfig; 2],
        sides: [&LocatedPaths; 2],
    ) -> Result<(), RootError> {
        let mut paths = sides.iter().flat_map(|side| &side.paths);
        if !paths.any(|asked| self.controlled.contains_key(&asked.path)) {
            return Ok(());
        }
        let planned = machinist_plan::planned_objects(from, to, &self.seen, self.root.can_chown());
        let later = LaterOwners::new(sides, &planned);
        let mut found = [BTreeMap::new(), BTreeMap::new()];
        for (path, control) in &self.controlled {
            let (one, stays) = match (later.after.get(path), later.before.get(path)) {
                (Some(one), _) => (one, true),
                (None, Some(one)) => (one, false),
                (None, None) => continue,
            };
            let why = match self.blocked(&later, one, control)? {
                None if stays => self.later_owner(&later, path, control)?,
                why => why,
            };
            if let Some(why) = why {
                found[usize::from(stays)].insert(path.clone(), why);
            }
        }
        let [leaving, wanted] = found;
        for (path, why) in leaving {
            self.seen.unsafe_before.entry(path).or_insert(why);
        }
        for (path, why) in wanted {
            self.seen.unsafe_after.entry(path).or_insert(why);
        }
        Ok(())
    }

    /// Returns why the transaction could not change the object that is there, as it decides itself.
    fn blocked(
        &self,
        later: &LaterOwners<'_>,
        one: &ObservedPath,
        control: &DirectoryControl,
    ) -> Result<Option<String>, RootError> {
        let (path, planned) = (&one.path, later.planned);
        let changed = planned.files.get(path);
        let changed = changed.or_else(|| planned.directories.get(path));
        if changed.is_none() && !planned.replaced.contains(path) || self.is_ours(later, path) {
            return Ok(None);
        }
        let Some(stat) = self.later_stat(path)? else {
            return Ok(None);
        };
        let owner = changed.map(|wanted| wanted.uid).or(one.owner);
        let users: Vec<u32> = owner.into_iter().collect();
        let names = later.names_before.iter().copied().filter(|name| {
            let changes = planned.replaced.contains(*name) && self.is_ours(later, name);
            *name != path && changes
        });
        let names: Vec<&AbsPath> = names.collect();
        let own = ExpectedObject {
            users: &users,
            names: self.same_as(&stat, &names).saturating_add(1),
        };
        self.root.foreign_target(path, &stat, control, &own)
    }

    /// Returns why the object that the update leaves at `path` may not be in a directory with this control: a file
    /// without contents whose owner the config sets, or the file of a hard link.
    pub(in crate::observe) fn later_owner(
        &self,
        later: &LaterOwners<'_>,
        path: &AbsPath,
        control: &DirectoryControl,
    ) -> Result<Option<String>, RootError> {
        let Some(one) = later.after.get(path).filter(|_| self.root.can_chown()) else {
            return Ok(None);
        };
        let stat = match &one.file {
            Some(file) => self.later_file(later, file)?,
            None => self.later_partial(later, one)?,
        };
        let Some(stat) = stat else {
            return Ok(None);
        };
        let own = ExpectedObject {
            users: &[],
            names: 1,
        };
        let why = self.root.foreign_target(path, &stat, control, &own)?;
        Ok(why.map(|why| format!("once this config is applied, {why}")))
    }

    /// A file without contents as the update leaves it; none if machinist creates it.
    fn later_partial(
        &self,
        later: &LaterOwners<'_>,
        one: &ObservedPath,
    ) -> Result<Option<Stat>, RootError> {
        let Some(uid) = one.owner.filter(|_| one.is_without_content()) else {
            return Ok(None);
        };
        let original = self.seen.originals.get(&one.path);
        if original.is_none() && self.is_ours(later, &one.path) {
            return Ok(None);
        }
        let stat = match (self.later_stat(&one.path)?, original) {
            (None, Some(original)) => self.later_stat(original)?,
            (stat, _) => stat,
        };
        let file = stat.filter(|stat| stat.kind == FileKind::File);
        // Other names are judged by their present state.
        Ok(file.map(|stat| Stat {
            uid,
            nlink: 1,
            ..stat
        }))
    }

    /// The file of a hard link as the update leaves it, with one link and one for each name that is not the config's.
    fn later_file(
        &self,
        later: &LaterOwners<'_>,
        file: &AbsPath,
    ) -> Result<Option<Stat>, RootError> {
        let wanted = later.after.get(file);
        let put = wanted.is_some_and(|wanted| wanted.size.is_some());
        let replaced = later.planned.replaces(file);
        let restored = self.seen.originals.get(file).filter(|_| replaced && !put);
        let there = self.later_stat(restored.unwrap_or(file))?;
        let foreign = match &there {
            Some(stat) if !replaced && stat.kind == FileKind::File => {
                let names = later.names_before.iter().copied();
                let names = names.filter(|name| !self.seen.adopted.contains(*name));
                let mut names: BTreeSet<&AbsPath> = names.collect();
                names.extend(&later.names_after);
                let names: Vec<&AbsPath> = names.into_iter().collect();
                stat.nlink.saturating_sub(self.same_as(stat, &names))
            }
            _ => 0,
        };
        let before = self.seen.modes.get(file).map(|before| before.uid);
        let given = match wanted {
            Some(wanted) => wanted.owner,
            None => before.filter(|_| later.before.contains_key(file)),
        };
        // A new file: only owner and names count.
        let stat = match there {
            None => self.later_stat(&AbsPath::root())?.map(|root| Stat {
                uid: 0,
                kind: FileKind::File,
                ..root
            }),
            there => there,
        };
        Ok(stat.map(|stat| Stat {
            uid: given.unwrap_or(stat.uid),
            nlink: foreign.saturating_add(1),
            ..stat
        }))
    }

    /// Whether an earlier config put the object at `path` there, as far as the observation shows.
    fn is_ours(&self, later: &LaterOwners<'_>, path: &AbsPath) -> bool {
        let keys = later.before.get(path).is_some_and(|asked| asked.edited);
        let had = later.before.contains_key(path);
        let found = self.seen.adopted.contains(path) || self.seen.modes.contains_key(path);
        self.seen.originals.contains_key(path) || had && !found && !keys
    }

    fn same_as(&self, object: &Stat, names: &[&AbsPath]) -> u32 {
        let same = names.iter().filter(|name| self.is_same(name, object));
        u32::try_from(same.count()).unwrap_or(u32::MAX)
    }

    /// The object at `path`; none if it cannot be examined, which is judged elsewhere.
    fn later_stat(&self, path: &AbsPath) -> Result<Option<Stat>, RootError> {
        match self.root.stat(path) {
            Err(error) if error.is_starved() => Err(error),
            stat => Ok(stat.ok().flatten()),
        }
    }
}
