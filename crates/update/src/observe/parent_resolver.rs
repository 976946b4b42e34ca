//! Resolves paths to their canonical form, in the current or the planned tree, and determines which users could
//! redirect them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::planned_directories::PlannedDirectories;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{Directory, MachineConfig, Owner};
use machinist_plan::{UserFacts, is_layout};
use machinist_rootfs::{DirectoryControl, LinkTarget, MAX_SYMLINKS, Root, RootError, StepResult};

/// Maximum depth of directories that links may lead to. Without a limit, the user who made the link could exhaust
/// the stack.
const MAX_DIRECTORY_DEPTH: usize = 256;

/// A directory on the way to a path.
#[derive(Clone)]
struct ResolvedParent {
    at: AbsPath,
    control: Arc<DirectoryControl>,
    /// The reason why nothing below it may be modified.
    unsafe_because: Option<Arc<str>>,
}

/// Resolves the links in the parents of paths, each directory once.
pub(super) struct ParentResolver<'a> {
    root: Root,
    planned: Option<(&'a MachineConfig, &'a MachineConfig)>,
    made: Arc<PlannedDirectories>,
    /// The users of the machine, who may own links of the config.
    users: BTreeMap<String, UserFacts>,
    /// Entries of the two configs by their current canonical path, where that differs from the given path.
    entries: HashMap<AbsPath, &'a AbsPath>,
    /// Keyed by text, because parents are looked up without building a path.
    known: HashMap<Arc<str>, ResolvedParent>,
    /// Paths that are not directories at present: nothing below them is observed.
    bare: HashSet<AbsPath>,
    /// The users who control directories that are not root's, by the paths in them.
    controlled: BTreeMap<AbsPath, DirectoryControl>,
    /// Reasons why paths may not be modified.
    unsafe_paths: BTreeMap<AbsPath, String>,
}

/// The risks of the paths that a user could redirect, by canonical path.
#[derive(Default)]
pub(super) struct PathRisks {
    /// The user who controls the directory of a path, if that is not root.
    pub(super) controlled: BTreeMap<AbsPath, DirectoryControl>,
    /// The reason why a path may not be modified.
    pub(super) unsafe_paths: BTreeMap<AbsPath, String>,
}

impl<'a> ParentResolver<'a> {
    /// Resolves paths in the current tree.
    pub(super) fn today(root: &Root) -> Self {
        Self::new(root, None)
    }

    /// Resolves paths in the planned tree: it has the links and directories of `to`, and lacks the links that only
    /// `from` has.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(super) fn planned(
        root: &Root,
        [from, to]: [&'a MachineConfig; 2],
        users: &BTreeMap<String, UserFacts>,
    ) -> Result<Self, RootError> {
        let mut today = Self::today(root);
        let mut places = Self::new(root, Some((from, to)));
        places.users.clone_from(users);
        let all = to.links.keys().chain(to.directories.keys());
        for path in all.chain(to.files.keys()).chain(from.links.keys()) {
            let place = today.of(path)?;
            if place != *path {
                places.entries.insert(place, path);
            }
        }
        Ok(places)
    }

    fn new(root: &Root, planned: Option<(&'a MachineConfig, &'a MachineConfig)>) -> Self {
        Self {
            root: root.for_one_pass(),
            planned,
            made: Arc::default(),
            users: BTreeMap::new(),
            entries: HashMap::new(),
            known: HashMap::new(),
            bare: HashSet::new(),
            controlled: BTreeMap::new(),
            unsafe_paths: BTreeMap::new(),
        }
    }

    /// Judges directories by the mode and owner that they will have.
    pub(super) fn with_made(self, made: Arc<PlannedDirectories>) -> Self {
        Self { made, ..self }
    }

    /// Returns the risks of all paths that were resolved.
    pub(super) fn risks(self) -> PathRisks {
        PathRisks {
            controlled: self.controlled,
            unsafe_paths: self.unsafe_paths,
        }
    }

    /// Returns the canonical path of `path`. The last component is not followed if it is a link.
    pub(super) fn of(&mut self, path: &AbsPath) -> Result<AbsPath, RootError> {
        let Some(parent) = path.parent() else {
            return Ok(path.clone());
        };
        let holder = self.directory(&parent, 0)?;
        Ok(self.place_in(&holder, path))
    }

    /// Returns the canonical path of `path`, and follows the last component if it is a link.
    pub(super) fn end(&mut self, path: &AbsPath) -> Result<AbsPath, RootError> {
        Ok(self.directory(path, 0)?.at)
    }

    /// Works like [`ParentResolver::of`], but follows no link below `top`.
    pub(super) fn below(&mut self, top: &AbsPath, path: &AbsPath) -> Result<AbsPath, RootError> {
        let rest: Vec<&str> = path.components().skip(top.components().count()).collect();
        let mut holder = self.directory(top, 0)?;
        for name in rest.iter().take(rest.len().saturating_sub(1)) {
            let at = child(&holder.at, name);
            let entered = match self.made_step(&holder, &at, false)? {
                ParentEntry::Directory(control) => (control, None),
                ParentEntry::Blocked(why) => (Arc::clone(&holder.control), Some(why)),
                // The plan reports a link where it needs a directory.
                ParentEntry::Link(_) | ParentEntry::Bare => {
                    self.bare.insert(at.clone());
                    (Arc::clone(&holder.control), None)
                }
            };
            holder = ResolvedParent {
                at,
                control: entered.0,
                unsafe_because: holder.unsafe_because.or(entered.1),
            };
        }
        Ok(self.place_in(&holder, path))
    }

    /// Returns the canonical path of `path` in its directory.
    fn place_in(&mut self, holder: &ResolvedParent, path: &AbsPath) -> AbsPath {
        let place = match holder.at.as_str() == path.directory() {
            true => path.clone(),
            false => child(&holder.at, path.file_name()),
        };
        if let Some(why) = &holder.unsafe_because {
            self.unsafe_paths.insert(place.clone(), why.to_string());
        }
        if *holder.control != DirectoryControl::Root {
            let control = DirectoryControl::clone(&holder.control);
            self.controlled.insert(place.clone(), control);
        }
        place
    }

    fn directory(&mut self, path: &AbsPath, links: usize) -> Result<ResolvedParent, RootError> {
        if let Some(known) = self.known.get(path.as_str()) {
            return Ok(known.clone());
        }
        let Some(parent) = path.parent() else {
            return Ok(ResolvedParent {
                at: path.clone(),
                control: Arc::new(DirectoryControl::Root),
                unsafe_because: None,
            });
        };
        let above = self.directory(&parent, links)?;
        let found = self.enter(path, above, links)?;
        self.known.insert(path.shared(), found.clone());
        Ok(found)
    }

    /// Returns the directory that `path` names in `above`, resolved.
    fn enter(
        &mut self,
        path: &AbsPath,
        above: ResolvedParent,
        links: usize,
    ) -> Result<ResolvedParent, RootError> {
        let at = child(&above.at, path.file_name());
        if above.unsafe_because.is_some() {
            return Ok(ResolvedParent { at, ..above });
        }
        let link = match self.found(path, &above, &at)? {
            ParentEntry::Directory(control) => {
                return Ok(ResolvedParent {
                    at,
                    control,
                    unsafe_because: None,
                });
            }
            ParentEntry::Link(link) if links < MAX_SYMLINKS => link,
            // It is a loop. The plan reports a link where it needs a directory.
            ParentEntry::Link(_) | ParentEntry::Bare => {
                self.bare.insert(at.clone());
                return Ok(ResolvedParent { at, ..above });
            }
            ParentEntry::Blocked(why) => return Ok(self.mark_unsafe(at, &above, why)),
        };
        match self.follow(&above, &link, links + 1)? {
            Ok(led) => Ok(led),
            Err(why) => Ok(self.mark_unsafe(at, &above, why.into())),
        }
    }

    fn mark_unsafe(
        &mut self,
        at: AbsPath,
        above: &ResolvedParent,
        why: Arc<str>,
    ) -> ResolvedParent {
        self.bare.insert(at.clone());
        ResolvedParent {
            at,
            control: Arc::clone(&above.control),
            unsafe_because: Some(why),
        }
    }

    /// Returns the object that is, or will be, at `at`, which the config calls `path`.
    fn found(
        &mut self,
        path: &AbsPath,
        above: &ResolvedParent,
        at: &AbsPath,
    ) -> Result<ParentEntry, RootError> {
        let mut link_goes = false;
        if let Some((from, to)) = self.planned {
            // The config may name the object by any path that leads there.
            let names = [Some(path), Some(at), self.entries.get(at).copied()];
            let mut links = names
                .iter()
                .flatten()
                .filter_map(|name| to.links.get(*name));
            if let Some(link) = links.find(|link| !link.hard) {
                let (root, target) = (&self.root, link.target.clone());
                let owner = self.uid_of(&link.user, to);
                let planned = LinkTarget::planned(root, target, at, &above.control, owner);
                return Ok(
                    planned.map_or_else(|why| ParentEntry::Blocked(why.into()), ParentEntry::Link)
                );
            }
            // A directory without mode and owner leaves a link of the layout in place.
            let stays = |directory: &Directory| is_layout(at) && directory.leaves_mode_and_owner();
            link_goes = names.into_iter().flatten().any(|name| {
                let directory = to.directories.get(name);
                directory.is_some_and(|directory| !stays(directory))
                    || to.files.contains_key(name)
                    || from.links.contains_key(name)
            });
        }
        self.made_step(above, at, link_goes)
    }

    /// Returns the user ID of an owner; none for a user whose ID is not known yet.
    fn uid_of(&self, owner: &Owner, to: &MachineConfig) -> Option<u32> {
        match owner {
            Owner::Id(id) => Some(*id),
            Owner::Name(name) if name == "root" => Some(0),
            Owner::Name(name) => {
                let new = to
                    .users
                    .get(name)
                    .and_then(|user| user.account.as_ref()?.uid);
                self.users.get(name).map(|user| user.uid).or(new)
            }
        }
    }

    /// Returns the object at `at`, or the directory that will be created there. `link_goes` means that a link there
    /// will be removed.
    fn made_step(
        &mut self,
        above: &ResolvedParent,
        at: &AbsPath,
        link_goes: bool,
    ) -> Result<ParentEntry, RootError> {
        let found = match self.step(above, at)? {
            ParentEntry::Link(_) if link_goes => ParentEntry::Bare,
            found => found,
        };
        let (ParentEntry::Bare, Some(meta)) = (&found, self.made.at.get(at)) else {
            return Ok(found);
        };
        let entered = self.root.step_into_new(&above.control, at, meta);
        self.bare.insert(at.clone());
        match entered {
            Ok(control) => Ok(ParentEntry::Directory(Arc::new(control))),
            Err(RootError::Unsafe { why, .. }) => Ok(ParentEntry::Blocked(why.into())),
            Err(error) => Err(error),
        }
    }

    fn step(&self, above: &ResolvedParent, at: &AbsPath) -> Result<ParentEntry, RootError> {
        if above.unsafe_because.is_some() || self.bare.contains(&above.at) {
            return Ok(ParentEntry::Bare);
        }
        let made = self.made.of_directory(&self.root, at);
        Ok(match self.root.step(&above.at, &above.control, at, made) {
            Ok(StepResult::Directory(control)) if control == *above.control => {
                ParentEntry::Directory(Arc::clone(&above.control))
            }
            Ok(StepResult::Directory(control)) => ParentEntry::Directory(Arc::new(control)),
            Ok(StepResult::Link(link)) => ParentEntry::Link(link),
            Ok(StepResult::Other | StepResult::Absent) => ParentEntry::Bare,
            Err(RootError::Unsafe { why, .. }) => ParentEntry::Blocked(why.into()),
            // A link that is not text, or that leads below itself, has no end.
            Err(RootError::NotText { .. }) => ParentEntry::Bare,
            Err(error) if error.is_unreachable() || error.is_loop() => ParentEntry::Bare,
            Err(error) => return Err(error),
        })
    }

    fn passes(&self, link: &LinkTarget, at: &AbsPath) -> Result<(), String> {
        link.passes(&self.root, at, self.made.of_directory(&self.root, at))
    }

    /// Follows a link in `above`; returns why it may not be followed if that is so.
    fn follow(
        &mut self,
        above: &ResolvedParent,
        link: &LinkTarget,
        links: usize,
    ) -> Result<Result<ResolvedParent, String>, RootError> {
        let mut here = match link.target.starts_with('/') {
            true => self.directory(&AbsPath::root(), links)?,
            false => above.clone(),
        };
        if link.target.starts_with('/')
            && let Err(why) = self.passes(link, &here.at)
        {
            return Ok(Err(why));
        }
        for part in link
            .target
            .split('/')
            .filter(|part| !matches!(*part, "" | "."))
        {
            let passed = match part {
                ".." => here.at.parent().unwrap_or_else(AbsPath::root),
                part => child(&here.at, part),
            };
            if passed.components().count() > MAX_DIRECTORY_DEPTH {
                return Ok(Err(format!(
                    "a symbolic link leads to a path deeper than {MAX_DIRECTORY_DEPTH} directories"
                )));
            }
            // A link on the way is checked itself, not only its target.
            if let Err(why) = self.passes(link, &passed) {
                return Ok(Err(why));
            }
            here = self.directory(&passed, links)?;
            if let Err(why) = self.passes(link, &here.at) {
                return Ok(Err(why));
            }
        }
        Ok(Ok(here))
    }
}

/// The object with one name.
enum ParentEntry {
    Directory(Arc<DirectoryControl>),
    Link(LinkTarget),
    /// Neither a directory nor a link to one.
    Bare,
    /// It may not be traversed, for this reason.
    Blocked(Arc<str>),
}

/// Appends a component to `directory`. An invalid component is ignored, so the result stays in `directory`.
fn child(directory: &AbsPath, name: &str) -> AbsPath {
    directory.join(name).unwrap_or_else(|_| directory.clone())
}
