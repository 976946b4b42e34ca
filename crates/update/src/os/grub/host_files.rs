//! The files of the host that GRUB reads, and those that it would read after a change.

use std::collections::{BTreeMap, BTreeSet};

use super::error::GrubError;
use crate::os::host_detection::is_there;
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::{BootError, GrubFiles};
use machinist_rootfs::{FileKind, Root};

/// The directories of GRUB's configuration: of Debian, and of Fedora.
const DIRECTORIES: [&str; 2] = ["/boot/grub", "/boot/grub2"];

/// Maximum length of a configuration file of GRUB. One with hundreds of kernels has a megabyte.
pub(super) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The directory of GRUB's configuration on this host: the first one that has it.
pub(in crate::os) fn grub_directory(root: &Root) -> &'static str {
    let [debian, _] = DIRECTORIES;
    let has_config = |directory: &&str| is_there(root, &format!("{directory}/grub.cfg"));
    DIRECTORIES.into_iter().find(has_config).unwrap_or(debian)
}

/// A file in the directory of GRUB's configuration.
pub(in crate::os) fn in_grub_directory(root: &Root, name: &str) -> String {
    format!("{}/{name}", grub_directory(root))
}

pub(super) fn path(path: &str) -> Result<AbsPath, GrubError> {
    AbsPath::new(path).map_err(|_| GrubError::Boot(BootError::Missing(path.to_owned())))
}

/// The files of the host, some of them replaced by planned texts.
#[derive(Clone)]
pub(in crate::os) struct HostFiles<'r> {
    root: &'r Root,
    directory: &'static str,
    /// Planned texts by path; `None` for a file that is removed.
    planned: BTreeMap<String, Option<String>>,
}

impl<'r> HostFiles<'r> {
    pub(in crate::os) fn new(root: &'r Root) -> Self {
        Self {
            root,
            directory: grub_directory(root),
            planned: BTreeMap::new(),
        }
    }

    /// The files with this text in place of that at `path`.
    pub(in crate::os) fn with(mut self, path: &str, text: Option<String>) -> Self {
        self.planned.insert(path.to_owned(), text);
        self
    }

    /// The directory of GRUB's configuration.
    pub(in crate::os) const fn directory(&self) -> &'static str {
        self.directory
    }

    /// The files with this text in place of that file in the directory of GRUB's configuration.
    pub(in crate::os) fn with_config(self, name: &str, text: Option<String>) -> Self {
        let path = format!("{}/{name}", self.directory);
        self.with(&path, text)
    }

    /// The planned text of a file; the outer `None` if it is not planned.
    fn planned(&self, path: &str) -> Option<&Option<String>> {
        let mut places = Self::places(path);
        places.find_map(|place| self.planned.get(place.as_str()))
    }

    /// The paths at which a file may be: where /boot is a file system of its own, GRUB's paths begin there.
    fn places(path: &str) -> impl Iterator<Item = AbsPath> {
        let places = [path.to_owned(), format!("/boot{path}")];
        places
            .into_iter()
            .filter_map(|path| AbsPath::new(path).ok())
    }
}

impl GrubFiles for HostFiles<'_> {
    fn text(&self, path: &str) -> Option<String> {
        if let Some(planned) = self.planned(path) {
            return planned.clone();
        }
        let mut texts = Self::places(path).map(|path| self.root.read(&path, MAX_CONFIG_BYTES));
        let bytes = texts.find_map(Result::ok)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn size(&self, path: &str) -> Option<u64> {
        if let Some(planned) = self.planned(path) {
            return planned.as_ref().map(|text| text.len() as u64);
        }
        let mut stats = Self::places(path).filter_map(|path| {
            let real = self.root.canonical(&path).unwrap_or(path);
            self.root.stat(&real).ok().flatten()
        });
        let file = stats.find(|stat| stat.kind == FileKind::File)?;
        Some(file.size)
    }

    fn is_directory(&self, path: &str) -> bool {
        Self::places(path).any(|path| self.root.is_dir(&path).unwrap_or_default())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let mut directories = Self::places(path).map(|path| self.root.list(&path));
        let entries = directories.find_map(Result::ok).unwrap_or_default();
        let mut names: BTreeSet<String> = entries.into_iter().map(|entry| entry.name).collect();
        for (file, text) in &self.planned {
            let file = AbsPath::new(file).ok();
            let place = file.as_ref().and_then(AbsPath::parent);
            let name = file.as_ref().and_then(|file| file.components().next_back());
            if let (Some(place), Some(name)) = (place, name)
                && Self::places(path).any(|directory| directory == place)
            {
                match text {
                    Some(_) => names.insert(name.to_owned()),
                    None => names.remove(name),
                };
            }
        }
        names.into_iter().collect()
    }
}
