//! Keeps changes of mode and owner in place from giving a user something that the user could not read before: in a
//! directory that others than root may change, a user may have put an object of another user under any name.

use super::{
    Attributes, FileFacts,
    desired_tree::DesiredObject,
    object::ObjectKind,
    steps::{PathAction, PathFacts},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// Whether the change gives a user the owner's rights on an object, or rights to read it, that not every user has
/// before.
pub fn discloses(before: Attributes, after: Attributes, directory: bool) -> bool {
    let read = if directory { 0o5 } else { 0o4 };
    if before.mode & read == read {
        return false;
    }
    let owner = before.uid != after.uid && after.uid != 0;
    let group = after.gid != 0 && after.mode & (read << 3) != 0;
    let group_had = before.gid == after.gid && before.mode & (read << 3) == read << 3;
    owner || (group && !group_had) || after.mode & !before.mode & read != 0
}

impl PathFacts<'_> {
    /// Refuses an act that would give a user an object of another user. `facts`: none if nothing is there.
    pub(super) fn disclosure_refusal(
        &self,
        wanted: &DesiredObject,
        facts: Option<&FileFacts>,
        act: &PathAction,
    ) -> Option<(AbsPath, Refusal)> {
        let (facts, after) = match act {
            PathAction::Metadata(after) => (facts?, after),
            PathAction::Copy(place, after) => (self.observed.objects.get(place)?, after),
            _ => return None,
        };
        let why = self.disclosure(facts, *after)?;
        let message = format!("mode and owner of {} cannot be set: {why}", wanted.asked);
        let refusal = Refusal::new(Reason::UnsafePath, message).at(&wanted.entry.origin);
        let expected = "an object that the user owns, or that everybody may read";
        Some((self.path.clone(), refusal.expected(expected)))
    }

    /// Returns why the mode and owner of the object must not change in place; none if they may.
    pub(super) fn disclosure(&self, facts: &FileFacts, after: Attributes) -> Option<String> {
        let observed = self.observed;
        let user = observed.users_directories.get(self.path);
        let own = facts.uid != 0 && user == Some(&facts.uid);
        if !observed.exposed.contains(self.path)
            || observed.changed_objects.contains(self.path)
            || own
        {
            return None;
        }
        let before = facts.attributes();
        let directory = facts.kind == ObjectKind::Directory;
        // Where no single user controls the directory, everybody's objects are there.
        let third = user.is_none() && before.uid != 0 && before.uid != after.uid;
        (third || discloses(before, after, directory)).then(|| {
            format!(
                "it belongs to user {} (group {}, mode {:04o}) in a directory that other users may change: one of \
                 them may have moved it there, who may not read it today and could after this update",
                before.uid, before.gid, before.mode
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: u32, uid: u32, gid: u32) -> Attributes {
        Attributes { mode, uid, gid }
    }

    #[test]
    fn only_rights_that_not_everybody_has_are_disclosed() {
        for (before, after, directory, expected) in [
            (of(0o600, 0, 0), of(0o600, 1000, 0), false, true),
            (of(0o644, 0, 0), of(0o600, 1000, 1000), false, false),
            (of(0o600, 0, 0), of(0o644, 0, 0), false, true),
            (of(0o600, 0, 0), of(0o640, 0, 0), false, false),
            (of(0o600, 0, 0), of(0o640, 0, 50), false, true),
            (of(0o640, 0, 50), of(0o640, 0, 50), false, false),
            (of(0o640, 0, 50), of(0o640, 0, 60), false, true),
            (of(0o600, 1000, 1000), of(0o600, 0, 0), false, false),
            (of(0o744, 0, 0), of(0o755, 1000, 1000), true, true),
            (of(0o755, 0, 0), of(0o700, 1000, 1000), true, false),
        ] {
            assert_eq!(
                discloses(before, after, directory),
                expected,
                "{before:?} {after:?}"
            );
        }
    }
}
