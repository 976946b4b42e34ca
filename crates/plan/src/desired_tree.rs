//! Translates a config into the desired objects of one machine, by canonical path.

mod object_spec;

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry as MapEntry};

pub(super) use object_spec::ObjectSpec;

pub(super) use super::desired_entry::DesiredEntry;
use super::{MachineFacts, ObjectKind, UserFacts, accounts::Accounts, machine_facts::is_layout};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, FILE_MODE, MachineConfig, Owner, Refusal, place_fault};

/// An object, its path as spelled in the config, and the entry it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredObject {
    pub(super) entry: DesiredEntry,
    pub(super) asked: AbsPath,
    pub(super) object: ObjectSpec,
}

/// The objects that a config wants, and the paths that it wants to be absent.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredTree {
    /// The objects that must exist.
    pub(super) objects: BTreeMap<AbsPath, DesiredObject>,
    /// The paths that must be absent.
    pub(super) absent: BTreeMap<AbsPath, DesiredEntry>,
    /// Paths where a wanted object replaces another one that the config removes.
    pub(super) freed: BTreeSet<AbsPath>,
    /// Directories to create with these attributes if they are missing; existing ones are not changed.
    pub(super) parents: BTreeMap<AbsPath, ObjectSpec>,
    /// Units that would start at boot if they were enabled, by the unit whose enablement starts them.
    pub(super) starts: BTreeMap<String, BTreeSet<String>>,
    /// The units that are enabled because the presets enable them.
    pub(super) preset: BTreeSet<String>,
    /// Existing links of units that follow the presets for the first time: they stay if they are not the base config's.
    pub(super) found_links: BTreeMap<AbsPath, DesiredObject>,
    /// Paths of all links of units without a setting, also those that come back because an entry leaves.
    pub(super) links_of_units: BTreeSet<AbsPath>,
    /// Existing links of instances that the config enables by name, as links of their templates: they stay if the base
    /// config had them for the templates.
    pub(super) instance_links: BTreeMap<AbsPath, DesiredObject>,
    /// Files of the base config's users where keys were written if sshd had another configuration then.
    pub(super) earlier_keys: BTreeMap<AbsPath, DesiredObject>,
    /// Entries of users and groups.
    pub(super) accounts: Accounts,
    /// What the config or this host does not allow.
    pub(super) refusals: Vec<Refusal>,
    /// SSH keys that are not written to any file, with the reason; each is also a warning.
    pub(super) skipped: Vec<String>,
    /// The files of keys that are not written because of what their users did there.
    pub(super) unsafe_keys: BTreeSet<AbsPath>,
    /// Paths, as spelled in the config, of entries that are left in the state that a user gave them.
    pub(super) skipped_entries: BTreeSet<AbsPath>,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
    /// Paths of the configs that are left in the state that a user gave them.
    pub(super) left_behind: Vec<String>,
}

/// Which of the two configs a layout belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConfigSide<'a> {
    /// The base config: its paths are resolved in the tree of today.
    Before,
    /// The desired config; the value is the base config.
    After(&'a MachineConfig),
}

impl DesiredTree {
    pub(super) fn add_entries(&mut self, config: &MachineConfig, place: &PathResolver<'_>) {
        for (path, file) in &config.files {
            let entry = DesiredEntry::new(EntryKind::File, path.shared(), &file.origin);
            let owner = (file.user.as_ref(), file.group.as_ref());
            if let Some((uid, gid)) = self.owner(place, owner, &entry) {
                let object = match file.content.clone() {
                    Some(content) => ObjectSpec::File {
                        content,
                        mode: file.mode.unwrap_or(FILE_MODE),
                        uid: uid.unwrap_or(0),
                        gid: gid.unwrap_or(0),
                    },
                    None => ObjectSpec::Partial {
                        directory: false,
                        mode: file.mode,
                        uid,
                        gid,
                    },
                };
                self.add(place, path, entry, object);
            }
        }
        for (path, directory) in &config.directories {
            let entry = DesiredEntry::new(EntryKind::Directory, path.shared(), &directory.origin);
            let owner = (directory.user.as_ref(), directory.group.as_ref());
            if let Some((uid, gid)) = self.owner(place, owner, &entry) {
                let object = match (directory.mode, uid, gid) {
                    (Some(mode), Some(uid), Some(gid)) => ObjectSpec::Directory { mode, uid, gid },
                    (None, None, None) if place.is_layout_link(path) => continue,
                    (mode, uid, gid) => ObjectSpec::Partial {
                        directory: true,
                        mode,
                        uid,
                        gid,
                    },
                };
                self.add(place, path, entry, object);
            }
        }
        for (path, link) in config.links.iter().filter(|(_, link)| !link.hard) {
            let entry = DesiredEntry::new(EntryKind::Link, path.shared(), &link.origin);
            let owner = (Some(&link.user), Some(&link.group));
            if let Some((uid, gid)) = self.owner(place, owner, &entry) {
                let (uid, gid) = (uid.unwrap_or(0), gid.unwrap_or(0));
                let target = link.target.clone();
                self.add(place, path, entry, ObjectSpec::Link { target, uid, gid });
            }
        }
    }

    /// Adds one object. Two entries that want the same of it under two names are merged, others are refused.
    pub(super) fn add(
        &mut self,
        place: &PathResolver<'_>,
        asked: &AbsPath,
        entry: DesiredEntry,
        object: ObjectSpec,
    ) {
        let canonical = place.of(asked);
        if canonical != *asked
            && !place.kept(asked)
            && let Some(why) = place_fault(&canonical)
        {
            let message = format!("{asked} is {canonical} on this machine: {why}");
            let refusal = Refusal::new(Reason::PathInvalid, message).at(&entry.origin);
            self.refusals.push(refusal);
            return;
        }
        let there = match self.objects.entry(canonical) {
            MapEntry::Vacant(free) => {
                let asked = asked.clone();
                free.insert(DesiredObject {
                    entry,
                    asked,
                    object,
                });
                return;
            }
            MapEntry::Occupied(there) => there,
        };
        let path = there.key();
        match there.get() {
            // The enablement of a unit may also be written as a link entry.
            there if there.object.same_link(path, &object) => {}
            there if there.asked != *asked && there.object == object => {}
            there => {
                let (reason, message) = if there.asked == *asked {
                    (
                        Reason::EntryDuplicate,
                        format!(
                            "{asked} is defined twice, by {} and by {}",
                            there.entry, entry
                        ),
                    )
                } else {
                    (
                        Reason::DuplicateTarget,
                        format!(
                            "{asked} and {} are the same object on this machine: {path}",
                            there.asked
                        ),
                    )
                };
                self.refusals
                    .push(Refusal::new(reason, message).at(&entry.origin));
            }
        }
    }

    fn owner(
        &mut self,
        place: &PathResolver<'_>,
        (user, group): (Option<&Owner>, Option<&Owner>),
        entry: &DesiredEntry,
    ) -> Option<(Option<u32>, Option<u32>)> {
        let uid = user.map(|user| place.user(user));
        let gid = group.map(|group| place.group(group));
        for (id, what, given) in [(uid, "user", user), (gid, "group", group)] {
            if let (Some(None), Some(given)) = (id, given) {
                let message = format!(
                    "{entry}: this machine has no {what} {:?}",
                    given.to_string()
                );
                let refusal = Refusal::new(Reason::FileOwnerUnknown, message).at(&entry.origin);
                self.refusals
                    .push(refusal.expected(format!("a {what} of this machine, or a numeric ID")));
            }
        }
        // Refuses an owner or group that is set but unknown.
        match (uid, gid) {
            (Some(None), _) | (_, Some(None)) => None,
            (uid, gid) => Some((uid.flatten(), gid.flatten())),
        }
    }

    /// Refuses objects below a file or link. One behind a link that is not followed has its own refusal.
    pub(super) fn refuse_objects_below_others(&mut self, observed: &MachineFacts) {
        let mut clear: BTreeSet<AbsPath> = BTreeSet::new();
        let mut last = None;
        let followed = |path: &AbsPath| !observed.unsafe_after.contains_key(path);
        for (path, wanted) in self.objects.iter().filter(|(path, _)| followed(path)) {
            // Consecutive paths are usually in the same directory.
            if last == Some(path.directory()) {
                continue;
            }
            let Some(other) = self.no_directory_above(path, &mut clear) else {
                last = Some(path.directory());
                continue;
            };
            let message = format!(
                "{} is below {}, which is not a directory in this config",
                wanted.asked, other.asked
            );
            let refusal = Refusal::new(Reason::PathInvalid, message);
            self.refusals.push(refusal.at(&wanted.entry.origin));
        }
    }

    /// The nearest object above `path` that is not a directory. `clear` holds paths with checked parents.
    fn no_directory_above(
        &self,
        path: &AbsPath,
        clear: &mut BTreeSet<AbsPath>,
    ) -> Option<&DesiredObject> {
        for above in path.ancestors() {
            let other = self.objects.get(&above);
            let holds = |other: &&DesiredObject| other.object.kind() == ObjectKind::Directory;
            if let Some(other) = other.filter(|other| !holds(other)) {
                return Some(other);
            }
            if !clear.insert(above) {
                break;
            }
        }
        None
    }
}

/// Resolves paths and owners on one machine.
pub(super) struct PathResolver<'a> {
    pub(super) observed: &'a MachineFacts,
    pub(super) before: bool,
    /// The base config, if the layout is for the desired config.
    pub(super) from: Option<&'a MachineConfig>,
    /// The users and groups that this config creates, and the users that it removes.
    pub(super) users: BTreeMap<String, UserFacts>,
    pub(super) groups: BTreeMap<String, u32>,
    pub(super) gone: BTreeSet<String>,
}

impl PathResolver<'_> {
    /// The canonical path of a path in the config.
    pub(super) fn of(&self, path: &AbsPath) -> AbsPath {
        let canonical = if self.before {
            &self.observed.canonical_before
        } else {
            &self.observed.canonical
        };
        canonical.get(path).unwrap_or(path).clone()
    }

    /// Whether the base config has an entry for this path.
    fn kept(&self, path: &AbsPath) -> bool {
        self.from.is_none_or(|from| {
            from.files.contains_key(path)
                || from.directories.contains_key(path)
                || from.links.contains_key(path)
        })
    }

    /// Whether a layout link that leads to a directory exists there: it satisfies a wanted directory without mode
    /// and owner.
    fn is_layout_link(&self, path: &AbsPath) -> bool {
        let place = self.of(path);
        let end = self.observed.link_ends.get(&place);
        let directory = end.is_some_and(|end| end.kind == Some(ObjectKind::Directory));
        directory && (is_layout(&place) || self.observed.layout_targets.contains(&place))
    }

    fn user(&self, owner: &Owner) -> Option<u32> {
        match owner {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) if name == "root" => Some(0),
            Owner::Name(name) => self.account(name).map(|account| account.uid),
        }
    }

    /// A user of the planned machine: users to be created come before existing ones.
    pub(super) fn account(&self, name: &str) -> Option<&UserFacts> {
        let there = || self.observed.users.get(name);
        let found = self.users.get(name).or_else(there);
        found.filter(|_| !self.gone.contains(name))
    }

    fn group(&self, owner: &Owner) -> Option<u32> {
        match owner {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) if name == "root" => Some(0),
            Owner::Name(name) => {
                let made = self.groups.get(name);
                made.or_else(|| self.observed.groups.get(name)).copied()
            }
        }
    }
}
