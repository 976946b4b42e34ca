//! The files of the host that systemd-boot reads, and those that it would read after a change.

use std::collections::BTreeMap;

use super::error::SystemdBootError;
use crate::os::{
    boot_entry::{kept_file, kept_number},
    grub::{mount_of, mounts},
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::systemd_boot::{LoaderFiles, MenuEntry};
use machinist_rootfs::{DirEntry, Root};

/// Where the EFI system partition and the partition XBOOTLDR are mounted (bootctl(1)).
const TOPS: [&str; 3] = ["/efi", "/boot", "/boot/efi"];

/// Maximum length of a menu entry.
const MAX_ENTRY_BYTES: u64 = 64 << 10;

/// The entry of a trial.
pub(super) const TRIAL_FILE: &str = "machinist-trial.conf";

/// A menu entry.
#[derive(Clone)]
struct EntryFile {
    /// The mount point of its file system.
    top: AbsPath,
    text: String,
}

/// The files of the host, some of them replaced by planned ones.
#[derive(Clone)]
pub(super) struct MenuFiles {
    root: Root,
    config: Option<String>,
    entries: BTreeMap<String, EntryFile>,
    /// The mount point of the default entry, to which new ones are written.
    top: Option<AbsPath>,
}

fn path(text: String) -> Option<AbsPath> {
    AbsPath::new(text).ok()
}

impl MenuFiles {
    /// The last value of a key in `loader.conf`.
    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        let lines = self.config.as_deref().unwrap_or_default().lines();
        let mut values = lines.filter_map(|line| line.trim().strip_prefix(key));
        let value = values.rfind(|value| value.starts_with([' ', '\t']))?;
        Some(value.trim())
    }

    pub(super) fn read(root: &Root) -> Result<Self, SystemdBootError> {
        let mut files = Self {
            root: root.clone(),
            config: None,
            entries: BTreeMap::new(),
            top: None,
        };
        for top in TOPS.into_iter().filter_map(|top| path(top.to_owned())) {
            let (Some(directory), Some(config)) = (
                path(format!("{top}/loader/entries")),
                path(format!("{top}/loader/loader.conf")),
            ) else {
                continue;
            };
            // A look below the mount point triggers an automount.
            if !root.is_dir(&directory)? || !is_firmware_mount(root, &top) {
                continue;
            }
            if files.config.is_none() && root.stat(&config)?.is_some() {
                files.config = Some(read_text(root, &config)?);
            }
            for DirEntry { name, .. } in root.list(&directory)? {
                let is_entry = name.ends_with(".conf") && !name.starts_with('.');
                let file = directory.join(&name).ok().filter(|_| is_entry);
                if let Some(file) = file {
                    let text = read_text(root, &file)?;
                    let top = top.clone();
                    files.entries.insert(name, EntryFile { top, text });
                }
            }
        }
        Ok(files)
    }

    /// New entries are written beside this one.
    pub(super) fn beside(&mut self, file: &str) {
        self.top = self.entries.get(file).map(|entry| entry.top.clone());
    }

    /// The text of an entry.
    pub(super) fn text(&self, file: &str) -> Option<&str> {
        self.entries.get(file).map(|entry| entry.text.as_str())
    }

    /// The numbers of the entries of kept deployments.
    fn kept_numbers(&self) -> impl Iterator<Item = u32> {
        self.entries.keys().filter_map(|file| kept_number(file))
    }

    /// The number of the newest entry of a kept deployment.
    pub(super) fn newest_kept(&self) -> Option<u32> {
        self.kept_numbers().max()
    }

    /// The entry of the trial, and those of earlier kept deployments.
    pub(super) fn leftovers(&self) -> Vec<AbsPath> {
        let newest = self.newest_kept();
        let older = self.kept_numbers().filter(|number| Some(*number) != newest);
        let names = older.map(kept_file).chain([TRIAL_FILE.to_owned()]);
        names.filter_map(|name| self.path_of(&name)).collect()
    }

    fn path_of(&self, file: &str) -> Option<AbsPath> {
        let entry = self.entries.get(file)?;
        path(format!("{}/loader/entries/{file}", entry.top))
    }

    /// The files with this entry.
    pub(super) fn with(&self, file: &str, text: &str) -> Self {
        let mut files = self.clone();
        if let Some(top) = self.top.clone() {
            let text = text.to_owned();
            files
                .entries
                .insert(file.to_owned(), EntryFile { top, text });
        }
        files
    }

    /// The files without this entry.
    pub(super) fn without(&self, file: &str) -> Self {
        let mut files = self.clone();
        files.entries.remove(file);
        files
    }

    /// Removes an entry durably, which changes one directory.
    pub(super) fn remove(&self, root: &Root, file: &str) -> Result<(), SystemdBootError> {
        let at = self.path_of(file).ok_or(SystemdBootError::NoEntry)?;
        root.remove_file(&at)?;
        Ok(root.sync_point(&at)?.sync()?)
    }

    /// Writes an entry durably.
    pub(super) fn write(
        &self,
        root: &Root,
        file: &str,
        text: &str,
    ) -> Result<(), SystemdBootError> {
        let top = self.top.as_ref().ok_or(SystemdBootError::NoEntry)?;
        let directory = path(format!("{top}/loader/entries")).ok_or(SystemdBootError::NoEntry)?;
        let at = directory
            .join(file)
            .map_err(|_| SystemdBootError::NoEntry)?;
        root.replace(&at, text.as_bytes(), 0o600)?;
        Ok(root.sync_point(&directory)?.sync()?)
    }

    /// Whether the kernel and the initial RAM disks of an entry exist.
    pub(super) fn is_complete(&self, entry: &MenuEntry) -> bool {
        let mut initrds = entry.initrds.iter();
        self.has_kernel(entry) && initrds.all(|initrd| self.has_file(entry, initrd))
    }

    /// Whether a file that an entry names exists in its file system.
    fn has_file(&self, entry: &MenuEntry, file: &str) -> bool {
        let top = self.entries.get(&entry.file).map(|entry| &entry.top);
        let at = top.and_then(|top| {
            let file = file.replace('\\', "/");
            path(format!("{top}/{}", file.trim_start_matches('/')))
        });
        at.is_some_and(|at| matches!(self.root.stat(&at), Ok(Some(_))))
    }

    /// Whether the file system to which new entries are written is mounted read-only.
    pub(super) fn is_read_only(&self) -> bool {
        let mounts = mounts(&self.root);
        let mount = self
            .top
            .as_ref()
            .and_then(|top| mount_of(&mounts, top.as_str()));
        mount.is_some_and(|mount| mount.is_read_only)
    }

    /// Whether there is a unified kernel image, which systemd-boot adds to the menu. A directory that cannot be read may
    /// have one.
    pub(super) fn has_unified_kernel(root: &Root) -> bool {
        let mut directories = TOPS
            .iter()
            .filter_map(|top| path(format!("{top}/EFI/Linux")));
        let is_image = |entry: &DirEntry| entry.name.to_ascii_lowercase().ends_with(".efi");
        directories.any(|directory| match root.list(&directory) {
            Ok(entries) => entries.iter().any(is_image),
            Err(error) => !error.is_absent(),
        })
    }
}

/// Whether a file system that firmware can read is mounted there. kernel-install writes entries that no boot loader
/// reads to a directory of the root file system if it finds no partition for them.
fn is_firmware_mount(root: &Root, top: &AbsPath) -> bool {
    let mounts = mounts(root);
    mount_of(&mounts, top.as_str()).is_some_and(|mount| mount.fs_type == "vfat")
}

fn read_text(root: &Root, path: &AbsPath) -> Result<String, SystemdBootError> {
    let bytes = root.read(path, MAX_ENTRY_BYTES)?;
    String::from_utf8(bytes).map_err(|_| SystemdBootError::NotUtf8(path.clone()))
}

impl LoaderFiles for MenuFiles {
    fn loader_config(&self) -> Option<String> {
        self.config.clone()
    }

    fn entries(&self) -> Vec<(String, String)> {
        let all = self.entries.iter();
        all.map(|(file, entry)| (file.clone(), entry.text.clone()))
            .collect()
    }

    fn has_kernel(&self, entry: &MenuEntry) -> bool {
        let kernel = entry.kernel.as_ref();
        kernel.is_some_and(|kernel| self.has_file(entry, kernel))
    }
}
