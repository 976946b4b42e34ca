//! Local files of manifests, for Butane's `local` and `trees`: read below the manifest's own
//! directory, and recorded, so that their changes are noticed like the manifest's.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    MAX_FILES, MAX_MANIFEST_BYTES,
    symlink_chain::{self, ResolveError},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{LocalEntry, LocalError, LocalFileSource, LocalKind};
use machinist_rootfs::{FileKind, Root, RootError, Stat};

/// The directories of the manifests.
#[derive(Debug)]
pub struct LocalFiles {
    tree: Root,
    /// By the manifest's name as the user knows it.
    dirs: BTreeMap<String, AbsPath>,
    used: RefCell<UsedFiles>,
    root_alone: bool,
}

/// The paths that manifests referred to, whether they exist or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UsedFiles {
    /// Files.
    pub(super) files: BTreeSet<AbsPath>,
    /// Directories whose complete listing was used.
    pub(super) directories: BTreeSet<AbsPath>,
}

impl LocalFiles {
    /// Without manifests yet; their local files are read in `tree`.
    pub fn new(tree: Root) -> Self {
        Self {
            tree,
            dirs: BTreeMap::new(),
            used: RefCell::default(),
            root_alone: false,
        }
    }

    /// Sets whether to refuse files that users other than root may write.
    #[must_use]
    pub fn root_alone(mut self, root_alone: bool) -> Self {
        self.root_alone = root_alone;
        self
    }

    fn stat(&self, shown: &str, path: &AbsPath) -> Result<Option<Stat>, LocalError> {
        let trusted = match self.root_alone {
            true => self.tree.check_trusted(path),
            false => Ok(()),
        };
        trusted
            .and_then(|()| self.tree.stat(path))
            .map_err(|e| failed(shown, &e))
    }

    /// Sets the directory of a manifest.
    pub fn text(&mut self, name: impl Into<String>, dir: AbsPath) {
        self.dirs.insert(name.into(), dir);
    }

    /// The paths that the manifests referred to.
    pub(super) fn used(self) -> UsedFiles {
        self.used.into_inner()
    }

    /// The path with links resolved.
    fn place(&self, text: &str, path: &AbsPath) -> Result<AbsPath, LocalError> {
        let shown = path.relative();
        let dir = self.dirs.get(text).ok_or_else(|| {
            let message =
                format!("{shown} cannot be read: the directory of this config is not known");
            LocalError::new(Reason::SourceUnreadable, message)
        })?;
        let lost = |lost: ResolveError| {
            let message = match lost {
                ResolveError::Circle => format!("{shown} is a symbolic link loop"),
                ResolveError::Outside(link) => {
                    format!(
                        "{shown} points outside the directory of this config through the \
                         symbolic link {link}"
                    )
                }
            };
            LocalError::new(Reason::PathInvalid, message)
        };
        let root = AbsPath::root();
        let base = symlink_chain::follow(&self.tree, &root, dir.relative(), false, &mut |_, _| {});
        let base = base.map_err(lost)?;
        let written = base
            .join(shown)
            .map_err(|error| LocalError::new(Reason::PathInvalid, error.to_string()))?;
        self.used.borrow_mut().files.insert(written);
        symlink_chain::follow(&self.tree, &base, shown, true, &mut |_, _| {}).map_err(lost)
    }

    fn expect(&self, path: &AbsPath, place: &AbsPath, kind: FileKind) -> Result<(), LocalError> {
        let shown = path.relative();
        let message = match self.stat(shown, place)? {
            Some(stat) if stat.kind == kind => return Ok(()),
            Some(stat) => format!(
                "{shown} is a {}, not a {}",
                stat.kind.as_str(),
                kind.as_str()
            ),
            None => format!("{shown} not found"),
        };
        Err(LocalError::new(Reason::SourceUnreadable, message))
    }

    fn entries(
        &self,
        shown: &str,
        top: &AbsPath,
        dir: &AbsPath,
        found: &mut Vec<LocalEntry>,
    ) -> Result<(), LocalError> {
        self.used.borrow_mut().directories.insert(dir.clone());
        let listing = self.tree.listing(dir).map_err(|e| failed(shown, &e))?;
        if let Some(name) = listing.unreadable_name {
            let message = format!(
                "{} contains the name {name:?}, which is not valid UTF-8",
                dir.relative()
            );
            return Err(LocalError::new(Reason::PathInvalid, message));
        }
        for entry in listing.entries {
            let path = dir
                .join(&entry.name)
                .map_err(|error| LocalError::new(Reason::PathInvalid, error.to_string()))?;
            let kind = match entry.kind {
                FileKind::Directory => {
                    self.stat(shown, &path)?;
                    self.entries(shown, top, &path, found)?;
                    continue;
                }
                FileKind::File => {
                    let stat = self.stat(shown, &path)?;
                    LocalKind::File {
                        executable: stat.is_some_and(|stat| stat.mode & 0o111 != 0),
                    }
                }
                FileKind::Link => {
                    LocalKind::Link(self.tree.read_link(&path).map_err(|e| failed(shown, &e))?)
                }
                other => LocalKind::Other(other.as_str()),
            };
            let below = path.as_str()[top.as_str().len()..].trim_start_matches('/');
            found.push(LocalEntry {
                path: below.to_owned(),
                kind,
            });
            if found.len() > MAX_FILES {
                let message = format!("{shown} contains more than {MAX_FILES} files");
                return Err(LocalError::new(Reason::ValueInvalid, message));
            }
        }
        Ok(())
    }
}

impl LocalFileSource for LocalFiles {
    fn read(&self, text: &str, path: &AbsPath) -> Result<Vec<u8>, LocalError> {
        let place = self.place(text, path)?;
        self.expect(path, &place, FileKind::File)?;
        self.tree
            .read_nofollow(&place, MAX_MANIFEST_BYTES)
            .map_err(|error| failed(path.relative(), &error))
    }

    fn tree(&self, text: &str, path: &AbsPath) -> Result<Vec<LocalEntry>, LocalError> {
        let place = self.place(text, path)?;
        self.expect(path, &place, FileKind::Directory)?;
        let mut found = Vec::new();
        self.entries(path.relative(), &place, &place, &mut found)?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}

fn failed(shown: &str, error: &RootError) -> LocalError {
    let message = match error {
        RootError::TooLarge { limit, .. } => format!("{shown} has more than {limit} bytes"),
        // Removed between two reads; the watch has seen it too.
        gone if gone.is_not_found() => format!("{shown} not found"),
        other => format!("{shown}: {}", machinist_base::error_chain::chain(other)),
    };
    LocalError::new(Reason::SourceUnreadable, message)
}
