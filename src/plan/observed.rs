//! What the machine looks like, as plain data: taken by a driver, looked at by the planner.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Base, Database, Edit, Entries, Labels, LinkEnd, Node, OsFacts};
use crate::{digest::Digest, machine_config::KernelCommandLine, path::AbsPath, reason::Reason};

/// The facts a plan is made from, for every path and unit that the two configs name.
///
/// Paths are *canonical*: links in their parents are resolved inside the root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The objects at the paths asked for and at all their parents; absent paths are not listed.
    pub objects: BTreeMap<AbsPath, FileFacts>,
    /// Where each path of the config to reach really lies, in the tree *as planned*: a link or a
    /// directory that the config itself brings counts as there. Identical paths are left out.
    pub canonical: BTreeMap<AbsPath, AbsPath>,
    /// Where each path of the config the machine is on lies today; identical paths are left out.
    pub canonical_before: BTreeMap<AbsPath, AbsPath>,
    /// Directories that a change would remove or replace, and what they hold.
    pub children: BTreeMap<AbsPath, BTreeSet<String>>,
    /// Where symbolic links lead that exist where the config to reach asks for another kind of object, or
    /// that belong to the layout.
    pub link_ends: BTreeMap<AbsPath, LinkEnd>,
    /// What the links of an ostree host's layout lead to. Looked at only where a kind differs.
    pub layout_targets: BTreeSet<AbsPath>,
    /// Objects that cannot be looked at, because their file system does not answer this process, with the
    /// reason and what failed. Nothing is known of what is below them.
    pub unreachable: BTreeMap<AbsPath, (Reason, String)>,
    /// The mounts that hold the paths, by mount point.
    pub mounts: BTreeMap<AbsPath, MountFacts>,
    /// Accounts of the root's own passwd files, by name.
    pub users: BTreeMap<String, Account>,
    /// Groups of the root's own group files, by name.
    pub groups: BTreeMap<String, u32>,
    /// The databases that these come from; empty where no config speaks of their entries.
    pub accounts: AccountFacts,
    /// What systemd and the unit directories say of the units that the configs or policies name.
    pub units: BTreeMap<String, UnitFacts>,
    /// Files and links of the config to reach that lie in a unit or preset directory by another path, such as
    /// behind a link of the config: the path in that directory, by the path that the config gives.
    pub unit_paths: BTreeMap<AbsPath, AbsPath>,
    /// The same for the config before.
    pub unit_paths_before: BTreeMap<AbsPath, AbsPath>,
    /// Every unit file and link in the unit directories of systemd, and the drop-ins of `units`.
    pub unit_files: BTreeMap<AbsPath, UnitEntry>,
    /// The same for originals in these directories, by the path they stood at.
    pub unit_originals: BTreeMap<AbsPath, UnitEntry>,
    /// Where the links of the unit directories end that lead out of them, by the path that they name; none where
    /// no file is there. In the tree as planned.
    pub unit_ends: BTreeMap<AbsPath, Option<AbsPath>>,
    /// The same as the tree is today.
    pub unit_ends_before: BTreeMap<AbsPath, Option<AbsPath>>,
    /// Text of small files that a plan must read to decide: preset files, `authorized_keys`,
    /// vendor unit files whose `[Install]` section is needed, and what a diff is shown for.
    pub texts: BTreeMap<AbsPath, String>,
    /// Whether sshd reads `~/.ssh/authorized_keys.d/ignition`.
    pub sshd_reads_keys_directory: bool,
    /// Where sshd takes keys from, where those are files that no config brings keys to.
    pub sshd_keys_elsewhere: Option<String>,
    /// Kernel arguments of the running kernel.
    pub kernel_arguments: KernelCommandLine,
    /// What this machine was on before the config that it is on for us.
    pub base: Base,
    /// The rest of the operating system that runs.
    pub os: OsFacts,
    /// Paths that hold an *original*: what stood there before machinist first touched it, by the
    /// place it is kept at.
    ///
    /// The places are listed in `objects` too, so that a plan knows what would come back.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// Mode and owner before machinist set them, of files whose content no config gave since: these two go
    /// back, and the content stays.
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// What is in place without the label that it was to have, because that could not be set.
    pub labels_pending: BTreeSet<AbsPath>,
    /// Which SELinux labels new objects get; empty where the root has no policy.
    pub labels: Labels,
    /// Paths that stood as asked when a config first named them ([`super::Plan::adopted`]): nothing
    /// was written there, so nothing is removed when they leave the config.
    pub adopted: BTreeSet<AbsPath>,
    /// The users who control the directories of canonical paths, where one is known that is not root.
    pub users_directories: BTreeMap<AbsPath, u32>,
    /// Canonical paths of the config before that a user could lead elsewhere, and why.
    pub unsafe_before: BTreeMap<AbsPath, String>,
    /// The same of the config to reach.
    pub unsafe_after: BTreeMap<AbsPath, String>,
    /// Why nobody would settle an interrupted update before ordinary services start; none where the
    /// units for that are installed and enabled ([`super::recovery`]).
    pub recovery_missing: Option<String>,
}

impl Observed {
    /// The object at or above `path` that cannot be looked at, and why.
    pub(super) fn unreachable_at(&self, path: &AbsPath) -> Option<(&AbsPath, &(Reason, String))> {
        let mut all = self.unreachable.iter();
        all.find(|(above, _)| path.is_under(above))
    }

    /// Where paths of both configs really lie that lie elsewhere than they say.
    pub fn moved(self) -> BTreeMap<AbsPath, AbsPath> {
        let mut moved = self.canonical_before;
        moved.extend(self.canonical);
        moved
    }
}

/// What a plan must know to make, change and remove users and groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountFacts {
    /// The databases that are regular files.
    pub databases: BTreeMap<Database, Entries>,
    /// What a new user finds at home (`/etc/skel`).
    pub skeleton: BTreeMap<String, Node>,
    /// The shell of a new user for whom none is asked.
    pub shell: String,
    /// What machinist has changed: the value before it first did, and the one it gave last.
    pub kept: Vec<Edit>,
}

/// One object in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// What it is.
    pub kind: ObjectKind,
    /// Permission bits, 0–07777.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Bytes of a regular file.
    pub size: u64,
    /// Digest of a regular file's content; none for other kinds and parents, and for a large file whose size
    /// no config asks for.
    pub digest: Option<Digest>,
    /// What a link leads to; none where that is no text.
    pub target: Option<String>,
    /// Its inode number: on one mount, whether two paths are names of one object.
    pub inode: u64,
    /// How many names it has.
    pub names: u32,
    /// Something is mounted on it.
    pub mount_point: bool,
    /// It carries the immutable or append-only flag.
    pub immutable: bool,
    /// The mount point of the mount that holds it.
    pub mount: AbsPath,
    /// Its SELinux label; none where the root has no policy, or it has none.
    pub label: Option<String>,
    /// The label is neither the one that machinist gave it nor the policy's.
    pub relabelled: bool,
    /// Of an object of another user than root: whether it has an access control list.
    pub access_list: bool,
    /// Of a file of another user than root: whether it has any attributes that a new file would take over.
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

/// Kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else: device, socket, FIFO.
    Other,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountFacts {
    /// Mounted read-only.
    pub read_only: bool,
    /// Bytes this process may still write.
    pub free_bytes: u64,
    /// Objects that may still be made; none where the file system has no such limit.
    pub free_inodes: Option<u64>,
    /// Whether a directory for what is staged there is at hand, or may be made at its top.
    pub staging: bool,
    /// A directory from the lower layer of an overlay can be neither exchanged nor renamed.
    pub overlay: bool,
}

/// A user of the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// Its home directory, when that is a usable path.
    pub home: Option<AbsPath>,
}

/// One entry of a unit directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitEntry {
    /// A file. Its text is in [`Observed::texts`] where a unit of the configs has it.
    File,
    /// A file without content, which masks the unit.
    Empty,
    /// A link, with its text.
    Link(String),
}

/// What is known of one unit. Offline only the files are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// `loaded`, `not-found`, `masked`, …; none offline.
    pub load: Option<String>,
    /// `active`, `inactive`, `failed`, …; none offline.
    pub active: Option<String>,
    /// Whether its file exists outside `/etc/systemd/system` (vendor or runtime directories), where.
    pub vendor_file: Option<AbsPath>,
}
