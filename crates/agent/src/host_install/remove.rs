//! Removes the host part: the enabling link first, the program last.

use super::{HostPaths, InstallError, install::is_our_unit};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FileKind, Root, RootError};

/// The installed files of the host part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledFiles {
    /// Units and their enabling links, in the order of removal.
    pub units: Vec<AbsPath>,
    /// The program's copy.
    pub program: Vec<AbsPath>,
    /// Directories, which are removed if empty.
    directories: Vec<AbsPath>,
}

impl InstalledFiles {
    /// Finds the installed files. Units that machinist did not write are ignored.
    ///
    /// # Errors
    /// The host cannot be read.
    pub fn on(root: &Root) -> Result<Self, InstallError> {
        let places = HostPaths::new()?;
        let mut found = Self::default();
        let ours = is_our_unit(root, &places.recover)?;
        // Also a link to a unit of ours that was already removed.
        if is_link_to(root, &places.link, &places.recover)?
            && (ours || root.stat(&places.recover)?.is_none())
        {
            found.units.push(places.link.clone());
        }
        for unit in places.units() {
            if is_our_unit(root, unit)? {
                found.units.push(unit.clone());
            }
        }
        if root.stat(&places.program)?.is_some() {
            found.program.push(places.program.clone());
        }
        // Temporary files that a crash during installation may have left.
        for unit in places.units() {
            found.units.extend(half_written(root, unit)?);
        }
        found.program.extend(half_written(root, &places.program)?);
        if root.stat(&places.dir)?.is_some() {
            found.directories.push(places.dir);
        }
        Ok(found)
    }

    /// Whether nothing is installed.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty() && self.program.is_empty() && self.directories.is_empty()
    }

    /// Removes the units durably, so that they are not started at the next boot.
    ///
    /// # Errors
    /// One of them cannot be removed; calling this again continues from there.
    pub fn remove_units(&self, root: &Root) -> Result<(), RootError> {
        remove(root, &self.units)
    }

    /// Removes the program. Call this after systemd has unloaded the units.
    ///
    /// # Errors
    /// Same as [`InstalledFiles::remove_units`].
    pub fn remove_program(&self, root: &Root) -> Result<(), RootError> {
        remove(root, &self.program)?;
        for dir in &self.directories {
            root.remove_empty_dir(dir)?;
        }
        Ok(())
    }
}

fn remove(root: &Root, paths: &[AbsPath]) -> Result<(), RootError> {
    for path in paths {
        root.remove_file(path)?;
        if let Some(parent) = path.parent() {
            root.sync_dir(&parent)?;
        }
    }
    Ok(())
}

/// The temporary file of [`Root::replace`] for this path.
fn half_written(root: &Root, path: &AbsPath) -> Result<Option<AbsPath>, InstallError> {
    let parent = path.parent().unwrap_or_else(AbsPath::root);
    let beside = parent.join(&format!(".{}.new", path.file_name()))?;
    Ok(root.stat(&beside)?.map(|_| beside))
}

fn is_link_to(root: &Root, link: &AbsPath, target: &AbsPath) -> Result<bool, RootError> {
    match root.stat(link)? {
        Some(stat) if stat.kind == FileKind::Link => Ok(root.read_link(link)? == target.as_str()),
        _ => Ok(false),
    }
}
