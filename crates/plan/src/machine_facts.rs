//! Defines the observed state of a machine as plain data; the update module collects it and the
//! planner reads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    BaseConfig, Database, DatabaseEntries, Edit, NewObject, ObjectKind, OsFacts, SelinuxLabels,
    passwd::field, sshd_config::SshdConfig,
};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::KernelCommandLine;

/// The facts that a plan is made from, for every path and unit that the two configs mention.
///
/// Paths are *canonical*: links in their parents are resolved inside the root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineFacts {
    /// The objects at the requested paths and at all their parents; absent paths are not listed.
    pub objects: BTreeMap<AbsPath, FileFacts>,
    /// The canonical path of each path of the desired config, in the tree *as planned*: links and
    /// directories that the config itself creates count as existing. Identical paths are omitted.
    pub canonical: BTreeMap<AbsPath, AbsPath>,
    /// The canonical path of each path of the base config in the tree of today; identical paths are
    /// omitted.
    pub canonical_before: BTreeMap<AbsPath, AbsPath>,
    /// The names in directories that a change would remove or replace.
    pub children: BTreeMap<AbsPath, BTreeSet<String>>,
    /// The targets of symbolic links that exist where the desired config wants another kind of
    /// object, or that belong to the layout.
    pub link_ends: BTreeMap<AbsPath, LinkEnd>,
    /// The targets of the layout links of an ostree host. Collected only if a kind differs.
    pub layout_targets: BTreeSet<AbsPath>,
    /// Objects that cannot be read because their file system does not respond to this process, with
    /// the reason and the failed call. Nothing below them is known.
    pub unreachable: BTreeMap<AbsPath, (Reason, String)>,
    /// Files that cannot be read because another process holds a lease on them: their content is not
    /// known.
    pub leased: BTreeSet<AbsPath>,
    /// The mounts of the paths, by mount point.
    pub mounts: BTreeMap<AbsPath, MountFacts>,
    /// Accounts of the root's own passwd files, by name.
    pub users: BTreeMap<String, UserFacts>,
    /// Groups of the root's own group files, by name.
    pub groups: BTreeMap<String, u32>,
    /// The account databases these come from; empty if no config mentions their entries.
    pub accounts: AccountFacts,
    /// The state of the units that the configs or policies mention, from systemd and the unit
    /// directories.
    pub units: BTreeMap<String, UnitFacts>,
    /// Files and links of the desired config that are in a unit or preset directory under another
    /// path, for example behind a link of the config: the path in that directory, by the path in
    /// the config.
    pub unit_paths: BTreeMap<AbsPath, AbsPath>,
    /// The same for the base config.
    pub unit_paths_before: BTreeMap<AbsPath, AbsPath>,
    /// Every unit file and link in the unit directories of systemd, and the drop-ins of `units`.
    pub unit_files: BTreeMap<AbsPath, UnitEntry>,
    /// The same for originals in these directories, by their original path.
    pub unit_originals: BTreeMap<AbsPath, UnitEntry>,
    /// The texts of unit files that the desired config brings as hard links, and of drop-ins and presets that it
    /// brings as links, by their path in a unit or preset directory; in the tree as planned.
    pub linked_texts: BTreeMap<AbsPath, String>,
    /// The same for the base config in the tree of today.
    pub linked_texts_before: BTreeMap<AbsPath, String>,
    /// The final targets of links that lead out of the unit directories, by the path that each link
    /// names; none if no file exists there. In the tree as planned.
    pub unit_ends: BTreeMap<AbsPath, Option<AbsPath>>,
    /// The same in the tree of today.
    pub unit_ends_before: BTreeMap<AbsPath, Option<AbsPath>>,
    /// The text of small files that a plan must read: preset files, `authorized_keys` (as [`super::byte_text`]
    /// represents it), vendor unit files whose `[Install]` section is needed, and files that a diff is shown for.
    pub texts: BTreeMap<AbsPath, String>,
    /// The configuration of sshd that decides where it reads keys, in the tree as planned.
    pub sshd: SshdConfig,
    /// The same in the tree of today.
    pub sshd_before: SshdConfig,
    /// The files of SSH keys that machinist created and that no other program owns.
    pub key_files: BTreeSet<AbsPath>,
    /// The values of specifiers in `[Install]`.
    pub specifiers: Arc<SpecifierFacts>,
    /// Kernel arguments of the running kernel.
    pub kernel_arguments: KernelCommandLine,
    /// The config to compare with where only changes are judged.
    pub base: BaseConfig,
    /// A file in which another daemon keeps its config and that is no config.
    pub base_unreadable: Option<AbsPath>,
    /// Other facts about the running operating system.
    pub os: OsFacts,
    /// The place of the *original* of each path: the object that existed before machinist first
    /// changed it.
    ///
    /// The places are listed in `objects` too, so that a plan knows what a restore would bring.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// The mode and owner before machinist set them, of files whose content no config has set
    /// since: on leaving, these two are restored and the content stays.
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// Objects in place whose planned label could not be set.
    pub labels_pending: BTreeSet<AbsPath>,
    /// The SELinux labelling rules for new objects; empty if the root has no policy.
    pub labels: SelinuxLabels,
    /// Paths that matched the config when a config first mentioned them ([`super::Plan::adopted`]):
    /// nothing was written there, so nothing is removed when they leave the config.
    pub adopted: BTreeSet<AbsPath>,
    /// Directories that machinist created, for an entry or as parents of one.
    pub made: BTreeSet<AbsPath>,
    /// The users who control the parent directories of canonical paths, if a user other than root
    /// does.
    pub users_directories: BTreeMap<AbsPath, u32>,
    /// The topmost directories above canonical paths from which on users other than root may move and remove objects.
    pub user_tops: BTreeMap<AbsPath, AbsPath>,
    /// The canonical paths whose parent directories others than root may change.
    pub exposed: BTreeSet<AbsPath>,
    /// The same after the update, for those that it exposes.
    pub exposed_after: BTreeSet<AbsPath>,
    /// The paths of `exposed` at which the object is the one whose mode and owner machinist has set.
    pub changed_objects: BTreeSet<AbsPath>,
    /// Files that a user could write while a config set their owner.
    pub user_written: BTreeSet<AbsPath>,
    /// Canonical paths at which another writer made updates fail during the last day.
    pub changed_targets: BTreeMap<AbsPath, TargetFailures>,
    /// Paths of entries that the last update skipped, because of what users did there.
    pub skipped: BTreeSet<AbsPath>,
    /// Whether the machine has been on the desired config before, and returns to it.
    pub is_return: bool,
    /// Canonical paths of the base config that a user could redirect, with the reason.
    pub unsafe_before: BTreeMap<AbsPath, String>,
    /// The same for the desired config.
    pub unsafe_after: BTreeMap<AbsPath, String>,
    /// Why an interrupted update would not be recovered before ordinary services start; none if the
    /// units for that are installed and enabled ([`super::recovery_units`]).
    pub recovery_missing: Option<String>,
}

/// The updates that failed because another writer changed a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetFailures {
    /// The number of these updates.
    pub updates: u32,
    /// Whether the last one was so lately that the other writer is likely to be active.
    pub is_recent: bool,
}

impl MachineFacts {
    /// The object at or above `path` that cannot be read, and why.
    pub(super) fn unreachable_at(&self, path: &AbsPath) -> Option<(&AbsPath, &(Reason, String))> {
        let mut all = self.unreachable.iter();
        all.find(|(above, _)| path.is_under(above))
    }

    /// The object at `path`, or its nearest existing parent directory.
    pub(super) fn nearest(&self, path: &AbsPath) -> Option<(AbsPath, &FileFacts)> {
        std::iter::once(path.clone())
            .chain(path.ancestors())
            .find_map(|above| self.objects.get(&above).map(|facts| (above, facts)))
    }

    /// Whether an object exists at `path` on an overlay.
    pub(super) fn is_on_overlay(&self, path: &AbsPath) -> bool {
        let mount = self
            .objects
            .get(path)
            .and_then(|facts| self.mounts.get(&facts.mount));
        mount.is_some_and(|mount| mount.overlay)
    }

    /// The canonical paths of all paths of both configs that differ from their canonical path.
    pub fn moved(self) -> BTreeMap<AbsPath, AbsPath> {
        let mut moved = self.canonical_before;
        moved.extend(self.canonical);
        moved
    }
}

/// The facts needed to create, change and remove users and groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountFacts {
    /// The databases that are regular files.
    pub databases: BTreeMap<Database, DatabaseEntries>,
    /// The content of a new user's home (`/etc/skel`).
    pub skeleton: BTreeMap<String, NewObject>,
    /// The shell of a new user if the config sets none.
    pub shell: String,
    /// The shells that the desired config names and that are no programs in the tree as planned.
    pub missing_shells: BTreeSet<AbsPath>,
    /// What machinist has changed: the value before its first change, and the value of its last
    /// change.
    pub kept: Vec<Edit>,
}

impl AccountFacts {
    /// The groups whose members and password a user other than root may change with gpasswd(1), as their administrator.
    pub fn administered_groups(&self) -> BTreeSet<String> {
        let rows = self.databases.get(&Database::Gshadow).into_iter();
        let rows = rows.flat_map(|gshadow| gshadow.rows(Database::Gshadow));
        let by_users = |field: &str| {
            let mut names = field.split(',');
            names.any(|name| !name.is_empty() && name != "root")
        };
        let administered = rows.filter(|row| by_users(row[field::ADMINISTRATORS_FIELD]));
        administered.map(|row| row[0].to_owned()).collect()
    }
}

/// One object in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its kind.
    pub kind: ObjectKind,
    /// Permission bits, 0–07777.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Bytes of a regular file.
    pub size: u64,
    /// Digest of a regular file's content; none for other kinds and parents, and for a large file
    /// whose size no config has.
    pub digest: Option<Digest>,
    /// The target of a link; none if it is not UTF-8.
    pub target: Option<String>,
    /// Major and minor number of its file system's device.
    pub device: (u32, u32),
    /// Its inode number; within one mount it shows whether two paths are names of the same object.
    pub inode: u64,
    /// Its number of hard links.
    pub names: u32,
    /// Something is mounted on it.
    pub mount_point: bool,
    /// It carries the immutable or append-only flag.
    pub immutable: bool,
    /// The mount point of the mount that holds it.
    pub mount: AbsPath,
    /// Its SELinux label; none where the root has no policy, or it has none.
    pub label: Option<String>,
    /// machinist has set a label, and the current one is neither that nor the policy's.
    pub relabelled: bool,
    /// For a file, or a directory of a user other than root: whether it has an access control list.
    pub access_list: bool,
    /// For the same objects: whether it has attributes that a new file would inherit from a file of root or of the
    /// same user.
    pub attributes: bool,
}

/// Mode and owner of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits, 0–07777.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
}

impl Attributes {
    /// The set-user-ID and set-group-ID bits of a mode.
    pub const SET_ID_BITS: u32 = 0o6000;
    /// The set-group-ID bit of a mode.
    pub const SET_GROUP_ID_BIT: u32 = 0o2000;
}

/// The target of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// The canonical path.
    pub path: AbsPath,
    /// The kind of the existing object; none if it does not exist.
    pub kind: Option<ObjectKind>,
    /// How many objects are below a directory; none if they were not counted.
    pub below: Option<usize>,
}

/// Whether the object at this canonical path belongs to the layout that all operating systems share: a direct
/// child of `/`, `/usr` or `/var`.
pub fn is_layout(path: &AbsPath) -> bool {
    matches!(path.directory(), "/" | "/usr" | "/var")
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountFacts {
    /// Mounted read-only.
    pub read_only: bool,
    /// Free bytes for this process.
    pub free_bytes: u64,
    /// Free inodes; none if the file system has no such limit.
    pub free_inodes: Option<u64>,
    /// Whether a staging directory exists there, or may be created at the top of the mount.
    pub staging: bool,
    /// The mount is an overlay: directories of its lower layer can be neither exchanged nor
    /// renamed.
    pub overlay: bool,
}

/// A user of the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFacts {
    /// Its id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// Its home directory, when that is a usable path.
    pub home: Option<AbsPath>,
}

/// The facts that specifiers in the `[Install]` section of units stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecifierFacts {
    /// The machine ID (machine-id(5)).
    pub machine_id: Option<String>,
    /// The fields of os-release(5); none if the root has no such file.
    pub os_release: Option<BTreeMap<String, String>>,
}

/// One entry of a unit directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitEntry {
    /// A file. Its text is in [`MachineFacts::texts`] where a unit of the configs has it.
    File,
    /// A file without content, which masks the unit.
    Empty,
    /// A link, with its text.
    Link(String),
}

/// The state of one unit. Offline only the files are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// `loaded`, `not-found`, `masked`, …; none offline.
    pub load: Option<String>,
    /// `active`, `inactive`, `failed`, …; none offline.
    pub active: Option<String>,
    /// The path of its file outside `/etc/systemd/system` (vendor or runtime directories), if it
    /// exists.
    pub vendor_file: Option<AbsPath>,
}
