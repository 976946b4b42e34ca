//! Replaces a small file even when the disk is full, by alternating between it and a spare file.

use std::io;

use rustix::{
    fs::{FallocateFlags, RenameFlags},
    io::Errno,
};

use super::{FsOpKind, Root, RootError, resolve};
use machinist_base::abs_path::AbsPath;

/// Factor by which a file may be longer than needed before it is truncated: excess length costs
/// only write time, while truncating too often gives up reserved space.
const MAX_LENGTH_FACTOR: u64 = 4;

/// Files below this length, in bytes, are never truncated.
const MIN_TRUNCATE_BYTES: u64 = 256 << 10;

impl Root {
    /// Replaces the file at `p` as [`Root::replace`] does, but keeps the previous file as
    /// `.<name>.new` and overwrites that the next time: if both have [reserved
    /// space](Self::reserve_blocks), this allocates neither blocks nor inodes.
    ///
    /// `text` is called with the minimum length of the content: the spare's own length, because
    /// truncating it would free the reserved space. With `trim`, a spare that is far longer than
    /// `least` is truncated nevertheless. A reader that keeps the file open across two replacements
    /// may see it change.
    pub fn replace_alternating(
        &self,
        p: &AbsPath,
        (least, trim): (u64, bool),
        text: impl FnOnce(u64) -> Vec<u8>,
        mode: u32,
    ) -> Result<(), RootError> {
        let replace = || {
            let parent = p.parent().ok_or(Errno::ISDIR)?;
            let spare = spare_of(p, &parent)?;
            let file = self.claim(&spare)?;
            let mut length = resolve::statx_of(&file)?.stx_size;
            if trim && length > MIN_TRUNCATE_BYTES.max(least.saturating_mul(MAX_LENGTH_FACTOR)) {
                rustix::fs::ftruncate(&file, least)?;
                length = least;
            }
            self.write_content(&spare, &file, &[&text(length)])?;
            self.set_mode(&spare, &file, mode)?;
            self.sync_open_file(&spare, &file)?;
            self.change_places(p, &spare)?;
            self.sync_one_dir(&parent)
        };
        replace().map_err(|error| self.failed("replace", p, error))
    }

    /// Reserves blocks for `room` bytes each for the file at `p`, which must exist, and for its
    /// spare, without changing their content. Does nothing on a file system that does not support
    /// it.
    pub fn reserve_blocks(&self, p: &AbsPath, room: u64) -> Result<(), RootError> {
        let keep = || {
            let parent = p.parent().ok_or(Errno::ISDIR)?;
            let spare = spare_of(p, &parent)?;
            for at in [&spare, p] {
                let file = self.open_or_new(at)?;
                let enough = resolve::statx_of(&file)?.stx_blocks.saturating_mul(512) >= room;
                if enough {
                    continue;
                }
                let allocate = || {
                    Ok(rustix::fs::fallocate(
                        &file,
                        FallocateFlags::KEEP_SIZE,
                        0,
                        room,
                    )?)
                };
                match self.tapped(at, || FsOpKind::Reserve(room), allocate) {
                    Err(error) if unsupported(&error) => {}
                    done => done?,
                }
            }
            Ok(())
        };
        keep().map_err(|error| self.failed("reserve space for", p, error))
    }

    /// Exchanges the spare and the file. If the file does not exist yet, or names cannot be
    /// exchanged, there is no spare afterwards.
    fn change_places(&self, p: &AbsPath, spare: &AbsPath) -> io::Result<()> {
        let exchange = || FsOpKind::Exchange(p.clone());
        match self.rename(spare, p, RenameFlags::EXCHANGE, exchange) {
            Err(error) if resolve::is_absent(&error) || unsupported(&error) => {
                self.rename(spare, p, RenameFlags::empty(), || {
                    FsOpKind::Rename(p.clone())
                })
            }
            done => done,
        }
    }
}

/// The same name as in [`Root::replace`]: the temporary file of an earlier version becomes the
/// first spare.
fn spare_of(p: &AbsPath, parent: &AbsPath) -> io::Result<AbsPath> {
    parent
        .join(&format!(".{}.new", p.file_name()))
        .map_err(io::Error::other)
}

fn unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}
