//! Plans entries that leave some values to the machine: a file without contents, a directory without mode or owner.
//!
//! Values that are not set keep their current state. If an earlier config set a value and the next one does not,
//! the value from before machinist is restored, so that the result never depends on the sequence of configs.

use super::{
    Attributes, ChangeKind, FileFacts, MachineFacts,
    desired_tree::{DesiredObject, ObjectSpec},
    kind_replacement::describe,
    object::ObjectKind,
    removal::kept,
    steps::{PathAction, PathFacts, PathSteps, changed_by, first_field},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{Content, DIRECTORY_MODE, FILE_MODE, Refusal};

impl ObjectSpec {
    /// The object to create if nothing exists: values that are not set get Ignition's defaults.
    pub(super) fn with_defaults(&self) -> Self {
        let Self::Partial {
            directory,
            mode,
            uid,
            gid,
        } = *self
        else {
            return self.clone();
        };
        let (uid, gid) = (uid.unwrap_or(0), gid.unwrap_or(0));
        match directory {
            true => Self::Directory {
                mode: mode.unwrap_or(DIRECTORY_MODE),
                uid,
                gid,
            },
            false => Self::File {
                content: Content::default(),
                mode: mode.unwrap_or(FILE_MODE),
                uid,
                gid,
            },
        }
    }

    /// The planned mode and owner of a directory, based on its current ones.
    pub(super) fn attributes_from(&self, now: Option<Attributes>) -> Option<Attributes> {
        let (mode, uid, gid) = self.given();
        let now = now.unwrap_or_else(|| defaults(self));
        (self.kind() == ObjectKind::Directory).then(|| Attributes {
            mode: mode.unwrap_or(now.mode),
            uid: uid.unwrap_or(now.uid),
            gid: gid.unwrap_or(now.gid),
        })
    }

    /// The mode and owner of a directory that machinist created for this entry, without the entry: values that
    /// another program has set where the entry gives none stay.
    pub(super) fn without_entry(&self, now: Attributes, parent: Attributes) -> Attributes {
        let (given, first) = (self.given(), defaults(self));
        let pick = |given: Option<u32>, first: u32, now: u32, parent: u32| match given.is_some()
            || now == first
        {
            true => parent,
            false => now,
        };
        Attributes {
            mode: pick(given.0, first.mode, now.mode, parent.mode),
            uid: pick(given.1, first.uid, now.uid, parent.uid),
            gid: pick(given.2, first.gid, now.gid, parent.gid),
        }
    }

    /// Mode, user and group if they are set.
    pub(super) fn given(&self) -> (Option<u32>, Option<u32>, Option<u32>) {
        match *self {
            Self::Partial { mode, uid, gid, .. } => (mode, uid, gid),
            Self::File { mode, uid, gid, .. } | Self::Directory { mode, uid, gid } => {
                (Some(mode), Some(uid), Some(gid))
            }
            Self::Link { .. } | Self::Hard { .. } => (None, None, None),
        }
    }
}

impl PathFacts<'_> {
    /// The act for an entry that fixes only the kind; none if everything is as desired.
    pub(super) fn partial(
        &self,
        wanted: &ObjectSpec,
        facts: &FileFacts,
        owners: bool,
    ) -> Option<PathAction> {
        let same_kind = facts.kind == wanted.kind();
        if wanted.is_without_content() && self.gave_content(same_kind) {
            return self.content_returns(wanted, facts, owners);
        }
        if !same_kind {
            return Some(PathAction::Put(wanted.with_defaults()));
        }
        let attributes = self.attributes(wanted, facts);
        let same = is_as(facts, attributes, owners);
        (!same).then_some(PathAction::Metadata(attributes))
    }

    /// The object to create if nothing exists.
    pub(super) fn missing(&self, wanted: &ObjectSpec) -> PathAction {
        let returns = wanted.is_without_content() && self.gave_content(false);
        match self.readable_original().filter(|_| returns) {
            Some((place, facts)) => PathAction::Copy(place.clone(), self.attributes(wanted, facts)),
            None => PathAction::Put(wanted.with_defaults()),
        }
    }

    /// Whether an earlier config put an object of its own here: then the content of this file is machinist's and
    /// not the original one.
    fn gave_content(&self, same_kind: bool) -> bool {
        self.had.is_some_and(|had| match had.object {
            ObjectSpec::Partial { .. } => !same_kind,
            _ => true,
        }) && !self.is_as_found()
            && !self.observed.modes.contains_key(self.path)
    }

    /// Whether it matched the config when a config first mentioned it, and has not been changed since.
    fn is_as_found(&self) -> bool {
        let changed = self.observed.originals.contains_key(self.path)
            || self.observed.modes.contains_key(self.path);
        self.observed.adopted.contains(self.path) && !changed
    }

    /// The content of the original if there is one, otherwise an empty file.
    fn content_returns(
        &self,
        wanted: &ObjectSpec,
        facts: &FileFacts,
        owners: bool,
    ) -> Option<PathAction> {
        if let Some((place, original)) = self.readable_original() {
            return Some(PathAction::Copy(
                place.clone(),
                self.attributes(wanted, original),
            ));
        }
        let (empty, attributes) = (wanted.with_defaults(), defaults(wanted));
        // A hard link of the config is another name of a file that is not the entry's.
        let linked = |had: &DesiredObject| matches!(had.object, ObjectSpec::Hard { .. });
        let own = !self.had.is_some_and(linked);
        let same = facts.kind == ObjectKind::File && facts.size == 0 && own;
        match same && is_as(facts, attributes, owners) {
            true => None,
            false => Some(PathAction::Put(empty)),
        }
    }

    /// The original file, unless another process keeps it from being copied by a lease.
    fn readable_original(&self) -> Option<(&AbsPath, &FileFacts)> {
        let original = self.original(ObjectKind::File);
        original.filter(|(place, _)| !self.observed.leased.contains(*place))
    }

    fn original(&self, kind: ObjectKind) -> Option<(&AbsPath, &FileFacts)> {
        let place = self.observed.originals.get(self.path)?;
        let facts = self.observed.objects.get(place)?;
        (facts.kind == kind).then_some((place, facts))
    }

    /// The desired mode and owner: the values in the entry; else the restored values if an earlier config changed
    /// them; else the current ones.
    fn attributes(&self, wanted: &ObjectSpec, facts: &FileFacts) -> Attributes {
        let mode_given = wanted.given().0.is_some();
        self.without_set_id_of_others(self.asked_attributes(wanted, facts), mode_given, facts)
    }

    /// The desired mode and owner before the rules about set-ID bits apply.
    fn asked_attributes(&self, wanted: &ObjectSpec, facts: &FileFacts) -> Attributes {
        let had = self.had.filter(|_| !self.is_as_found());
        let had = had.map_or((None, None, None), |had| had.object.given());
        let kept = self.observed.modes.get(self.path).copied();
        let original = || {
            self.original(wanted.kind())
                .map(|(_, facts)| facts.attributes())
        };
        let before = kept.or_else(original).unwrap_or_else(|| defaults(wanted));
        let (mode, uid, gid) = wanted.given();
        let pick = |given: Option<u32>, had: Option<u32>, before: u32, now: u32| match (given, had)
        {
            (Some(given), _) => given,
            (None, Some(_)) => before,
            (None, None) => now,
        };
        Attributes {
            mode: pick(mode, had.0, before.mode, facts.mode),
            uid: pick(uid, had.1, before.uid, facts.uid),
            gid: pick(gid, had.2, before.gid, facts.gid),
        }
    }

    /// Refuses a file without contents whose content an earlier config gave in place of a link or
    /// another object: the entry would be refused over that object, too.
    pub(super) fn original_refusal(&self, wanted: &DesiredObject) -> Option<(AbsPath, Refusal)> {
        let had = self.had.is_some_and(|had| !had.object.is_without_content());
        let now = self.observed.objects.get(self.path).map(|facts| facts.kind);
        let returns = had
            && wanted.object.is_without_content()
            && self.gave_content(now == Some(wanted.object.kind()));
        let place = self.observed.originals.get(self.path).filter(|_| returns)?;
        let original = self.observed.objects.get(place)?;
        if original.kind == wanted.object.kind() {
            return None;
        }
        let message = format!(
            "{} has no contents in the config, and before the configs there was {}",
            wanted.asked,
            describe(place, original, self.observed)
        );
        let refusal = Refusal::new(Reason::KindDiffers, message).at(&wanted.entry.origin);
        Some((self.path.clone(), refusal.expected("contents")))
    }

    /// Mode and owner after the entry has left: only the values that it set are restored.
    fn attributes_back(
        &self,
        wanted: &ObjectSpec,
        before: Attributes,
        facts: &FileFacts,
    ) -> Attributes {
        let (mode, uid, gid) = wanted.given();
        let pick = |given: Option<u32>, before: u32, now: u32| given.map_or(now, |_| before);
        let back = Attributes {
            mode: pick(mode, before.mode, facts.mode),
            uid: pick(uid, before.uid, facts.uid),
            gid: pick(gid, before.gid, facts.gid),
        };
        self.without_set_id_of_others(back, false, facts)
    }

    /// Clears the set-ID bits of a file that changes its owner or group and whose content may come from another
    /// user than the new owner. A user also gets a file of root's with these bits only if the config sets them.
    fn without_set_id_of_others(
        &self,
        mut wanted: Attributes,
        given: bool,
        facts: &FileFacts,
    ) -> Attributes {
        let changes = (wanted.uid, wanted.gid) != (facts.uid, facts.gid);
        let others = match self.is_written_by_root(facts) {
            true => wanted.uid != 0 && !given,
            false => Self::widens_access(wanted, facts.attributes()),
        };
        if facts.kind == ObjectKind::File && changes && others {
            wanted.mode &= !Attributes::SET_ID_BITS;
        }
        wanted
    }

    /// Warns of a file without contents whose set-ID bits do not come back when its entry leaves the config, because
    /// a user gets the file and may write its content meanwhile.
    pub(super) fn lost_set_id(
        &self,
        wanted: &DesiredObject,
        facts: &FileFacts,
        act: &PathAction,
    ) -> Option<String> {
        let PathAction::Metadata(after) = act else {
            return None;
        };
        let before = self.observed.modes.get(self.path).copied();
        let before = before.unwrap_or_else(|| facts.attributes());
        let bits = facts.kind == ObjectKind::File && before.mode & Attributes::SET_ID_BITS != 0;
        (bits && after.uid != 0 && after.uid != before.uid).then(|| {
            format!(
                "{} passes to user {}, who may change its content: the set-ID bits of its mode {:04o} do not come back \
                 when the entry leaves the config",
                wanted.asked, after.uid, before.mode
            )
        })
    }

    /// Whether only root could ever write the content of a file, as far as the facts show.
    fn is_written_by_root(&self, facts: &FileFacts) -> bool {
        let found = self.observed.modes.get(self.path);
        let recorded = found.is_none_or(|found| is_root_only(*found));
        let shared = self.is_exposed()
            || self.observed.user_written.contains(self.path)
            || facts.access_list;
        is_root_only(facts.attributes()) && recorded && !shared
    }

    /// Whether set-ID bits would let everybody run the content of a file, which a user may have written, with the
    /// rights of another user or group than before.
    fn widens_access(wanted: Attributes, now: Attributes) -> bool {
        let changes = (wanted.uid, wanted.gid) != (now.uid, now.gid);
        let own = now.uid != 0 && now.uid == wanted.uid;
        let by_group = wanted.mode & Attributes::SET_GROUP_ID_BIT != 0;
        changes && (!own || by_group)
    }

    /// Refuses set-ID bits for a file without contents in the config, unless only root could and can write it, or its
    /// owner could set the bit as well. `facts`: none if nothing is there.
    pub(super) fn set_id_refusal(
        &self,
        wanted: &DesiredObject,
        facts: Option<&FileFacts>,
    ) -> Option<(AbsPath, Refusal)> {
        let (mode, uid, gid) = wanted.object.given();
        let sets_id = mode? & Attributes::SET_ID_BITS != 0;
        if !sets_id || !wanted.object.is_without_content() {
            return None;
        }
        // The content may come back from the original.
        let same_kind = facts.is_some_and(|facts| facts.kind == wanted.object.kind());
        let facts = match self.gave_content(same_kind) {
            true => self.original(ObjectKind::File).map(|(_, facts)| facts),
            false => facts.filter(|facts| facts.kind == ObjectKind::File),
        };
        let then = match facts {
            Some(facts) => self.asked_attributes(&wanted.object, facts),
            None => Attributes {
                mode: mode?,
                uid: uid.unwrap_or(0),
                gid: gid.unwrap_or(0),
            },
        };
        if self.may_set_id(facts, then) {
            return None;
        }
        let message = format!(
            "{} has no contents in the config, so other users than root may have written it or may write it, and \
             would get set-ID bits (mode {:04o}) for user {} and group {}",
            wanted.asked, then.mode, then.uid, then.gid
        );
        let refusal = Refusal::new(Reason::UnsafePath, message).at(&wanted.entry.origin);
        let refusal = refusal.expected("contents, or a mode without set-ID bits");
        Some((self.path.clone(), refusal))
    }

    /// Whether others than root may change the parent directory, before or after the update.
    fn is_exposed(&self) -> bool {
        let Self { path, observed, .. } = self;
        observed.exposed.contains(*path) || observed.exposed_after.contains(*path)
    }

    fn may_set_id(&self, facts: Option<&FileFacts>, then: Attributes) -> bool {
        let by_group = then.mode & Attributes::SET_GROUP_ID_BIT != 0;
        let writable = then.mode & 0o002 != 0 || (then.mode & 0o020 != 0 && then.gid != 0);
        if writable || (by_group && then.uid != 0) {
            return false;
        }
        let Some(facts) = facts else {
            return !self.is_exposed();
        };
        let user = self.observed.users_directories.get(self.path);
        let own_place = !self.is_exposed() || user == Some(&then.uid);
        let found = self.observed.modes.get(self.path);
        let is_own = |uid: u32| uid != 0 && uid == then.uid;
        let was_own = |found: &Attributes| is_own(found.uid) || is_root_only(*found);
        let own = own_place && is_own(facts.uid) && found.is_none_or(was_own);
        self.is_written_by_root(facts) || own
    }
}

/// Whether the mode and owner of a file let only root write it.
pub(super) fn is_root_only(of: Attributes) -> bool {
    let group = of.mode & 0o020 != 0 && of.gid != 0;
    let writable = group || of.mode & 0o002 != 0;
    of.uid == 0 && !writable
}

fn defaults(wanted: &ObjectSpec) -> Attributes {
    let (mode, uid, gid) = wanted.given();
    let usual = match wanted.kind() {
        ObjectKind::Directory => DIRECTORY_MODE,
        _ => FILE_MODE,
    };
    Attributes {
        mode: mode.unwrap_or(usual),
        uid: uid.unwrap_or(0),
        gid: gid.unwrap_or(0),
    }
}

pub(super) fn is_as(facts: &FileFacts, wanted: Attributes, owners: bool) -> bool {
    let now = facts.attributes();
    let owner = |of: Attributes| (of.uid, of.gid);
    now.mode == wanted.mode && (!owners || owner(now) == owner(wanted))
}

impl PathSteps {
    /// Plans a file without contents that leaves the config: mode and owner are restored, the content stays. A file
    /// that was created for the entry is removed if it is still empty.
    pub(super) fn file_without_content_leaves(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        observed: &MachineFacts,
        owners: bool,
    ) {
        let Some(facts) = observed.objects.get(path) else {
            return;
        };
        let left = |what: &str| kept(&wanted.asked, what);
        if facts.kind != ObjectKind::File {
            self.warnings.push(left("its type has changed"));
            return;
        }
        let remove = |act| (act, ChangeKind::Remove, vec![first_field(wanted)]);
        let (act, change, fields) = if let Some(before) = observed.modes.get(path) {
            let reached = PathFacts {
                had: None,
                path,
                observed,
            };
            let back = reached.attributes_back(&wanted.object, *before, facts);
            if is_as(facts, back, owners) {
                return;
            }
            if let Some(why) = reached.disclosure(facts, back) {
                self.left_behind.push(stays_changed(wanted, &why));
                return;
            }
            let act = PathAction::Metadata(back);
            let fields = changed_by(&act, facts, Vec::new());
            (act, ChangeKind::Remove, fields)
        } else if observed.adopted.contains(path) {
            return;
        } else if facts.size > 0 {
            self.warnings.push(left("it is not empty"));
            return;
        } else if let Some(place) = observed.originals.get(path)
            && observed.objects.contains_key(place)
        {
            remove(PathAction::Restore(place.clone()))
        } else {
            remove(PathAction::Remove)
        };
        self.put(path, &wanted.entry, act, change, fields);
    }

    /// The mode and owner to restore to a directory when its entry leaves; none if it has them already.
    pub(super) fn directory_back(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        (now, then): (&FileFacts, &FileFacts),
        observed: &MachineFacts,
    ) -> Option<PathAction> {
        let reached = PathFacts {
            had: None,
            path,
            observed,
        };
        let back = reached.attributes_back(&wanted.object, then.attributes(), now);
        if back == now.attributes() {
            return None;
        }
        if let Some(why) = reached.disclosure(now, back) {
            self.left_behind.push(stays_changed(wanted, &why));
            return None;
        }
        Some(PathAction::Metadata(back))
    }
}

fn stays_changed(wanted: &DesiredObject, why: &str) -> String {
    format!(
        "{} is removed from the config, but its mode and owner are not restored: {why}",
        wanted.asked
    )
}
