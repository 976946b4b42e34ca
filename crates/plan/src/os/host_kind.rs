//! Describes the kind of host, and which parts of its operating system can be changed.

use std::{collections::BTreeSet, fmt};

use super::{ImageRef, OsPackages, OsPart};
use machinist_ignition::{KernelCommandLine, OsConfig};

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
    /// Whole trees from container images, with bootc.
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
    /// A deployment may have several equal kernel arguments.
    pub repeated_arguments: bool,
    /// The kernel type can be changed.
    pub kernel_type: bool,
    /// Extensions (named groups of OS packages) can be changed.
    pub extensions: bool,
    /// Why there is no provider although there is one for this kind of host.
    pub obstacle: Option<ProviderObstacle>,
}

/// Why the provider of a kind of host cannot be used on one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderObstacle {
    /// The root is a directory on which no kernel runs.
    OfflineRoot,
    /// There is no GRUB configuration as Debian or Fedora write it, and systemd-boot has not started the kernel.
    NoGrub,
    /// There is no program to write GRUB's configuration.
    NoGrubMkconfig,
    /// The running kernel was not started by GRUB.
    OtherLoader,
    /// GRUB cannot write to the file system of /boot/grub.
    GrubFileSystem,
    /// GRUB cannot write to the block device of /boot/grub.
    GrubBlockDevice,
    /// The file system of GRUB's configuration is mounted read-only.
    GrubReadOnly,
    /// GRUB loads only files that are signed.
    GrubSignatures,
    /// The menu of the boot loader waits for a key.
    MenuWaits,
    /// Reboots bypass the boot loader.
    Kexec,
    /// systemd-boot lacks features.
    OldSystemdBoot,
    /// The program that sets the EFI variables of systemd-boot is missing.
    NoBootctl,
    /// The file system of systemd-boot's entries is mounted read-only.
    EntriesReadOnly,
    /// The menu of systemd-boot has entries whose arguments are in the kernel image.
    UnifiedKernelImage,
    /// The default entry of systemd-boot is not as kernel-install writes it.
    UnusualBootEntry,
    /// ostree cannot unlock a staged deployment.
    OldOstree,
    /// The menu of GRUB is not the one that libostree writes.
    OtherMenu,
    /// GRUB asks for a password before it starts the default deployment.
    GrubPassword,
    /// The root file system is a composefs image without OSTree.
    Composefs,
}

impl fmt::Display for ProviderObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfflineRoot => "an offline root (--root) has no boot loader; run machinist on the host",
            Self::NoGrub => {
                "systemd-boot has not started the kernel, and there is neither /boot/grub/grub.cfg nor a \
                 /boot/grub2/grub.cfg with blscfg"
            }
            Self::NoGrubMkconfig => "grub-mkconfig is not installed",
            Self::OtherLoader => {
                "the running kernel was not started by GRUB (no BOOT_IMAGE= in /proc/cmdline)"
            }
            Self::GrubFileSystem => {
                "GRUB can write grubenv in /boot only on ext2, ext3, ext4, xfs or FAT"
            }
            Self::GrubBlockDevice => {
                "GRUB cannot write grubenv in /boot on LVM, RAID or an encrypted device"
            }
            Self::GrubReadOnly => {
                "the file system of GRUB's configuration in /boot is mounted read-only"
            }
            Self::GrubSignatures => {
                "GRUB checks the signatures of its files (grub.cfg.sig), and machinist has no key to sign them"
            }
            Self::MenuWaits => {
                "the boot menu waits for a key, at least after a failed boot (GRUB_TIMEOUT or GRUB_RECORDFAIL_TIMEOUT is -1 or \
                 no number; timeout menu-force of systemd-boot, in loader.conf or by bootctl set-timeout)"
            }
            Self::OldSystemdBoot => {
                "systemd-boot is older than version 250 (no one-shot entries or no sort keys)"
            }
            Self::NoBootctl => "bootctl is not installed",
            Self::EntriesReadOnly => {
                "the file system of systemd-boot's entries (loader/entries) is mounted read-only"
            }
            Self::UnifiedKernelImage => {
                "unified kernel images (EFI/Linux/*.efi) contain their kernel arguments"
            }
            Self::UnusualBootEntry => {
                "the default entry of systemd-boot is unreadable or lacks linux, sort-key or version"
            }
            Self::OldOstree => {
                "ostree is older than version 2023.8 (no ostree admin lock-finalization)"
            }
            Self::OtherMenu => {
                "the deployments cannot be read: GRUB's menu does not have them, a file of GRUB is unreadable, or the \
                 root file system is no deployment"
            }
            Self::GrubPassword => {
                "GRUB asks for a password before it boots a deployment (superusers without --unrestricted)"
            }
            Self::Composefs => {
                "the root file system is a composefs image without OSTree, whose deployments cannot be tried"
            }
            Self::Kexec => "reboots bypass the boot loader (LOAD_KEXEC=true in /etc/default/kexec)",
        })
    }
}

impl OsCapabilities {
    /// A host without a built-in provider.
    pub const fn without_provider(host: HostKind) -> Self {
        Self {
            host,
            image: false,
            kernel_arguments: false,
            repeated_arguments: false,
            kernel_type: false,
            extensions: false,
            obstacle: None,
        }
    }

    /// Whether there is a provider.
    pub const fn has_provider(self) -> bool {
        self.image || self.kernel_arguments || self.kernel_type || self.extensions
    }

    /// Why a part cannot be changed here, as a sentence without a final dot.
    pub(super) fn missing(self, part: OsPart) -> String {
        let what = part.words();
        match (self.host, self.has_provider()) {
            (host, false) if let Some(obstacle) = self.obstacle => {
                format!("cannot change {what} on {host}: {obstacle}")
            }
            (HostKind::Unknown, false) => format!("no provider on this host can change {what}"),
            (host, false) => format!("cannot change {what} on {host}: no built-in provider"),
            (HostKind::Bootc | HostKind::RpmOstree | HostKind::Ostree, true)
                if let Some(program) = part.program() =>
            {
                format!("cannot change {what}: {program} is not installed")
            }
            (host, true) => {
                format!("cannot change {what} on {host}: not supported by its provider")
            }
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
    /// The extensions of the booted deployment, as reported by the provider; `None` without one.
    pub extensions: Option<BTreeSet<String>>,
    /// Those of them whose packages machinist has requested. All others belong to the host, and stay.
    pub own_extensions: BTreeSet<String>,
    /// Packages that another daemon has added, whose work machinist continues: they count as requested by machinist. Those
    /// that its kernel replaces follow a `-`.
    pub adopted_packages: BTreeSet<String>,
    /// Whether machinist has requested the packages of the booted deployment's kernel type. Otherwise they belong to the
    /// host, and stay.
    pub has_own_kernel_type: bool,
    /// Whether the running kernel is in FIPS mode.
    pub fips: bool,
    /// The running kernel's arguments that machinist has appended. All others belong to the host, and stay.
    pub own_arguments: KernelCommandLine,
}

/// What an update changes in the booted deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsUpdate {
    /// The new image; `None` keeps that of the booted deployment.
    pub image: Option<ImageRef>,
    /// Kernel arguments to remove, all of which machinist has appended. Each entry removes the last equal argument.
    pub remove_arguments: KernelCommandLine,
    /// Kernel arguments to append: all that machinist then has in the deployment.
    pub append_arguments: KernelCommandLine,
    /// The packages besides those of the image; `None` if the provider cannot change them.
    pub packages: Option<OsPackages>,
}
