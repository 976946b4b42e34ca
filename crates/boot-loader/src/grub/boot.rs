//! What a boot starts, and why it would not.

use machinist_ignition::KernelCommandLine;

use super::{BlockError, kernel_command_line, words::ScriptError};

/// The files that GRUB sees, by their paths on the disk.
pub trait GrubFiles {
    /// The text of a file; none if it is missing.
    fn text(&self, path: &str) -> Option<String>;

    /// The size of a file in bytes; none if it is missing.
    fn size(&self, path: &str) -> Option<u64>;

    /// Whether this is a directory.
    fn is_directory(&self, path: &str) -> bool;

    /// The names in a directory, in any order; none if it is missing.
    fn list(&self, path: &str) -> Vec<String>;
}

/// What a boot starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelBoot {
    /// The entry: its name, below the names of its menus.
    pub entry: Vec<String>,
    /// The path of the kernel.
    pub kernel: String,
    /// The command line that the kernel gets.
    pub command_line: String,
    /// The paths of the initial RAM disks.
    pub initrds: Vec<String>,
    /// Whether grub.cfg tries a boot without an initial RAM disk first, and appends `panic=-1` to its arguments
    /// (GRUB_FORCE_PARTUUID of Ubuntu).
    pub tries_without_initrd: bool,
}

impl KernelBoot {
    /// The arguments of the command line, without those that GRUB adds.
    pub fn arguments(&self) -> KernelCommandLine {
        kernel_command_line(&self.command_line, self.tries_without_initrd)
    }
}

/// Why a boot would not start a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// A file is missing.
    #[error("{0} does not exist")]
    Missing(String),
    /// A file is no script.
    #[error("GRUB cannot read {path}")]
    Script {
        /// The file.
        path: String,
        /// The fault.
        source: ScriptError,
    },
    /// The environment block is not readable.
    #[error("the environment block: {0}")]
    Block(#[from] BlockError),
    /// A file is missing, and the entry restarts the machine for that reason.
    #[error("{0} does not exist, so that GRUB restarts the machine")]
    Restarts(String),
    /// GRUB asks for a password before it enters the default entry.
    #[error(
        "GRUB asks for a password before it boots {0:?}: superusers is set, and the entry is not --unrestricted or has grub_users"
    )]
    Password(String),
    /// There is no menu entry.
    #[error("no menu entry")]
    NoEntry,
    /// The entry starts no kernel.
    #[error("the menu entry {0:?} starts no kernel")]
    NoKernel(String),
    /// An entry of the Boot Loader Specification that versions of GRUB read differently.
    #[error("{0}: {1}")]
    BlsEntry(String, &'static str),
    /// A command that is not simulated makes the menu.
    #[error("the command {0} is not simulated")]
    Unsupported(String),
    /// It does not end.
    #[error("the scripts do not end")]
    Endless,
}

/// A path without the device in front, such as `(hd0,gpt2)`, and without components `..`, as in `${prefix}/../loader`. What
/// comes before these must not be a link.
pub(super) fn on_disk(path: &str) -> String {
    let device = path.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let path = device.map_or(path, |(_, path)| path);
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Files by the paths of scripts.
pub(super) struct OnDisk<'f>(pub(super) &'f dyn GrubFiles);

impl GrubFiles for OnDisk<'_> {
    fn text(&self, path: &str) -> Option<String> {
        self.0.text(&on_disk(path))
    }

    fn size(&self, path: &str) -> Option<u64> {
        self.0.size(&on_disk(path))
    }

    fn is_directory(&self, path: &str) -> bool {
        self.0.is_directory(&on_disk(path))
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.0.list(&on_disk(path))
    }
}
