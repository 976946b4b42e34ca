//! The parts of a machine config, valid by construction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{Before, DiskLayout, Group, UserAccount};
use crate::{digest::Digest, path::AbsPath};

/// Everything one machine should be, merged from all documents that apply to it.
///
/// Two configs are equal when they ask for the same machine; where an entry was written ([`Origin`])
/// and what the config is called do not count for [`MachineConfig::digest`](super::digest).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineConfig {
    /// The name people see, `rendered-<pool>-<digest>` for a merged one.
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
    /// Users by name. Only what is asked of them, not who they are.
    pub users: BTreeMap<String, User>,
    /// Groups by name. Left out of the canonical form where there are none, so that configs without
    /// them keep their digests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Group>,
    /// Kernel arguments; order and repetition count.
    pub kernel_arguments: Vec<String>,
    /// The OS image by digest; none means "leave the OS alone".
    pub os_image_url: Option<String>,
    /// The image with the packages of OS extensions, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions_image: Option<String>,
    /// Named groups of OS packages.
    pub extensions: Vec<String>,
    /// `realtime`, `64k-pages`; none is the default kernel.
    pub kernel_type: Option<String>,
    /// Whether FIPS mode is asked for. Checked, never changed on a running machine.
    pub fips: bool,
    /// How disks were to be laid out when the machine was installed. Compared, never changed.
    #[serde(default, skip_serializing_if = "DiskLayout::is_empty")]
    pub disk_layout: DiskLayout,
    /// Where image, kernel arguments, kernel type, extensions and FIPS mode are asked for.
    #[serde(skip)]
    pub os_origins: Origins,
    /// What is known of the machine before its first config.
    #[serde(skip)]
    pub before: Before,
    /// The release of the platform that it was rendered for, where a document says so. A note, like the
    /// name: not part of the digest, and not kept.
    #[serde(skip)]
    pub release: Option<Release>,
    /// What a plan warns of, whatever the machine looks like.
    #[serde(skip)]
    pub notes: Notes,
    /// Which entries may replace an object of another kind.
    #[serde(skip)]
    pub overwrite: Overwrite,
}

/// Which entries may replace an object of another kind. A permission, not a part of what is asked for: never
/// part of equality or of the canonical form.
#[derive(Clone, Debug, Default)]
pub enum Overwrite {
    /// The config comes from the store. The machine was on it before, so every entry may.
    #[default]
    Any,
    /// Files and links may, except those at these paths; directories never may.
    Except(BTreeSet<AbsPath>),
}

impl PartialEq for Overwrite {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl MachineConfig {
    /// The same without lines and columns in what it says of its entries: nobody has the text that they count in.
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

/// What a person should know of how a config came about. Never part of equality.
#[derive(Clone, Debug, Default)]
pub struct Notes(pub Vec<String>);

impl PartialEq for Notes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The release that a config belongs to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    /// Such as `4.16.3`.
    pub version: String,
    /// Whether a person allows a lower one than the installed.
    pub may_be_lower: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// Where entries were written, by kind and name. Never part of equality.
#[derive(Clone, Debug, Default)]
pub struct Origins(pub BTreeMap<(EntryKind, String), Origin>);

impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl MachineConfig {
    /// `paths` and the hard links that are, directly or not, other names of one of them.
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

/// Where an entry was written. Never part of equality. Cheap to clone: a plan does it for each entry.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The name of the MachineConfig (or the file's stem for bare Ignition).
    pub config: Option<Arc<str>>,
    /// The file, as the user named it.
    pub file: Option<Arc<str>>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// The field path inside the document.
    pub field: Option<Arc<str>>,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A file. With a content the config owns it whole; without one, an existing file keeps its content, and
/// whatever of mode and owner is absent. Absent fields are left out of the canonical form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// What it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Permission bits, 0–07777. Never absent beside a content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The owning user. Never absent beside a content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Owner>,
    /// The owning group. Never absent beside a content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Owner>,
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

/// A directory with its mode and owner; what lies in it is not owned by it. An existing directory keeps
/// whatever is absent here.
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
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

/// A symbolic link, or another name of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// The text of the link, absolute or relative; of a hard link, the absolute path of the file.
    pub target: String,
    /// Another name of the file at `target` instead of a symbolic link: then mode and owner are the
    /// file's. Left out of the canonical form where it is not, so that other configs keep their digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hard: bool,
    /// The owning user.
    pub user: Owner,
    /// The owning group.
    pub group: Owner,
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

/// What a file holds, by its digest, with the bytes where they are at hand. Cheap to clone.
///
/// Nearly every question about a config is answered by digests, so one that is read from the store comes
/// without bytes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    digest: Digest,
    size: u64,
    #[serde(skip)]
    bytes: Option<Arc<[u8]>>,
}

impl Content {
    /// Keeps `bytes` and computes their digest.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            bytes: Some(bytes),
        }
    }

    /// The same content with its bytes; none when these are others.
    pub fn with_bytes(&self, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        Some(Self::new(bytes)).filter(|content| content == self)
    }

    /// The bytes, where they are at hand.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// How many bytes it is.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Their SHA-256.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

/// Bytes at hand or not, equal digests mean equal contents.
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

/// Never the bytes: contents may be secret.
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

/// A unit name that systemd would load, such as `chronyd.service` or `getty@.service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitName(String);

/// Why a text is no unit name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no unit name: {why}")]
pub struct BadUnitName {
    given: String,
    why: &'static str,
}

impl UnitName {
    /// Unit types that a unit file may have (systemd.unit(5)); scopes have no files.
    const TYPES: [&'static str; 10] = [
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
        } else if !Self::TYPES.contains(&kind) {
            Some(
                "its type is none of service, socket, device, mount, automount, swap, target, path, timer, slice",
            )
        } else if stem.is_empty() || stem.starts_with('@') {
            Some("nothing stands before the type")
        } else if !given.chars().all(allowed) {
            Some("it holds a character that systemd does not allow")
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

/// What the config says of one unit. Each part may be left unsaid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Unit {
    /// The unit file's text; none leaves the file that is there alone.
    pub contents: Option<String>,
    /// Drop-ins by file name (`10-x.conf`). Empty text means "no such drop-in".
    pub dropins: BTreeMap<String, String>,
    /// Enable, disable, or (none) follow the presets.
    pub enabled: Option<bool>,
    /// Mask it: a link to `/dev/null` in place of the unit file.
    pub mask: bool,
    /// The config says `mask: false`: a mask below `/etc` is lifted. Without it a mask stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmask: bool,
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

impl Unit {
    /// Whether a mask of the unit goes, and nothing else takes its place.
    pub fn lifts_mask(&self) -> bool {
        self.unmask && self.contents.is_none()
    }
}

/// What the config asks of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct User {
    /// Public keys, one line each, in the order given.
    pub ssh_authorized_keys: Vec<String>,
    /// What is asked beyond the keys; none leaves the user's entries alone, and the user must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<UserAccount>,
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

/// What kind of thing a config entry or a change is about. The names of `plan -o json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A unit file.
    Unit,
    /// A drop-in of a unit.
    DropIn,
    /// The links that enable a unit.
    Enablement,
    /// The mask of a unit.
    Mask,
    /// A user.
    User,
    /// A group.
    Group,
    /// The keys of a user.
    SSHKey,
    /// A kernel argument.
    KernelArgument,
    /// The OS image.
    OSImage,
    /// An OS extension.
    Extension,
}
