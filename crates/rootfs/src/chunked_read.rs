//! Reads parts of a file that is too large to be read whole.

use std::{fs::File, os::unix::fs::FileExt as _};

use super::{Root, RootError, file_read::TailRead};
use machinist_base::abs_path::AbsPath;

/// A regular file, open for reading. It stays the same file if its name is changed or removed.
#[derive(Debug)]
pub struct ChunkedReader {
    root: Root,
    path: AbsPath,
    file: File,
    size: u64,
}

impl Root {
    /// Opens the regular file at `p` to read parts of it; refuses if `p` itself is a link.
    pub fn pieces(&self, p: &AbsPath) -> Result<ChunkedReader, RootError> {
        let (file, stat) = self.open_regular("read", p, TailRead::Keep)?;
        Ok(ChunkedReader::of(self.clone(), p.clone(), file, stat.size))
    }
}

impl ChunkedReader {
    pub(super) const fn of(root: Root, path: AbsPath, file: File, size: u64) -> Self {
        Self {
            root,
            path,
            file,
            size,
        }
    }

    /// The file's size in bytes when it was opened.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Reads `length` bytes from `offset` on. It is an error if the file ends before them.
    pub fn at(&self, offset: u64, length: usize) -> Result<Vec<u8>, RootError> {
        let mut piece = vec![0; length];
        match self.file.read_exact_at(&mut piece, offset) {
            Ok(()) => Ok(piece),
            Err(error) => Err(self.root.failed("read", &self.path, error)),
        }
    }
}
