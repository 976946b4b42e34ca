//! The packages of extensions and kernel types, as the Machine Config Operator defines them.

use std::{collections::BTreeSet, fmt};

use super::ImageRef;

/// The packages of each extension.
const EXTENSIONS: &[(&str, &[&str])] = &[
    ("ipsec", &["NetworkManager-libreswan", "libreswan"]),
    ("kerberos", &["krb5-workstation", "libkadm5"]),
    ("kernel-devel", &["kernel-devel", "kernel-headers"]),
    ("sandboxed-containers", &["kata-containers"]),
    ("sysstat", &["sysstat"]),
    ("two-node-ha", &["fence-agents-all", "pacemaker", "pcs"]),
    ("usbguard", &["usbguard"]),
    ("wasm", &["crun-wasm"]),
];

/// Packages that only some releases of an extension have.
const OPTIONAL_PACKAGES: &[(&str, &[&str])] = &[("ipsec", &["openvswitch3.5-ipsec"])];

fn packages_in(
    table: &[(&'static str, &'static [&'static str])],
    extension: &str,
) -> Option<&'static [&'static str]> {
    let found = table.iter().find(|(name, _)| *name == extension);
    found.map(|(_, packages)| *packages)
}

/// The packages of an extension; `None` if there is no such extension.
pub fn extension_packages(extension: &str) -> Option<&'static [&'static str]> {
    packages_in(EXTENSIONS, extension)
}

/// The packages of an extension that only some releases have.
pub fn optional_extension_packages(extension: &str) -> &'static [&'static str] {
    packages_in(OPTIONAL_PACKAGES, extension).unwrap_or_default()
}

/// The names of all extensions.
pub fn extension_names() -> impl Iterator<Item = &'static str> {
    EXTENSIONS.iter().map(|(name, _)| *name)
}

/// The kernel build of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelType {
    /// The kernel of the image.
    #[default]
    Default,
    /// `PREEMPT_RT`.
    Realtime,
    /// A kernel with 64 KiB pages, for aarch64.
    LargePages,
}

impl KernelType {
    /// Parses `kernelType` of a config.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "default" => Some(Self::Default),
            "realtime" => Some(Self::Realtime),
            "64k-pages" => Some(Self::LargePages),
            _ => None,
        }
    }

    /// The packages of this kernel; none for the kernel of the image. The package `kernel-rt` is left out because it
    /// requires packages that a node does not need.
    pub const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Default => &[],
            Self::Realtime => &[
                "kernel-rt-core",
                "kernel-rt-modules",
                "kernel-rt-modules-extra",
            ],
            Self::LargePages => &[
                "kernel-64k-core",
                "kernel-64k-modules",
                "kernel-64k-modules-core",
                "kernel-64k-modules-extra",
            ],
        }
    }

    /// Packages that older releases of the Machine Config Operator add as well.
    pub const fn former_packages(self) -> &'static [&'static str] {
        match self {
            Self::Default | Self::LargePages => &[],
            Self::Realtime => &["kernel-rt-kvm"],
        }
    }

    /// The packages of the image that another kernel replaces.
    pub const fn replaced_packages(self) -> &'static [&'static str] {
        match self {
            Self::Default => &[],
            Self::Realtime | Self::LargePages => &[
                "kernel",
                "kernel-core",
                "kernel-modules",
                "kernel-modules-core",
                "kernel-modules-extra",
            ],
        }
    }
}

impl fmt::Display for KernelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Realtime => "realtime",
            Self::LargePages => "64k-pages",
        })
    }
}

/// The packages that a deployment has besides those of its image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsPackages {
    /// The kernel.
    pub kernel_type: KernelType,
    /// All extensions that the config has.
    pub extensions: BTreeSet<String>,
    /// The image with the repository of the packages; `None` uses the repositories of the host.
    pub repository: Option<ImageRef>,
    /// Packages that another daemon has added, whose work machinist continues: they are machinist's as well.
    pub adopted: BTreeSet<String>,
}

impl OsPackages {
    /// The names of all packages, also of those that only some releases have or had.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let extensions = self.extensions.iter().flat_map(|extension| {
            let needed = extension_packages(extension).unwrap_or_default();
            needed.iter().chain(optional_extension_packages(extension))
        });
        let kernel = self.kernel_type.packages().iter();
        kernel
            .chain(self.kernel_type.former_packages())
            .chain(extensions)
            .map(|name| (*name).to_owned())
            .collect()
    }

    /// The packages of the image that are removed.
    pub(super) const fn replaced(&self) -> &'static [&'static str] {
        self.kernel_type.replaced_packages()
    }

    /// Whether the deployment has only the packages of its image.
    pub fn is_empty(&self) -> bool {
        self.kernel_type == KernelType::Default && self.extensions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_kernel_are_machinists_after_an_adoption_of_any_release() {
        let realtime = OsPackages {
            kernel_type: KernelType::Realtime,
            ..OsPackages::default()
        };
        let names = realtime.names();
        for name in ["kernel-rt-core", "kernel-rt-kvm"] {
            assert!(names.contains(name), "{name}");
        }
    }
}
