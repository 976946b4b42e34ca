//! What kind of host it is, and what can be changed of its operating system.

use std::fmt;

use crate::machine_config::Declared;

/// How the operating system of a host gets onto it, and so who could change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostKind {
    /// Nothing says: a sandbox, an empty directory, a distribution that is not known here.
    #[default]
    Unknown,
    /// Packages of dpkg or rpm, one by one.
    Packages,
    /// Whole trees in an OSTree repository, with rpm-ostree beside them.
    RpmOstree,
    /// Whole trees from container images, with bootc and without rpm-ostree.
    Bootc,
    /// Whole trees in an OSTree repository, with neither.
    Ostree,
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "a host of an unknown kind",
            Self::Packages => "a package-based host",
            Self::RpmOstree => "an rpm-ostree host",
            Self::Bootc => "a bootc host",
            Self::Ostree => "an OSTree host without rpm-ostree and bootc",
        })
    }
}

/// What the provider of a host can change of its operating system. What it cannot is refused by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsCapabilities {
    /// The kind of host; refusals say it.
    pub host: HostKind,
    /// The OS image.
    pub image: bool,
    /// Arguments of the kernel.
    pub kernel_arguments: bool,
    /// The kernel's type.
    pub kernel_type: bool,
    /// Named groups of OS packages.
    pub extensions: bool,
}

impl OsCapabilities {
    /// A host that no provider is built in for.
    pub const fn without_provider(host: HostKind) -> Self {
        Self {
            host,
            image: false,
            kernel_arguments: false,
            kernel_type: false,
            extensions: false,
        }
    }

    /// Whether a provider is there at all.
    pub const fn has_provider(self) -> bool {
        self.image || self.kernel_arguments || self.kernel_type || self.extensions
    }

    /// Why `what` cannot be changed here, as a sentence without a final dot.
    pub(super) fn missing(self, what: &str) -> String {
        match (self.host, self.has_provider()) {
            (HostKind::Unknown, false) => format!("no provider on this host can change {what}"),
            (host, false) => format!(
                "this is {host}, and no provider for it is built in that could change {what}"
            ),
            (host, true) => format!("this is {host}, whose provider cannot change {what}"),
        }
    }
}

/// What a config is compared with where only its changes are judged: image, kernel, extensions, disks.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Base {
    /// The config that the machine is on.
    #[default]
    Config,
    /// It is on none of ours, but on this one of another daemon.
    Declared(Box<Declared>),
    /// Nobody can tell.
    Unknown,
}

impl Base {
    /// Whether it says how disks were laid out.
    pub(super) fn has_disk_layout(&self) -> bool {
        match self {
            Self::Config => true,
            Self::Declared(declared) => declared.has_disk_layout,
            Self::Unknown => false,
        }
    }
}

/// What is known of the operating system that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsFacts {
    /// The image of the booted deployment, as its provider says; none without a provider.
    pub image: Option<String>,
    /// The version of the booted image, as its provider says.
    pub version: Option<String>,
    /// The version of the image that the config asks for, where it was fetched already.
    pub offered: Option<String>,
    /// The release of the platform that the OS says it belongs to (`OPENSHIFT_VERSION` of os-release).
    pub release: Option<String>,
    /// The type of the running kernel; none where the root has no running kernel.
    pub kernel_type: Option<String>,
    /// Whether the running kernel is in FIPS mode.
    pub fips: bool,
}
