//! Describes the kind of host, and which parts of its operating system can be changed.

use std::fmt;

use machinist_ignition::OsConfig;

/// How the operating system of a host is installed and updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostKind {
    /// Not detected: a sandbox, an empty directory, an unsupported distribution.
    #[default]
    Unknown,
    /// Single packages with dpkg or rpm.
    Packages,
    /// Whole trees in an OSTree repository, with rpm-ostree.
    RpmOstree,
    /// Whole trees from container images, with bootc and without rpm-ostree.
    Bootc,
    /// Whole trees in an OSTree repository, with neither.
    Ostree,
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "a host of unknown type",
            Self::Packages => "a package-based host",
            Self::RpmOstree => "an rpm-ostree host",
            Self::Bootc => "a bootc host",
            Self::Ostree => "an OSTree host without rpm-ostree and bootc",
        })
    }
}

/// What the host's provider can change of its operating system. The plan refuses everything else
/// with a specific reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsCapabilities {
    /// The kind of host, for refusal messages.
    pub host: HostKind,
    /// The OS image can be changed.
    pub image: bool,
    /// Kernel arguments can be changed.
    pub kernel_arguments: bool,
    /// The kernel type can be changed.
    pub kernel_type: bool,
    /// Extensions (named groups of OS packages) can be changed.
    pub extensions: bool,
}

impl OsCapabilities {
    /// A host without a built-in provider.
    pub const fn without_provider(host: HostKind) -> Self {
        Self {
            host,
            image: false,
            kernel_arguments: false,
            kernel_type: false,
            extensions: false,
        }
    }

    /// Whether there is a provider.
    pub const fn has_provider(self) -> bool {
        self.image || self.kernel_arguments || self.kernel_type || self.extensions
    }

    /// Why `what` cannot be changed here, as a sentence without a final dot.
    pub(super) fn missing(self, what: &str) -> String {
        match (self.host, self.has_provider()) {
            (HostKind::Unknown, false) => format!("no provider on this host can change {what}"),
            (host, false) => format!("cannot change {what} on {host}: no built-in provider"),
            (host, true) => format!(
                "cannot change {what} on {host}: not supported by its \
                 provider"
            ),
        }
    }
}

/// The config to compare with where only changes are judged: image, kernel, extensions, disks.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum BaseConfig {
    /// The config that machinist has applied.
    #[default]
    Config,
    /// No config of machinist's, but this one of another daemon.
    Declared(Box<OsConfig>),
    /// Not known.
    Unknown,
}

impl BaseConfig {
    /// Whether the base contains the disk layout.
    pub(super) fn has_disk_layout(&self) -> bool {
        match self {
            Self::Config => true,
            Self::Declared(declared) => declared.has_disk_layout,
            Self::Unknown => false,
        }
    }
}

/// Facts about the running operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsFacts {
    /// The image of the booted deployment, as reported by the provider; none without a provider.
    pub image: Option<String>,
    /// The version of the booted image, as reported by the provider.
    pub version: Option<String>,
    /// The version of the desired image, if it has been fetched already.
    pub offered: Option<String>,
    /// The platform release in os-release (`OPENSHIFT_VERSION`).
    pub release: Option<String>,
    /// The type of the running kernel; none where the root has no running kernel.
    pub kernel_type: Option<String>,
    /// Whether the running kernel is in FIPS mode.
    pub fips: bool,
}
