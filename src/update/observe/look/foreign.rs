//! Objects in users' directories that an entry must not replace or read.

use std::collections::BTreeMap;

use super::{Located, Look};
use crate::{
    path::AbsPath,
    plan::Asked,
    root::{Control, Own, RootError},
};

impl Look<'_> {
    /// Finds the objects in users' directories that are not the entries' to replace or read.
    pub(super) fn look_for_foreign<'p>(
        &mut self,
        asked: impl Iterator<Item = &'p Asked>,
    ) -> Result<(), RootError> {
        let mut own: BTreeMap<&AbsPath, (Vec<u32>, u32)> = BTreeMap::new();
        for asked in asked.filter(|asked| self.controlled.contains_key(&asked.path)) {
            let (users, names) = own.entry(&asked.path).or_default();
            users.extend(asked.owner);
            *names = asked.names.max(*names);
        }
        for (path, (users, names)) in own {
            let Some(control) = self.controlled.get(path) else {
                continue;
            };
            let own = Own {
                users: &users,
                names,
            };
            let why = match self.root.stat(path) {
                Ok(None) => None,
                Ok(Some(stat)) => self.root.foreign_target(path, &stat, control, &own)?,
                Err(error) if error.is_starved() => return Err(error),
                // What cannot be looked at in a user's directory is that user's doing.
                Err(error) => Some(crate::telemetry::chain(&error)),
            };
            if let Some(why) = why {
                self.foreign.insert(path.clone(), why);
            }
        }
        Ok(())
    }

    /// The users who control the directories of paths.
    pub(in crate::update::observe) fn users_directories(&self) -> BTreeMap<AbsPath, u32> {
        let users = self.controlled.iter().filter_map(|(path, control)| {
            let uid = match control {
                Control::User { uid, .. } => *uid,
                Control::Root | Control::Sticky => None,
            };
            Some((path.clone(), uid?))
        });
        users.collect()
    }

    /// Why nothing may be done at some of these paths.
    pub(in crate::update::observe) fn barred(
        &self,
        located: &Located,
    ) -> BTreeMap<AbsPath, String> {
        let mut barred = located.barred.clone();
        let foreign = located.paths.iter().filter_map(|asked| {
            let why = self.foreign.get(&asked.path)?;
            Some((asked.path.clone(), why.clone()))
        });
        barred.extend(foreign);
        barred
    }
}
