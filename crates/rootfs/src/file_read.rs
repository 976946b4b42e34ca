//! Reads the content of regular files.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::fd::OwnedFd,
};

use rustix::fs::OFlags;

use super::{FileKind, Root, RootError, Stat, resolve};
use machinist_base::{
    abs_path::AbsPath,
    digest::{Digest, Digester},
};

/// Bytes of a read while digesting: large enough that system calls cost little compared to the
/// hashing, small enough for the processor's second-level cache.
const DIGEST_CHUNK_BYTES: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum TailRead {
    Follow,
    Keep,
}

impl Root {
    /// The content of the regular file at `p`, at most `limit` bytes; links are followed inside the
    /// root.
    pub fn read(&self, p: &AbsPath, limit: u64) -> Result<Vec<u8>, RootError> {
        self.read_as(p, limit, TailRead::Follow)
    }

    /// Like [`Root::read`], but refuses when `p` itself is a link.
    pub fn read_nofollow(&self, p: &AbsPath, limit: u64) -> Result<Vec<u8>, RootError> {
        self.read_as(p, limit, TailRead::Keep)
    }

    /// Like [`Root::read_nofollow`], for an object that was a regular file a moment ago: it is not
    /// checked again before it is opened. Also returns the metadata of the file that was read.
    pub fn read_seen(&self, p: &AbsPath, limit: u64) -> Result<(Vec<u8>, Stat), RootError> {
        let (file, stat) = self.open_seen("read", p, TailRead::Keep)?;
        Ok((self.content(p, file, stat.size, limit)?, stat))
    }

    /// Like [`Root::read`], for text.
    pub fn read_text(&self, p: &AbsPath, limit: u64) -> Result<String, RootError> {
        String::from_utf8(self.read(p, limit)?).map_err(|_| RootError::NotText {
            what: "the content",
            path: self.host_path(p),
        })
    }

    /// Like [`Root::read`], and also returns the metadata of the file that was read: its owner and
    /// mode.
    pub fn read_with_stat(&self, p: &AbsPath, limit: u64) -> Result<(Vec<u8>, Stat), RootError> {
        let (file, stat) = self.open_regular("read", p, TailRead::Follow)?;
        Ok((self.content(p, file, stat.size, limit)?, stat))
    }

    /// The last `limit` bytes of the regular file at `p`, such as a log.
    pub fn read_end(&self, p: &AbsPath, limit: u64) -> Result<Vec<u8>, RootError> {
        let (mut file, stat) = self.open_regular("read", p, TailRead::Follow)?;
        let mut end = Vec::new();
        let read = file
            .seek(SeekFrom::Start(stat.size.saturating_sub(limit)))
            .and_then(|_| file.take(limit).read_to_end(&mut end));
        read.map_err(|error| self.failed("read", p, error))?;
        Ok(end)
    }

    fn read_as(&self, p: &AbsPath, limit: u64, last: TailRead) -> Result<Vec<u8>, RootError> {
        let (file, stat) = self.open_regular("read", p, last)?;
        self.content(p, file, stat.size, limit)
    }

    fn content(
        &self,
        p: &AbsPath,
        mut file: File,
        size: u64,
        limit: u64,
    ) -> Result<Vec<u8>, RootError> {
        // A hint, so that a file usually takes one read: files below /proc and /sys report no
        // usable size, and any file may have grown.
        let expected = usize::try_from(size.min(limit)).unwrap_or(0);
        let mut content = vec![0; expected.saturating_add(1)];
        let length =
            read_once(&mut file, &mut content).map_err(|error| self.failed("read", p, error))?;
        content.truncate(length);
        // The file had exactly its expected size although the buffer had room for more, so this is
        // its end.
        if length != expected || expected == 0 {
            // One byte more than allowed distinguishes "just fits" from "too long".
            let rest = limit.saturating_add(1).saturating_sub(length as u64);
            file.take(rest)
                .read_to_end(&mut content)
                .map_err(|error| self.failed("read", p, error))?;
        }
        if content.len() as u64 > limit {
            return Err(RootError::TooLarge {
                path: self.host_path(p),
                limit,
            });
        }
        Ok(content)
    }

    /// Opens only regular files for reading: opening a FIFO would wait for a writer or wake one,
    /// and some devices react to being opened.
    pub(super) fn open_regular(
        &self,
        act: &'static str,
        p: &AbsPath,
        last: TailRead,
    ) -> Result<(File, Stat), RootError> {
        // Check again after opening, in case the object was exchanged in between.
        self.regular(act, p, last, OFlags::PATH)?;
        self.open_seen(act, p, last)
    }

    /// Like [`Root::open_regular`], for an object that was a regular file already.
    fn open_seen(
        &self,
        act: &'static str,
        p: &AbsPath,
        last: TailRead,
    ) -> Result<(File, Stat), RootError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (fd, stat) = self.regular(act, p, last, flags)?;
        Ok((File::from(fd), stat))
    }

    /// Opens with these flags, and refuses anything but a regular file.
    fn regular(
        &self,
        act: &'static str,
        p: &AbsPath,
        last: TailRead,
        flags: OFlags,
    ) -> Result<(OwnedFd, Stat), RootError> {
        let follow = match last {
            TailRead::Keep => OFlags::NOFOLLOW,
            TailRead::Follow => OFlags::empty(),
        };
        let opened = self.open_raw(p.relative(), flags | follow, 0);
        let checked = opened.and_then(|fd| {
            let stat = Stat::of(&resolve::statx_of(&fd)?);
            Ok((fd, stat))
        });
        match checked {
            Ok((fd, stat)) if stat.kind == FileKind::File => Ok((fd, stat)),
            Ok((_, stat)) => Err(RootError::WrongKind {
                act,
                path: self.host_path(p),
                found: stat.kind,
            }),
            Err(error) => Err(self.failed(act, p, error)),
        }
    }

    /// The SHA-256 of the regular file at `p`; a link is not followed.
    ///
    /// A file that grows meanwhile is read to one byte beyond its original size: its digest is of
    /// no use.
    pub fn digest(&self, p: &AbsPath) -> Result<Digest, RootError> {
        let (file, stat) = self.open_regular("digest", p, TailRead::Keep)?;
        self.digest_of(p, file, stat.size)
    }

    /// As [`Root::digest`]; `None` if the file has more than `most` bytes. The owner of a sparse
    /// file can give it any size, and it would take hours to read.
    pub fn digest_within(&self, p: &AbsPath, most: u64) -> Result<Option<Digest>, RootError> {
        Ok(self.digest_seen(p, most)?.0)
    }

    /// As [`Root::digest_within`], with the metadata of the file that was read.
    pub fn digest_seen(&self, p: &AbsPath, most: u64) -> Result<(Option<Digest>, Stat), RootError> {
        let (file, stat) = self.open_regular("digest", p, TailRead::Keep)?;
        let digest = match stat.size <= most {
            true => Some(self.digest_of(p, file, stat.size)?),
            false => None,
        };
        Ok((digest, stat))
    }

    fn digest_of(&self, p: &AbsPath, file: File, size: u64) -> Result<Digest, RootError> {
        let mut file = file.take(size.saturating_add(1));
        let mut digester = Digester::new();
        let size = usize::try_from(size).unwrap_or(DIGEST_CHUNK_BYTES);
        let mut chunk = vec![0; size.clamp(1, DIGEST_CHUNK_BYTES)];
        loop {
            match read_once(&mut file, &mut chunk) {
                Ok(0) => return Ok(digester.finish()),
                Ok(length) => digester.add(&chunk[..length]),
                Err(error) => return Err(self.failed("read", p, error)),
            }
        }
    }
}

/// One read, repeated if a signal interrupts it.
fn read_once(file: &mut impl io::Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
