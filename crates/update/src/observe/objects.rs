//! Observes single objects, each once, and the mounts that contain them.

mod foreign_objects;
mod later_owners;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::store::paths;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{FileFacts, MachineFacts, MountFacts, ObjectKind, ObservedPath};
use machinist_rootfs::{DirectoryControl, FileKind, Root, RootError, Stat};

pub(super) use self::later_owners::LaterOwners;
use super::{
    MAX_TEXT_BYTES,
    digest_cache::{DigestCache, FileStamp},
    file_contents::{self, ReadRequest},
    parent_resolver::{ParentResolver, PathRisks},
    text_if_there,
};

/// Files up to this size are always read. A larger file is read only if it has the size that the config wants,
/// because its content cannot match otherwise.
const ALWAYS_READ_MAX_BYTES: u64 = 1 << 20;

/// Maximum number of objects that are listed below one directory that may be removed. A directory with more objects
/// counts as containing objects of other owners.
const MAX_CHILDREN: usize = 10_000;

/// The paths of one config, made canonical.
pub(super) struct LocatedPaths {
    pub(super) paths: Vec<ObservedPath>,
    pub(super) moved: BTreeMap<AbsPath, AbsPath>,
    /// Reasons why paths may not be modified.
    pub(super) unsafe_paths: BTreeMap<AbsPath, String>,
}

/// An observation in progress.
pub(super) struct ObjectObserver<'a> {
    pub(super) root: &'a Root,
    pub(super) seen: MachineFacts,
    to: &'a MachineConfig,
    absent: HashSet<AbsPath>,
    digests: Option<&'a DigestCache>,
    /// Labels that were set on owned paths.
    given: BTreeMap<AbsPath, String>,
    /// The users who control the directories of paths, if that is not root.
    controlled: BTreeMap<AbsPath, DirectoryControl>,
    /// Permitted owners of the entries in users' directories, and the number of names that the config gives each
    /// object.
    own: BTreeMap<AbsPath, (Vec<u32>, u32)>,
    /// Reasons why the objects at paths may not be modified.
    foreign: BTreeMap<AbsPath, String>,
}

impl<'a> ObjectObserver<'a> {
    pub(super) fn new(
        root: &'a Root,
        seen: MachineFacts,
        to: &'a MachineConfig,
        (digests, given): (Option<&'a DigestCache>, BTreeMap<AbsPath, String>),
    ) -> Self {
        if let Some(digests) = digests {
            digests.begin();
        }
        Self {
            root,
            seen,
            to,
            absent: HashSet::new(),
            digests,
            given,
            controlled: BTreeMap::new(),
            own: BTreeMap::new(),
            foreign: BTreeMap::new(),
        }
    }

    /// Makes the paths canonical.
    pub(super) fn locate(
        &mut self,
        asked: Vec<ObservedPath>,
        mut places: ParentResolver<'_>,
    ) -> Result<LocatedPaths, RootError> {
        let mut located = LocatedPaths {
            paths: Vec::with_capacity(asked.len()),
            moved: BTreeMap::new(),
            unsafe_paths: BTreeMap::new(),
        };
        for asked in asked {
            let path = match &asked.home {
                Some(home) => places.below(home, &asked.path)?,
                None => places.of(&asked.path)?,
            };
            if path != asked.path {
                located.moved.insert(asked.path, path.clone());
            }
            located.paths.push(ObservedPath { path, ..asked });
        }
        let PathRisks {
            controlled,
            unsafe_paths,
        } = places.risks();
        self.controlled.extend(controlled);
        located
            .paths
            .retain(|asked| !unsafe_paths.contains_key(&asked.path));
        for asked in &mut located.paths {
            if let Some(place) = asked.file.as_ref().and_then(|file| located.moved.get(file)) {
                asked.file = Some(place.clone());
            }
        }
        located.unsafe_paths = unsafe_paths;
        Ok(located)
    }

    /// Observes everything at the paths of the two configs.
    pub(super) fn observe_all(
        &mut self,
        [before, after]: [&LocatedPaths; 2],
    ) -> Result<(), RootError> {
        self.asked(before.paths.iter().chain(&after.paths))?;
        self.kinds(before.paths.iter().chain(&after.paths))?;
        self.originals()?;
        self.directories(&before.paths, &after.paths)?;
        self.mounts()
    }

    /// Observes the requested paths and their parents.
    fn asked<'p>(
        &mut self,
        asked: impl Iterator<Item = &'p ObservedPath> + Clone,
    ) -> Result<(), RootError> {
        // A path may be requested twice, with only one of the requests needing its content or text.
        let paths = |some: &dyn Fn(&ObservedPath) -> bool| -> BTreeSet<&'p AbsPath> {
            let some = asked.clone().filter(|asked| some(asked));
            some.map(|asked| &asked.path).collect()
        };
        self.note_owners(asked.clone())?;
        let edited = paths(&|asked| asked.edited);
        let mut only_seen = paths(&|asked| asked.only_seen);
        if !only_seen.is_empty() {
            let read = paths(&|asked| !asked.only_seen);
            only_seen.retain(|path| !read.contains(path));
        }
        let sizes: BTreeSet<u64> = asked.clone().filter_map(|asked| asked.size).collect();
        let mut files = self.objects(asked.map(|asked| &asked.path))?;
        files.retain(|file| {
            let size = file.stamp.size();
            !only_seen.contains(&file.path)
                && (size <= ALWAYS_READ_MAX_BYTES || sizes.contains(&size))
        });
        for file in &mut files {
            file.edited = edited.contains(&file.path);
        }
        self.contents(&files)
    }

    /// Observes objects and their parents, all objects of a directory at once. Returns the files among them, to be
    /// read.
    fn objects<'p>(
        &mut self,
        paths: impl Iterator<Item = &'p AbsPath>,
    ) -> Result<Vec<ReadRequest>, RootError> {
        let mut files = Vec::new();
        let mut by_directory: BTreeMap<&str, Vec<&AbsPath>> = BTreeMap::new();
        for path in paths.filter(|path| !self.foreign.contains_key(*path)) {
            by_directory.entry(path.directory()).or_default().push(path);
        }
        for mut paths in by_directory.into_values() {
            paths.sort();
            paths.dedup();
            let Some(parent) = paths.first().and_then(|path| path.parent()) else {
                continue;
            };
            let Some(mount) = self.directory(&parent)? else {
                continue;
            };
            let Some(root) = self.fixed(&parent, &paths)? else {
                continue;
            };
            let stats = match root.stat_each(&parent, paths.iter().map(|path| path.file_name())) {
                Err(error) if error.is_unreachable() => {
                    self.unreachable(&parent, &error);
                    continue;
                }
                stats => stats?,
            };
            for (path, stat) in paths.into_iter().zip(stats) {
                // The check uses the same stat result as the later read of the content, because a user may replace
                // the object between two calls.
                if let Some(why) = stat
                    .as_ref()
                    .and_then(|stat| self.why_foreign(path, stat).transpose())
                {
                    self.foreign.insert(path.clone(), why?);
                    continue;
                }
                let file = stat.as_ref().filter(|stat| stat.kind == FileKind::File);
                files.extend(file.map(|stat| self.question(path, stat)));
                self.note(path, stat, Some(&mount))?;
            }
        }
        Ok(files)
    }

    fn question(&self, path: &AbsPath, stat: &Stat) -> ReadRequest {
        let wanted = self.to.files.get(path);
        ReadRequest {
            path: path.clone(),
            stamp: FileStamp::of(stat),
            public: stat.mode & 0o004 != 0,
            edited: false,
            wanted: wanted.and_then(|file| Some(file.content.as_ref()?.digest())),
        }
    }

    /// Returns the mount of a directory; `None` if the object is not a directory.
    fn directory(&mut self, path: &AbsPath) -> Result<Option<AbsPath>, RootError> {
        let mount = self.object(path)?;
        let facts = self.seen.objects.get(path);
        Ok(mount.filter(|_| facts.is_some_and(|facts| facts.kind == ObjectKind::Directory)))
    }

    fn object(&mut self, path: &AbsPath) -> Result<Option<AbsPath>, RootError> {
        if let Some(facts) = self.seen.objects.get(path) {
            return Ok(Some(facts.mount.clone()));
        }
        // Iterative, because a user's link may lead through thousands of components.
        let known = |above: &AbsPath| self.seen.objects.contains_key(above);
        let unknown: Vec<AbsPath> = path.ancestors().take_while(|above| !known(above)).collect();
        for above in unknown.iter().rev() {
            if self.below_known(above)?.is_none() {
                return Ok(None);
            }
        }
        self.below_known(path)
    }

    /// Observes an object whose parents were observed.
    fn below_known(&mut self, path: &AbsPath) -> Result<Option<AbsPath>, RootError> {
        if self.absent.contains(path) {
            return Ok(None);
        }
        let above = match path.parent() {
            Some(parent) => match self.seen.objects.get(&parent) {
                Some(facts) if facts.kind == ObjectKind::Directory => Some(facts.mount.clone()),
                // A missing object has no children. Nor has a link: paths are canonical in the planned tree, in
                // which this link is removed.
                _ => return Ok(None),
            },
            None => None,
        };
        match self.root.stat(path) {
            Err(error) if error.is_unreachable() => {
                self.unreachable(path, &error);
                self.absent.insert(path.clone());
                Ok(None)
            }
            Err(error) if error.is_loop() => {
                self.absent.insert(path.clone());
                Ok(None)
            }
            stat => self.note(path, stat?, above.as_ref()),
        }
    }

    /// Records the object at `path`, in a directory on the mount `above`. Returns the mount that contains it.
    fn note(
        &mut self,
        path: &AbsPath,
        stat: Option<Stat>,
        above: Option<&AbsPath>,
    ) -> Result<Option<AbsPath>, RootError> {
        let Some(stat) = stat else {
            self.absent.insert(path.clone());
            return Ok(None);
        };
        let target = match stat.kind {
            FileKind::Link => self.root.link_text(path)?,
            _ => None,
        };
        let is_subvolume = |above: &AbsPath| {
            let top = self.seen.objects.get(above);
            stat.kind == FileKind::Directory && top.is_some_and(|top| top.device != stat.device)
        };
        let above = above.filter(|above| !stat.mount_point && !is_subvolume(above));
        let mount = above.unwrap_or(path).clone();
        let mut facts = facts(&stat, target, mount.clone());
        self.label(path, &mut facts)?;
        // A list lets users write a file of root, also if a later mode masks it.
        let is_users = stat.uid != 0 && stat.kind == FileKind::Directory;
        if stat.kind == FileKind::File || is_users {
            (facts.access_list, facts.attributes) = self.root.has_meta_extras(path)?;
        }
        self.seen.objects.insert(path.clone(), facts);
        Ok(Some(mount))
    }

    /// Reads the label, if the root has a policy, and compares it with the label that was set.
    fn label(&self, path: &AbsPath, facts: &mut FileFacts) -> Result<(), RootError> {
        if self.seen.labels.is_empty() {
            return Ok(());
        }
        facts.label = self.root.label(path)?;
        let policys = self.seen.labels.of(path, facts.kind);
        facts.relabelled = self.given.get(path).is_some_and(|given| {
            let known = [Some(given.as_str()), policys];
            // If the policy assigns none, any label is accepted.
            policys.is_some() && !known.contains(&facts.label.as_deref())
        });
        Ok(())
    }

    /// Fills in the digests of files, and their texts if the plan edits them or may show a diff.
    fn contents(&mut self, files: &[ReadRequest]) -> Result<(), RootError> {
        let answers = file_contents::answer(self.root, files, self.digests)?;
        for (file, answer) in files.iter().zip(answers) {
            if let Some(facts) = self.seen.objects.get_mut(&file.path) {
                facts.digest = answer.digest;
            }
            self.seen
                .leased
                .extend(answer.leased.then(|| file.path.clone()));
            if let Some(text) = answer.text {
                self.seen.texts.insert(file.path.clone(), text);
            }
        }
        Ok(())
    }

    /// Observes the originals.
    fn originals(&mut self) -> Result<(), RootError> {
        let places: Vec<AbsPath> = self.seen.originals.values().cloned().collect();
        let mut files = self.objects(places.iter())?;
        // An original of another size than the current object need not be compared with it.
        let paths = self.seen.originals.iter();
        let comparable = paths.filter_map(|(path, place)| {
            let there = self.seen.objects.get(path)?;
            Some((place, there.digest.map(|_| there.size)?))
        });
        let comparable: BTreeMap<&AbsPath, u64> = comparable.collect();
        files.retain(|file| {
            let size = file.stamp.size();
            size <= ALWAYS_READ_MAX_BYTES || comparable.get(&file.path) == Some(&size)
        });
        self.contents(&files)?;
        for place in places {
            let text = text_if_there(self.root, place.as_str(), MAX_TEXT_BYTES)?;
            if !text.is_empty() {
                self.seen.texts.insert(place, text);
            }
        }
        Ok(())
    }

    /// Lists the directories that a plan may replace or remove.
    fn directories(
        &mut self,
        before: &[ObservedPath],
        after: &[ObservedPath],
    ) -> Result<(), RootError> {
        let stays: BTreeSet<&AbsPath> = after
            .iter()
            .filter(|asked| asked.kind == Some(ObjectKind::Directory))
            .map(|asked| &asked.path)
            .collect();
        let there = self.seen.objects.iter();
        let there = there.filter(|(_, facts)| facts.kind == ObjectKind::Directory);
        let there: BTreeSet<AbsPath> = there.map(|(path, _)| path.clone()).collect();
        for asked in before.iter().chain(after) {
            if there.contains(&asked.path) && !stays.contains(&asked.path) {
                self.list(&asked.path)?;
            }
            // Unit directories are removed together with their last entry.
            let parent = is_unit_directory(asked.path.directory()).then(|| asked.path.parent());
            if let Some(parent) = parent.flatten() {
                self.list(&parent)?;
            }
        }
        Ok(())
    }

    /// Lists a directory recursively, or nothing if it is too large.
    fn list(&mut self, directory: &AbsPath) -> Result<(), RootError> {
        let is_directory = self
            .seen
            .objects
            .get(directory)
            .is_some_and(|facts| facts.kind == ObjectKind::Directory);
        if !is_directory || self.seen.children.contains_key(directory) {
            return Ok(());
        }
        let mut found = BTreeMap::new();
        let mut todo = vec![directory.clone()];
        let mut count = 0;
        while let Some(directory) = todo.pop() {
            let left = MAX_CHILDREN - count;
            let listing = match self.root.listing_up_to(&directory, left) {
                // Another process removed or replaced it in the meantime, or it is unreachable.
                Err(error) if error.is_absent() || error.is_unreachable() => return Ok(()),
                listing => listing?,
            };
            count += listing.entries.len();
            if listing.more || listing.unreadable_names > 0 {
                return Ok(());
            }
            for entry in listing
                .entries
                .iter()
                .filter(|entry| entry.kind == FileKind::Directory)
            {
                if let Ok(child) = directory.join(&entry.name) {
                    self.object(&child)?;
                    todo.push(child);
                }
            }
            let names: BTreeSet<String> = listing
                .entries
                .into_iter()
                .map(|entry| entry.name)
                .collect();
            found.insert(directory, names);
        }
        self.seen.children.extend(found);
        Ok(())
    }

    /// Observes each mount once.
    fn mounts(&mut self) -> Result<(), RootError> {
        self.object(&AbsPath::root())?;
        // Copies of staged objects are kept there.
        self.object(&paths::state_dir())?;
        let tops: BTreeSet<AbsPath> = self
            .seen
            .objects
            .values()
            .map(|facts| facts.mount.clone())
            .collect();
        // On these two mounts, objects are staged in machinist's own directories.
        let mut own = BTreeSet::new();
        let places = [Some(paths::state_dir()), AbsPath::new("/etc").ok()];
        for place in places.into_iter().flatten() {
            own.insert(self.root.mount(&place)?.id);
        }
        for top in tops {
            let mount = self.root.mount(&top)?;
            let staging = own.contains(&mount.id) || self.root.takes_private_dirs(&mount)?;
            let facts = MountFacts {
                read_only: mount.read_only,
                free_bytes: mount.usable_bytes,
                free_inodes: mount.free_inodes,
                staging,
                overlay: mount.fs_type == "overlay",
            };
            self.seen.mounts.insert(top, facts);
        }
        Ok(())
    }
}

fn is_unit_directory(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/etc/systemd/system/") else {
        return false;
    };
    let suffixes = [".wants", ".requires", ".upholds", ".d"];
    !name.contains('/') && suffixes.iter().any(|suffix| name.ends_with(suffix))
}

fn facts(stat: &Stat, target: Option<String>, mount: AbsPath) -> FileFacts {
    FileFacts {
        kind: match stat.kind {
            FileKind::File => ObjectKind::File,
            FileKind::Directory => ObjectKind::Directory,
            FileKind::Link => ObjectKind::Link,
            _ => ObjectKind::Other,
        },
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: if stat.kind == FileKind::File {
            stat.size
        } else {
            0
        },
        digest: None,
        target,
        device: stat.device,
        inode: stat.identity.ino,
        names: stat.nlink,
        mount_point: stat.mount_point,
        immutable: stat.immutable || stat.append_only,
        mount,
        label: None,
        relabelled: false,
        access_list: false,
        attributes: false,
    }
}
