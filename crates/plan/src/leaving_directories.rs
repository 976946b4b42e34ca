//! Plans the directories that leave the config: each is removed, or stays with the mode and owner that it had without
//! its entry.

use super::{
    ChangeKind, MachineFacts,
    desired_tree::{DesiredObject, DesiredTree, ObjectSpec},
    operations_fold::made_parent,
    partial_entries::is_as,
    removal::kept,
    steps::{PathAction, PathFacts, PathSteps, changed_by},
};
use machinist_base::abs_path::AbsPath;

/// The maximum number of names in a warning: enough to find the program that they belong to.
const MAX_NAMES: usize = 3;

impl PathSteps {
    /// Removes the directories that leave if they contain only objects that leave, starting with
    /// the deepest. The others get the mode and owner of a parent directory.
    pub(super) fn remove_directories(
        &mut self,
        mut directories: Vec<(&AbsPath, &DesiredObject)>,
        after: &DesiredTree,
        observed: &MachineFacts,
        owners: bool,
    ) {
        directories.sort_by(|one, other| other.0.cmp(one.0));
        let busy = self.busy();
        let mut stay = Vec::new();
        for (path, wanted) in directories {
            let mount_point = observed
                .objects
                .get(path)
                .is_some_and(|facts| facts.mount_point);
            if !mount_point && self.empties(path, observed, &busy) {
                self.put(
                    path,
                    &wanted.entry,
                    PathAction::Remove,
                    ChangeKind::Remove,
                    vec!["kind"],
                );
            } else {
                stay.push((path, wanted));
            }
        }
        let paths: Vec<&AbsPath> = stay.iter().map(|(path, _)| *path).collect();
        for (path, wanted) in stay {
            let parent = parent_object(path, &paths, after, observed);
            self.directory_stays(path, wanted, &parent, observed, owners);
        }
    }

    /// Sets the mode and owner of a directory that machinist created and that stays, where the entry gave them.
    fn directory_stays(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        parent: &ObjectSpec,
        observed: &MachineFacts,
        owners: bool,
    ) {
        let (Some(now), Some(parent)) = (observed.objects.get(path), parent.attributes_from(None))
        else {
            return;
        };
        let what = match self.needed.contains(path) {
            true => "the config needs it as a parent directory".to_owned(),
            false if now.mount_point => "it is a mount point".to_owned(),
            false => format!(
                "the directory is not empty{}",
                self.what_stays(path, observed)
            ),
        };
        let reached = PathFacts {
            had: None,
            path,
            observed,
        };
        let back = wanted.object.without_entry(now.attributes(), parent);
        let same = is_as(now, back, owners);
        let created = observed.made.contains(path) && !now.mount_point;
        let disclosed = reached.disclosure(now, back).filter(|_| created && !same);
        if created && !same && disclosed.is_none() {
            let act = PathAction::Metadata(back);
            let fields = changed_by(&act, now, Vec::new());
            self.put(path, &wanted.entry, act, ChangeKind::Remove, fields);
        }
        let (attributes, how) = match (same, created, disclosed) {
            (true, ..) => (now.attributes(), String::new()),
            (false, true, None) => (back, String::new()),
            (false, true, Some(why)) => (now.attributes(), format!(", unchanged: {why}")),
            (false, false, _) => (now.attributes(), ", unchanged".to_owned()),
        };
        let (mode, uid, gid) = (attributes.mode, attributes.uid, attributes.gid);
        let text = format!("{what}; it has mode {mode:04o} and owner {uid}:{gid}{how}");
        self.warnings.push(kept(&wanted.asked, &text));
    }

    /// Names the objects that stay in the directory.
    fn what_stays(&self, directory: &AbsPath, observed: &MachineFacts) -> String {
        let names = observed.children.get(directory).into_iter().flatten();
        let goes = |name: &str| {
            let step = directory.join(name).ok();
            let step = step.and_then(|child| self.at.get(&child));
            step.is_some_and(|step| step.act == PathAction::Remove)
        };
        let names: Vec<&str> = names
            .map(String::as_str)
            .filter(|name| !goes(name))
            .collect();
        match names.len() {
            0 => String::new(),
            count if count > MAX_NAMES => {
                let more = count - MAX_NAMES;
                format!(": {} and {more} more stay", names[..MAX_NAMES].join(", "))
            }
            1 => format!(": {} stays", names[0]),
            _ => format!(": {} stay", names.join(", ")),
        }
    }
}

/// The directory that machinist would create at `path` for the entries below it. `leaving` are the directories that
/// leave and stay.
fn parent_object(
    path: &AbsPath,
    leaving: &[&AbsPath],
    after: &DesiredTree,
    observed: &MachineFacts,
) -> ObjectSpec {
    // The owners of directories that leave do not count: without their entries, root would own them.
    let above = path.ancestors();
    let top = above.take_while(|above| leaving.contains(&above)).last();
    let top = top.as_ref().unwrap_or(path);
    let user = observed.users_directories.get(top).copied();
    // `/etc/x-y` is between `/etc/x` and `/etc/x/y`.
    let near = after.objects.range(path.clone()..);
    let mut near = near.take_while(|(one, _)| one.as_str().starts_with(path.as_str()));
    let first = near.find(|(one, _)| *one != path && one.is_under(path));
    let first = first.map(|(_, wanted)| wanted.object.with_defaults());
    made_parent(path, after, None, (user, first.as_ref()))
}
