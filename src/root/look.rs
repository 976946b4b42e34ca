//! Looking: nothing here changes the tree.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
};

use rustix::fs::{Dir, FileType, OFlags};

use super::{Entry, Kind, Listing, Root, RootError, Stat, walk};
use crate::{
    digest::{Digest, Digester},
    path::AbsPath,
};

/// As many links as the kernel follows in one path (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Read size while digesting: large enough that the calls do not show beside the hashing, small
/// enough to stay in the processor's second-level cache.
const DIGEST_CHUNK: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Last {
    Follow,
    Keep,
}

impl Root {
    /// What is at `p`; none when nothing is. A link is described itself, not what it leads to.
    pub fn stat(&self, p: &AbsPath) -> Result<Option<Stat>, RootError> {
        match self.handle(p).and_then(walk::statx_of) {
            Ok(raw) => {
                let mut stat = Stat::of(&raw);
                stat.mount_point |= self.pretended_mount_at(p);
                Ok(Some(stat))
            }
            Err(error) if walk::is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("look at", p, error)),
        }
    }

    /// What each of `names` in the directory `dir` is, as [`Root::stat`] says it; all are absent where `dir`
    /// is none. One call for each name instead of three.
    pub fn stat_each<'n>(
        &self,
        dir: &AbsPath,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Option<Stat>>, RootError> {
        let fd = match self.dir_handle(dir.relative()) {
            Ok(fd) => fd,
            Err(error) if walk::is_absent(&error) => return Ok(names.map(|_| None).collect()),
            Err(error) => return Err(self.failed("look into", dir, error)),
        };
        let pretended = |name: &str| {
            let path = || dir.join(name).ok();
            self.pretends_mounts() && path().is_some_and(|path| self.pretended_mount_at(&path))
        };
        names
            .map(|name| match walk::statx_in(&fd, name) {
                Ok(raw) => {
                    let mut stat = Stat::of(&raw);
                    stat.mount_point |= pretended(name);
                    Ok(Some(stat))
                }
                Err(error) if walk::is_absent(&error) => Ok(None),
                Err(error) => Err(self.failed("look into", dir, error)),
            })
            .collect()
    }

    /// The content of the regular file at `p`, at most `limit` bytes; links are followed inside
    /// the root.
    pub fn read(&self, p: &AbsPath, limit: u64) -> Result<Vec<u8>, RootError> {
        self.read_as(p, limit, Last::Follow)
    }

    /// Like [`Root::read`], but refuses when `p` itself is a link.
    pub fn read_nofollow(&self, p: &AbsPath, limit: u64) -> Result<Vec<u8>, RootError> {
        self.read_as(p, limit, Last::Keep)
    }

    /// Like [`Root::read`], for text.
    pub fn read_text(&self, p: &AbsPath, limit: u64) -> Result<String, RootError> {
        String::from_utf8(self.read(p, limit)?).map_err(|_| RootError::NotText {
            what: "the content",
            path: self.host_path(p),
        })
    }

    /// Like [`Root::read`], with what is known of the very file that was read: whose it is and who
    /// may write it.
    pub fn read_with_stat(&self, p: &AbsPath, limit: u64) -> Result<(Vec<u8>, Stat), RootError> {
        let (file, stat) = self.open_regular("read", p, Last::Follow)?;
        Ok((self.content(p, file, stat.size, limit)?, stat))
    }

    fn read_as(&self, p: &AbsPath, limit: u64, last: Last) -> Result<Vec<u8>, RootError> {
        let (file, stat) = self.open_regular("read", p, last)?;
        self.content(p, file, stat.size, limit)
    }

    fn content(
        &self,
        p: &AbsPath,
        file: File,
        size: u64,
        limit: u64,
    ) -> Result<Vec<u8>, RootError> {
        // A hint, so that a file is one read: files below /proc and /sys give no usable size, and any
        // file may have grown.
        let expected = usize::try_from(size.min(limit)).unwrap_or(0);
        let mut content = Vec::with_capacity(expected.saturating_add(1));
        // One byte more than allowed tells "just fits" from "too long".
        file.take(limit.saturating_add(1))
            .read_to_end(&mut content)
            .map_err(|error| self.failed("read", p, error))?;
        if content.len() as u64 > limit {
            return Err(RootError::TooLarge {
                path: self.host_path(p),
                limit,
            });
        }
        Ok(content)
    }

    /// Opens for reading only what is a regular file: opening a FIFO would wait for a writer or
    /// wake one, and some devices act on being opened.
    pub(super) fn open_regular(
        &self,
        act: &'static str,
        p: &AbsPath,
        last: Last,
    ) -> Result<(File, Stat), RootError> {
        let follow = if last == Last::Keep {
            OFlags::NOFOLLOW
        } else {
            OFlags::empty()
        };
        let checked = |flags| {
            let fd = self.open_raw(p.relative(), flags | follow, 0)?;
            let stat = Stat::of(&walk::statx_of(&fd)?);
            io::Result::Ok((fd, stat))
        };
        let regular = |flags| match checked(flags) {
            Ok((fd, stat)) if stat.kind == Kind::File => Ok((fd, stat)),
            Ok((_, stat)) => Err(RootError::WrongKind {
                act,
                path: self.host_path(p),
                found: stat.kind,
            }),
            Err(error) => Err(self.failed(act, p, error)),
        };
        // The second look is for an exchange between the two.
        regular(OFlags::PATH)?;
        let (fd, stat) = regular(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        Ok((File::from(fd), stat))
    }

    /// Where the link at `p` leads, as it is written there.
    pub fn read_link(&self, p: &AbsPath) -> Result<String, RootError> {
        let target = self
            .handle(p)
            .and_then(|link| Ok(rustix::fs::readlinkat(link, "", Vec::new())?))
            .map_err(|error| match error.kind() {
                // readlinkat answers ENOENT for an empty path on anything but a link.
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

    /// The names in `dir`, sorted, `.` and `..` left out. When `dir` is a link, what it leads to
    /// inside the root is listed. Names that are not UTF-8 are left out; [`Root::listing`] counts
    /// them.
    pub fn list(&self, dir: &AbsPath) -> Result<Vec<Entry>, RootError> {
        Ok(self.listing(dir)?.entries)
    }

    /// Like [`Root::list`], with the number of names that are not UTF-8.
    pub fn listing(&self, dir: &AbsPath) -> Result<Listing, RootError> {
        self.open_raw(dir.relative(), OFlags::RDONLY | OFlags::DIRECTORY, 0)
            .and_then(names)
            .map_err(|error| self.failed("list", dir, error))
    }

    /// The SHA-256 of the regular file at `p`, which is not followed when it is a link.
    pub fn digest(&self, p: &AbsPath) -> Result<Digest, RootError> {
        let (mut file, _) = self.open_regular("digest", p, Last::Keep)?;
        let mut digester = Digester::new();
        let mut chunk = vec![0; DIGEST_CHUNK];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => return Ok(digester.finish()),
                Ok(length) => digester.add(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", p, error)),
            }
        }
    }

    /// The path that leads to the same object without links in its parents; the last component is
    /// kept, link or not. What does not exist is kept as it is written, so that two paths that
    /// *will* be one object are seen as one.
    pub fn canonical(&self, p: &AbsPath) -> Result<AbsPath, RootError> {
        let Some(parent) = p.parent() else {
            return Ok(p.clone());
        };
        match self.open_without_links(parent.relative()) {
            Ok(_) => Ok(p.clone()),
            Err(_) => self.resolve_links(p),
        }
    }

    /// Resolves by hand what the kernel would, but goes on where the kernel stops at a name that
    /// does not exist.
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
                Some(stat) if stat.kind == Kind::Link && !last => {
                    links += 1;
                    if links > MOST_LINKS {
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

fn names(dir: OwnedFd) -> io::Result<Listing> {
    let mut found = Listing::default();
    let mut stream = Dir::new(dir)?;
    while let Some(entry) = stream.read() {
        let entry = entry?;
        let name = match entry.file_name().to_str() {
            Ok("." | "..") => continue,
            Ok(name) => name.to_owned(),
            Err(_) => {
                found.unreadable_names += 1;
                continue;
            }
        };
        let kind = match Kind::of(entry.file_type()) {
            Some(kind) => Some(kind),
            None => kind_of(&stream, &name)?,
        };
        // A name that vanished since the directory was read is no longer in it.
        found.entries.extend(kind.map(|kind| Entry { name, kind }));
    }
    found.entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Some file systems do not say the kind in the directory itself.
fn kind_of(dir: &Dir, name: &str) -> io::Result<Option<Kind>> {
    use rustix::fs::{AtFlags, statat};
    match statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Kind::of(FileType::from_raw_mode(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
