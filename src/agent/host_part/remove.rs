//! Taking it away: what enables it first, the program last.

use super::{InstallError, Places, install::is_our_unit};
use crate::{
    path::AbsPath,
    root::{Kind, Root, RootError},
};

/// What of it lies on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Units and what enables them, in the order in which they go.
    pub units: Vec<AbsPath>,
    /// The program.
    pub program: Vec<AbsPath>,
    /// Directories, which go when they are empty.
    directories: Vec<AbsPath>,
}

impl Installed {
    /// Looks for it. Units that machinist did not write are nobody's of ours.
    ///
    /// # Errors
    /// The host cannot be looked at.
    pub fn on(root: &Root) -> Result<Self, InstallError> {
        let places = Places::new()?;
        let mut found = Self::default();
        let ours = is_our_unit(root, &places.recover)?;
        // A link that leads to a unit of ours that went already, too.
        if is_link_to(root, &places.link, &places.recover)?
            && (ours || root.stat(&places.recover)?.is_none())
        {
            found.units.push(places.link.clone());
        }
        for unit in [&places.recover, &places.guard] {
            if is_our_unit(root, unit)? {
                found.units.push(unit.clone());
            }
        }
        if root.stat(&places.program)?.is_some() {
            found.program.push(places.program.clone());
        }
        // What a crash may have left of writing them.
        for unit in [&places.recover, &places.guard] {
            found.units.extend(half_written(root, unit)?);
        }
        found.program.extend(half_written(root, &places.program)?);
        if root.stat(&places.dir)?.is_some() {
            found.directories.push(places.dir);
        }
        Ok(found)
    }

    /// Nothing of it is there.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty() && self.program.is_empty() && self.directories.is_empty()
    }

    /// Takes the units away, durably: from the next boot on nobody starts them.
    ///
    /// # Errors
    /// One of them cannot be removed; the same again goes on from there.
    pub fn remove_units(&self, root: &Root) -> Result<(), RootError> {
        remove(root, &self.units)
    }

    /// Takes the program away, when PID 1 has forgotten the units.
    ///
    /// # Errors
    /// As above.
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

/// The file that [`Root::replace`] writes before it takes its place.
fn half_written(root: &Root, path: &AbsPath) -> Result<Option<AbsPath>, InstallError> {
    let parent = path.parent().unwrap_or_else(AbsPath::root);
    let beside = parent.join(&format!(".{}.new", path.file_name()))?;
    Ok(root.stat(&beside)?.map(|_| beside))
}

fn is_link_to(root: &Root, link: &AbsPath, target: &AbsPath) -> Result<bool, RootError> {
    match root.stat(link)? {
        Some(stat) if stat.kind == Kind::Link => Ok(root.read_link(link)? == target.as_str()),
        _ => Ok(false),
    }
}
