//! Defines the parts of a machine config, valid by construction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{DiskLayout, EntryOrigin, EntryOrigins, Group, User};
use machinist_base::{abs_path::AbsPath, digest::Digest};

/// The complete desired state of one machine, merged from all documents that apply to it.
///
/// Configs that describe the same state of a machine have the same [digest](super::digest): it ignores the
/// config's name and the origins of its entries ([`EntryOrigin`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineConfig {
    /// The display name, `rendered-<pool>-<digest>` for a merged config.
    #[serde(skip)]
    pub name: String,
    /// Regular files by path.
    pub files: BTreeMap<AbsPath, File>,
    /// Directories by path.
    pub directories: BTreeMap<AbsPath, Directory>,
    /// Links by path.
    pub links: BTreeMap<AbsPath, Link>,
    /// systemd units by name.
    pub units: BTreeMap<UnitName, Unit>,
    /// Users by name: the desired settings, not the existing accounts.
    pub users: BTreeMap<String, User>,
    /// Groups by name. Omitted from the canonical form if empty, so that configs without groups keep their digests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Group>,
    /// Kernel arguments; order and repetition matter.
    pub kernel_arguments: Vec<String>,
    /// The OS image by digest; none leaves the OS unchanged.
    pub os_image_url: Option<String>,
    /// The image with the packages of OS extensions, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions_image: Option<String>,
    /// Named groups of OS packages.
    pub extensions: Vec<String>,
    /// `realtime`, `64k-pages`; none means the default kernel.
    pub kernel_type: Option<String>,
    /// Whether FIPS mode is required. Checked, never changed on a running machine.
    pub fips: bool,
    /// The disk layout at installation. Compared, never changed.
    #[serde(default, skip_serializing_if = "DiskLayout::is_empty")]
    pub disk_layout: DiskLayout,
    /// The origins of image, kernel arguments, kernel type, extensions and FIPS mode.
    #[serde(skip)]
    pub os_origins: EntryOrigins,
    /// The recorded state of the machine before its first config.
    #[serde(skip)]
    pub before: ClusterBaseline,
    /// The platform release that the config was rendered for, if a document states it. Like the name it is neither
    /// part of the digest nor stored.
    #[serde(skip)]
    pub release: Option<Release>,
    /// Warnings to add to every plan.
    #[serde(skip)]
    pub notes: CreationNotes,
    /// Which entries may replace an object of another kind.
    #[serde(skip)]
    pub overwrite: Overwrite,
}

/// Which entries may replace an object of another kind. This is a permission and not part of the desired state, so
/// it is never part of equality or of the canonical form.
#[derive(Clone, Debug, Default)]
pub enum Overwrite {
    /// The config was read from the store. The machine was on it before, so every entry may.
    #[default]
    Any,
    /// Files and links may, except at these paths; directories never may.
    Except(BTreeSet<AbsPath>),
}

impl PartialEq for Overwrite {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl MachineConfig {
    /// The same config with origins without lines and columns, as readers lack the source text.
    #[must_use]
    pub fn without_lines(mut self) -> Self {
        let files = self.files.values_mut().map(|it| &mut it.origin);
        let directories = self.directories.values_mut().map(|it| &mut it.origin);
        let links = self.links.values_mut().map(|it| &mut it.origin);
        let units = self.units.values_mut().map(|it| &mut it.origin);
        let users = self.users.values_mut().map(|it| &mut it.origin);
        let groups = self.groups.values_mut().map(|it| &mut it.origin);
        let os = self.os_origins.0.values_mut();
        let objects = files.chain(directories).chain(links).chain(units);
        for origin in objects.chain(users).chain(groups).chain(os) {
            (origin.line, origin.column) = (None, None);
        }
        self
    }
}

/// The cluster's record of a machine before its first config from machinist. Never part of
/// equality.
#[derive(Clone, Debug, Default)]
pub enum ClusterBaseline {
    /// The config does not come from a cluster.
    #[default]
    SingleMachine,
    /// The config comes from a cluster; with the current config in the Node's annotations, if it
    /// was requested.
    Node(Option<Box<OsConfig>>),
}

impl PartialEq for ClusterBaseline {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The config that another daemon applied to this machine, as far as machinist's first config is
/// compared with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsConfig {
    /// Image, kernel arguments, kernel type, extensions, FIPS mode and disk layout; no other parts
    /// of the config.
    pub config: MachineConfig,
    /// Whether the source contained the disk layout.
    pub has_disk_layout: bool,
}

/// Notes for users about the creation of a config. Never part of equality.
#[derive(Clone, Debug, Default)]
pub struct CreationNotes(pub Vec<String>);

impl PartialEq for CreationNotes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The release that a config belongs to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    /// Such as `4.16.3`; `None` if the config does not name one.
    pub version: Option<String>,
    /// Whether a release or an OS image lower than the installed one is allowed.
    pub may_be_lower: bool,
    /// The place of the statement in the source text.
    pub origin: EntryOrigin,
}

impl Release {
    /// A later config of the same merge overrides the version only if it names one.
    pub(crate) fn override_with(below: Option<Self>, above: Option<Self>) -> Option<Self> {
        match (above, below) {
            (Some(above), Some(below)) if above.version.is_none() => Some(Self {
                version: below.version,
                ..above
            }),
            (above, below) => above.or(below),
        }
    }
}

impl MachineConfig {
    /// Allows an OS image or a release that is lower than the installed one, as for a config to which an administrator
    /// returns.
    pub fn allow_downgrade(&mut self) {
        self.release.get_or_insert_default().may_be_lower = true;
    }

    /// Whether the config contains entries for the account databases.
    pub fn has_account_entries(&self) -> bool {
        let mut users = self.users.iter();
        !self.groups.is_empty()
            || users.any(|(name, user)| user.account.is_some() || user.is_created_for_keys(name))
    }

    /// Returns `paths` and the hard links that are, directly or not, names of one of them.
    pub fn with_hard_links(&self, mut paths: BTreeSet<AbsPath>) -> BTreeSet<AbsPath> {
        let mut names: BTreeMap<&str, Vec<&AbsPath>> = BTreeMap::new();
        for (path, link) in self.links.iter().filter(|(_, link)| link.hard) {
            names.entry(link.target.as_str()).or_default().push(path);
        }
        let mut todo: Vec<AbsPath> = paths.iter().cloned().collect();
        while let Some(path) = todo.pop() {
            for name in names.get(path.as_str()).into_iter().flatten() {
                if paths.insert((*name).clone()) {
                    todo.push((*name).clone());
                }
            }
        }
        paths
    }
}

/// A file. With content the config manages all of it; without, an existing file keeps its content, and its mode or
/// owner if absent. Absent fields are omitted from the canonical form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// The content of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Permission bits, 0–07777. Always set if there is content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The owning user. Always set if there is content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Owner>,
    /// The owning group. Always set if there is content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Owner>,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

/// A directory with its mode and owner, but without its content. An existing directory keeps the attributes that
/// are absent here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Directory {
    /// Permission bits, 0–07777.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The owning user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Owner>,
    /// The owning group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Owner>,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

/// A symbolic link or a hard link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// The target, absolute or relative; of a hard link, the absolute path of the file.
    pub target: String,
    /// Whether this is a hard link to the file at `target`: then mode and owner are the file's. Omitted from the
    /// canonical form if false, so that other configs keep their digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hard: bool,
    /// The owning user.
    pub user: Owner,
    /// The owning group.
    pub group: Owner,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

/// The content of a file: its digest, and the bytes if they are loaded. Cheap to clone.
///
/// Nearly all operations on a config only need digests, so a config read from the store has no bytes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    digest: Digest,
    size: u64,
    #[serde(skip)]
    bytes: Option<Arc<[u8]>>,
}

impl Content {
    /// Stores `bytes` and computes their digest.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            bytes: Some(bytes),
        }
    }

    /// The same content with its bytes; none if the digest of `bytes` differs.
    pub fn with_bytes(&self, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        Some(Self::new(bytes)).filter(|content| content == self)
    }

    /// The bytes, if they are loaded.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// The number of bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The SHA-256 of the bytes.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

/// Contents with equal digests are equal, whether their bytes are loaded or not.
impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Content {}

impl Default for Content {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Never prints the bytes: contents may be secret.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes, {})", self.size, self.digest)
    }
}

/// An owner by number or by name; names are looked up in the root's own databases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Owner {
    /// A numeric id.
    Id(u32),
    /// A name.
    Name(String),
}

impl Owner {
    /// Ignition's default: root.
    pub const ROOT: Self = Self::Id(0);
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A unit name that systemd accepts, such as `chronyd.service` or `getty@.service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitName(String);

/// Why a text is not a unit name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a valid unit name: {why}")]
pub struct BadUnitName {
    given: String,
    why: &'static str,
}

impl UnitName {
    /// Unit types that a unit file may have (systemd.unit(5)); scopes have no files.
    const UNIT_TYPES: [&'static str; 10] = [
        "service",
        "socket",
        "device",
        "mount",
        "automount",
        "swap",
        "target",
        "path",
        "timer",
        "slice",
    ];

    /// Checks length (≤ 255), characters and type as systemd does.
    pub fn new(given: impl Into<String>) -> Result<Self, BadUnitName> {
        let given = given.into();
        match Self::fault(&given) {
            None => Ok(Self(given)),
            Some(why) => Err(BadUnitName { given, why }),
        }
    }

    fn fault(given: &str) -> Option<&'static str> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
        let Some((stem, kind)) = given.rsplit_once('.') else {
            return Some("it has no type such as .service");
        };
        if given.len() > 255 {
            Some("it is longer than 255 bytes")
        } else if !Self::UNIT_TYPES.contains(&kind) {
            Some(
                "its type is none of service, socket, device, mount, automount, swap, target, path, timer, slice",
            )
        } else if stem.is_empty() || stem.starts_with('@') {
            Some("the name before the type is empty")
        } else if !given.chars().all(allowed) {
            Some("it contains a character that systemd does not allow")
        } else {
            None
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `service`, `socket`, …
    pub fn kind(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or_default()
    }

    /// `getty@.service` for `getty@tty1.service` and for itself; none for a plain unit.
    pub fn template(&self) -> Option<Self> {
        let (stem, kind) = self.0.rsplit_once('.')?;
        let (prefix, _) = stem.split_once('@')?;
        Some(Self(format!("{prefix}@.{kind}")))
    }

    /// Whether this is a template itself (`getty@.service`), which cannot be started.
    pub fn is_template(&self) -> bool {
        self.template().as_ref() == Some(self)
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for UnitName {
    type Error = BadUnitName;
    fn try_from(given: String) -> Result<Self, BadUnitName> {
        Self::new(given)
    }
}

impl From<UnitName> for String {
    fn from(name: UnitName) -> Self {
        name.0
    }
}

/// The settings of one unit in a config. Each of them may be absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Unit {
    /// The unit file's text; none leaves the existing file unchanged.
    pub contents: Option<String>,
    /// Drop-ins by file name (`10-x.conf`). An empty text means that the drop-in must not exist.
    pub dropins: BTreeMap<String, String>,
    /// Enable, disable, or (none) apply the presets.
    pub enabled: Option<bool>,
    /// Mask the unit: a link to `/dev/null` in place of the unit file.
    pub mask: bool,
    /// The config contains `mask: false`: a mask below `/etc` is removed. Otherwise a mask stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmask: bool,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

impl Unit {
    /// Whether a mask of the unit is removed without a unit file in its place.
    pub fn lifts_mask(&self) -> bool {
        self.unmask && self.contents.is_none()
    }
}
