//! Judges the paths of the configs on the machine as the update will make it: the update itself may give a
//! directory to a user, or take one back. A path must be safe before the update, and also after it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    objects::{LaterOwners, LocatedPaths, ObjectObserver},
    parent_resolver::ParentResolver,
    planned_directories::PlannedDirectories,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{ObservedPath, PlannedObjects};
use machinist_rootfs::{DirectoryControl, ExpectedObject, RootError};

/// How often the plan is made again because it found users who will control directories: missing directories below
/// them are then created for these users, which makes no more users known.
const MAX_ROUNDS: usize = 3;

/// The paths of the two configs, as the configs spell them.
pub(super) struct BothPaths {
    pub(super) before: Vec<ObservedPath>,
    pub(super) after: Vec<ObservedPath>,
}

/// The paths of one config.
struct ConfigPaths<'a> {
    asked: &'a [ObservedPath],
    places: ParentResolver<'a>,
    /// The canonical paths of those that differ from them.
    canonical: BTreeMap<AbsPath, AbsPath>,
    /// The reasons why paths are not safe before the update.
    unsafe_paths: BTreeMap<AbsPath, String>,
}

impl ObjectObserver<'_> {
    /// Adds the paths that are safe at present, but not once the update is done. The observation of everything
    /// else must be complete.
    pub(super) fn judge_planned(
        &mut self,
        from: &MachineConfig,
        to: &MachineConfig,
        paths: &BothPaths,
        sides: [&LocatedPaths; 2],
    ) -> Result<(), RootError> {
        let mut risks = None;
        for _ in 0..MAX_ROUNDS {
            let planned =
                machinist_plan::planned_objects(from, to, &self.seen, self.root.can_chown());
            if planned.directories.is_empty() {
                return Ok(());
            }
            let known = self.seen.user_tops.len();
            risks = Some(self.risks_of([from, to], paths, &planned, sides)?);
            if self.seen.user_tops.len() == known {
                break;
            }
        }
        let Some([mut leaving, wanted]) = risks else {
            return Ok(());
        };
        let place = |asked: &ObservedPath| self.seen.canonical.get(&asked.path).cloned();
        let stays = paths.after.iter();
        let stays = stays.map(|asked| place(asked).unwrap_or_else(|| asked.path.clone()));
        let stays: BTreeSet<AbsPath> = stays.collect();
        // An object that does not exist cannot stay behind.
        leaving.retain(|path, _| !stays.contains(path) && self.seen.objects.contains_key(path));
        self.seen.unsafe_before.extend(leaving);
        self.seen.unsafe_after.extend(wanted);
        Ok(())
    }

    /// Returns the reasons why paths of the two configs are not safe, and adds the users who will control them.
    fn risks_of(
        &mut self,
        [from, to]: [&MachineConfig; 2],
        paths: &BothPaths,
        planned: &PlannedObjects,
        sides: [&LocatedPaths; 2],
    ) -> Result<[BTreeMap<AbsPath, String>; 2], RootError> {
        let (root, chown) = (self.root, self.root.can_chown());
        let made = Arc::new(PlannedDirectories::of(planned, &self.seen, chown));
        let before = ConfigPaths {
            asked: &paths.before,
            places: ParentResolver::today(root).with_made(Arc::clone(&made)),
            canonical: self.seen.canonical_before.clone(),
            unsafe_paths: self.seen.unsafe_before.clone(),
        };
        let after = ConfigPaths {
            asked: &paths.after,
            places: ParentResolver::planned(root, [from, to], &self.seen.users)?.with_made(made),
            canonical: self.seen.canonical.clone(),
            unsafe_paths: self.seen.unsafe_after.clone(),
        };
        let later = LaterOwners::new(sides, planned);
        let before = self.planned_risks(before, planned, None)?;
        Ok([before, self.planned_risks(after, planned, Some(&later))?])
    }

    /// Returns the reasons why paths are not safe, by canonical path.
    fn planned_risks(
        &mut self,
        paths: ConfigPaths<'_>,
        planned: &PlannedObjects,
        later: Option<&LaterOwners<'_>>,
    ) -> Result<BTreeMap<AbsPath, String>, RootError> {
        let ConfigPaths {
            asked,
            mut places,
            canonical,
            unsafe_paths,
        } = paths;
        let mut ways = Vec::with_capacity(asked.len());
        for one in asked {
            let place = match &one.home {
                Some(home) => places.below(home, &one.path)?,
                None => places.of(&one.path)?,
            };
            ways.push((one, place));
        }
        let risks = places.risks();
        let mut found = BTreeMap::new();
        for (one, place) in ways {
            let path = canonical.get(&one.path).unwrap_or(&one.path);
            let control = risks.controlled.get(&place);
            let why = match (risks.unsafe_paths.get(&place), control) {
                (Some(why), _) => Some(why.clone()),
                (None, Some(control)) => {
                    let later = later.map(|later| self.later_owner(later, path, control));
                    match later.transpose()?.flatten() {
                        None => self.planned_target(path, control, one, asked, planned)?,
                        why => why,
                    }
                }
                (None, None) => None,
            };
            match (why, unsafe_paths.get(path)) {
                (Some(why), None) => {
                    let why = format!("with the modes and owners of this config, {why}");
                    found.insert(path.clone(), why);
                }
                (None, Some(why)) => {
                    let why = format!(
                        "{why}; this config makes the path safe, but only after it was applied: apply its \
                         modes and owners of directories without this path first"
                    );
                    found.insert(path.clone(), why);
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
            if control.is_some() {
                self.seen.exposed_after.insert(path.clone());
            }
            if let Some(DirectoryControl::User { uid, top }) = control {
                let tops = &mut self.seen.user_tops;
                tops.entry(path.clone()).or_insert_with(|| top.clone());
                let users = &mut self.seen.users_directories;
                if let Some(uid) = uid {
                    users.entry(path.clone()).or_insert(*uid);
                }
            }
        }
        Ok(found)
    }

    /// Returns why the object at `path`, which the update keeps, may not be there once `control` holds.
    fn planned_target(
        &self,
        path: &AbsPath,
        control: &DirectoryControl,
        one: &ObservedPath,
        asked: &[ObservedPath],
        planned: &PlannedObjects,
    ) -> Result<Option<String>, RootError> {
        if planned.replaces(path) {
            return Ok(None);
        }
        let mut stat = match self.root.stat(path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(None),
            Err(error) if error.is_starved() => return Err(error),
            Err(error) => return Ok(Some(machinist_base::error_chain::chain(&error))),
        };
        let changed = planned.files.get(path);
        let changed = changed.or_else(|| planned.directories.get(path));
        if let Some(attributes) = changed.filter(|_| self.root.can_chown()) {
            stat.uid = attributes.uid;
        }
        let names = match one.names {
            0 | 1 => 1,
            _ => self.names_of(&stat, asked.iter()),
        };
        let users: Vec<u32> = one.owner.into_iter().collect();
        let own = ExpectedObject {
            users: &users,
            names,
        };
        self.root.foreign_target(path, &stat, control, &own)
    }
}
