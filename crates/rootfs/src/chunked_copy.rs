//! Copies a large file into place in chunks, so that it is never in memory as a whole.

use std::{fs::File, io};

use rustix::fs::{CWD, Mode, OFlags};

use super::{ChunkedReader, FsOpKind, Meta, Root, RootError};
use machinist_base::{
    abs_path::AbsPath,
    digest::{Digest, Digester},
};

/// Bytes of the file in memory.
const CHUNK_BYTES: u64 = 128 << 10;

impl ChunkedReader {
    /// Opens the program that this process runs, even if its file was renamed or removed since.
    pub fn of_this_program() -> Result<Self, RootError> {
        let root = Root::open(std::path::Path::new("/"))?;
        let path = AbsPath::root()
            .join("proc/self/exe")
            .unwrap_or_else(|_| AbsPath::root());
        // Not below a root: there the kernel would not follow this magic link, which is no path.
        let open = || -> io::Result<(File, u64)> {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file: File =
                rustix::fs::openat(CWD, "/proc/self/exe", flags, Mode::empty())?.into();
            let size = file.metadata()?.len();
            Ok((file, size))
        };
        match open() {
            Ok((file, size)) => Ok(Self::of(root, path, file, size)),
            Err(error) => Err(root.failed("read", &path, error)),
        }
    }

    /// The SHA-256 of the whole file.
    pub fn digest(&self) -> Result<Digest, RootError> {
        let mut digester = Digester::new();
        for piece in self.each() {
            digester.add(&piece?);
        }
        Ok(digester.finish())
    }

    fn each(&self) -> impl Iterator<Item = Result<Vec<u8>, RootError>> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let length = CHUNK_BYTES.min(self.size().checked_sub(offset).filter(|rest| *rest > 0)?);
            let piece = self.at(offset, usize::try_from(length).unwrap_or_default());
            offset += length;
            Some(piece)
        })
    }

    /// Only for test recordings.
    fn whole(&self) -> Vec<u8> {
        self.each().filter_map(Result::ok).flatten().collect()
    }
}

impl Root {
    /// As [`Root::replace`], with the content of another file. The copy has its label before it is
    /// visible; a label that cannot be set here is left out.
    pub fn replace_by_copy(
        &self,
        p: &AbsPath,
        from: &ChunkedReader,
        mode: u32,
        label: Option<&str>,
    ) -> Result<(), RootError> {
        self.replace_filled(p, |beside, file| {
            self.fill_from(beside, file, from)?;
            self.set_mode(beside, file, mode)?;
            if let Some(label) = label {
                self.set_label(beside, label).map_err(io::Error::other)?;
            }
            self.sync_open_file(beside, file)
        })
    }

    /// Creates a file that must not exist yet, with the content of another one.
    pub fn build_copy(
        &self,
        at: &AbsPath,
        from: &ChunkedReader,
        meta: &Meta,
    ) -> Result<(), RootError> {
        let build = || {
            let file = self.create_new(at, 0o600)?;
            self.fill_from(at, &file, from)?;
            self.own(at, &file, meta)
        };
        build().map_err(|error| self.failed("write", at, error))
    }

    /// Replaces the content of a file. Pieces that contain only zeros become holes.
    fn fill_from(
        &self,
        at: &AbsPath,
        file: &std::os::fd::OwnedFd,
        from: &ChunkedReader,
    ) -> io::Result<()> {
        let write = || {
            rustix::fs::ftruncate(file, 0)?;
            rustix::fs::ftruncate(file, from.size())?;
            let mut offset = 0;
            for piece in from.each() {
                let piece = piece.map_err(io::Error::other)?;
                if piece.iter().any(|byte| *byte != 0) {
                    rustix::fs::seek(file, rustix::fs::SeekFrom::Start(offset))?;
                    super::create::write_all(file, &[&piece])?;
                }
                offset += piece.len() as u64;
            }
            Ok(())
        };
        self.tapped(at, || FsOpKind::Write(from.whole()), write)
    }
}
