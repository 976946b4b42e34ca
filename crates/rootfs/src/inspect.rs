//! Reads metadata, names and links; nothing here changes the tree.

use std::{io, os::fd::OwnedFd};

use rustix::fs::{Dir, FileType, OFlags};

use super::{DirEntry, FileKind, Listing, Root, RootError, Stat, resolve};
use machinist_base::abs_path::AbsPath;

impl Root {
    /// The metadata of the object at `p`, or `None` if nothing exists there. A link is not
    /// followed.
    pub fn stat(&self, p: &AbsPath) -> Result<Option<Stat>, RootError> {
        match self.handle(p).and_then(resolve::statx_unless_foreign) {
            Ok(raw) => {
                let mut stat = Stat::of(&raw);
                stat.mount_point |= self.is_simulated_mount(p);
                Ok(Some(stat))
            }
            Err(error) if resolve::is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("look at", p, error)),
        }
    }

    /// The metadata of each of `names` in the directory `dir`, as by [`Root::stat`]; all are `None`
    /// if `dir` is no directory. Needs one call for each name instead of three.
    pub fn stat_each<'n>(
        &self,
        dir: &AbsPath,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Option<Stat>>, RootError> {
        let fd = match self.dir_handle(dir.relative()) {
            Ok(fd) => fd,
            Err(error) if resolve::is_absent(&error) => return Ok(names.map(|_| None).collect()),
            Err(error) => return Err(self.failed("look into", dir, error)),
        };
        let simulated = |name: &str| {
            let path = || dir.join(name).ok();
            self.has_simulated_mounts() && path().is_some_and(|path| self.is_simulated_mount(&path))
        };
        names
            .map(|name| match resolve::statx_in(&fd, name) {
                Ok(raw) => {
                    let mut stat = Stat::of(&raw);
                    stat.mount_point |= simulated(name);
                    Ok(Some(stat))
                }
                Err(error) if resolve::is_absent(&error) => Ok(None),
                Err(error) => Err(self.failed("look into", dir, error)),
            })
            .collect()
    }

    /// The target of the link at `p`, as written in it.
    pub fn read_link(&self, p: &AbsPath) -> Result<String, RootError> {
        let target = self
            .handle(p)
            .and_then(|link| Ok(rustix::fs::readlinkat(link, "", Vec::new())?))
            .map_err(|error| match error.kind() {
                // readlinkat returns ENOENT for an empty path on anything but a link.
                io::ErrorKind::NotFound if self.stat(p).ok().flatten().is_some() => {
                    self.failed("read the link", p, io::ErrorKind::InvalidInput.into())
                }
                _ => self.failed("read the link", p, error),
            })?;
        target.into_string().map_err(|_| RootError::NotText {
            what: "the link target",
            path: self.host_path(p),
        })
    }

    /// The names in `dir`, sorted, without `.` and `..`. If `dir` is a link, its target inside the
    /// root is listed. Names that are not UTF-8 are left out; [`Root::listing`] counts them.
    pub fn list(&self, dir: &AbsPath) -> Result<Vec<DirEntry>, RootError> {
        Ok(self.listing(dir)?.entries)
    }

    /// Like [`Root::list`], with the number of names that are not UTF-8.
    pub fn listing(&self, dir: &AbsPath) -> Result<Listing, RootError> {
        self.listing_up_to(dir, usize::MAX)
    }

    /// Like [`Root::listing`], but stops after `most` names, for directories that other users fill.
    pub fn listing_up_to(&self, dir: &AbsPath, most: usize) -> Result<Listing, RootError> {
        self.open_raw(dir.relative(), OFlags::RDONLY | OFlags::DIRECTORY, 0)
            .and_then(|fd| names(fd, most))
            .map_err(|error| self.failed("list", dir, error))
    }

    /// The target of the link at `p`; `None` if it is not UTF-8, or the link no longer exists. For
    /// links that other users create.
    pub fn link_text(&self, p: &AbsPath) -> Result<Option<String>, RootError> {
        match self.read_link(p) {
            Ok(text) => Ok(Some(text)),
            Err(RootError::NotText { .. }) => Ok(None),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidInput => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The path of the same object without links in its parents; the last component is kept, even
    /// if it is a link. Missing components are kept as written, so that two paths that *will* name
    /// one object are recognised as one.
    pub fn canonical(&self, p: &AbsPath) -> Result<AbsPath, RootError> {
        let Some(parent) = p.parent() else {
            return Ok(p.clone());
        };
        match self.open_without_links(parent.relative()) {
            Ok(_) => Ok(p.clone()),
            Err(_) => self.resolve_links(p),
        }
    }

    /// Resolves links like the kernel, but continues where the kernel stops at a missing name.
    fn resolve_links(&self, p: &AbsPath) -> Result<AbsPath, RootError> {
        let mut todo: Vec<String> = p.components().rev().map(str::to_owned).collect();
        let (mut at, mut links) = (AbsPath::root(), 0);
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at = at.parent().unwrap_or(at);
                    continue;
                }
                _ => {}
            }
            let next = at
                .join(&part)
                .map_err(|bad| self.failed("resolve", p, io::Error::other(bad)))?;
            let last = todo.is_empty();
            match self.stat(&next)? {
                Some(stat) if stat.kind == FileKind::Link && !last => {
                    links += 1;
                    if links > super::MAX_SYMLINKS {
                        return Err(self.failed("resolve", p, rustix::io::Errno::LOOP.into()));
                    }
                    let target = self.read_link(&next)?;
                    if target.starts_with('/') {
                        at = AbsPath::root();
                    }
                    todo.extend(target.split('/').rev().map(str::to_owned));
                }
                _ => at = next,
            }
        }
        Ok(at)
    }
}

fn names(dir: OwnedFd, most: usize) -> io::Result<Listing> {
    let mut found = Listing::default();
    let mut stream = Dir::new(dir)?;
    while let Some(entry) = stream.read() {
        let entry = entry?;
        let name = match entry.file_name().to_str() {
            Ok("." | "..") => continue,
            _ if found.entries.len() + found.unreadable_names >= most => {
                found.more = true;
                break;
            }
            Ok(name) => name.to_owned(),
            Err(_) => {
                let name = entry.file_name().to_string_lossy();
                found.unreadable_names += 1;
                found.unreadable_name = Some(name.into_owned());
                continue;
            }
        };
        let kind = match FileKind::of(entry.file_type()) {
            Some(kind) => Some(kind),
            None => kind_of(&stream, &name)?,
        };
        // A name that vanished since the directory was read is no longer in it.
        found
            .entries
            .extend(kind.map(|kind| DirEntry { name, kind }));
    }
    found.entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Some file systems do not store the kind in the directory entry.
fn kind_of(dir: &Dir, name: &str) -> io::Result<Option<FileKind>> {
    use rustix::fs::{AtFlags, statat};
    match statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileKind::of(FileType::from_raw_mode(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
