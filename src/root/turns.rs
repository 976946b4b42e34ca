//! A small file that can be replaced when there is no room left: it and a spare take turns.

use std::io;

use rustix::{
    fs::{FallocateFlags, RenameFlags},
    io::Errno,
};

use super::{Act, Root, RootError, walk};
use crate::path::AbsPath;

/// How much longer than needed a file may be before it is cut back: what is too long costs only the
/// time to write it, what is cut back too often costs the room that was kept.
const SURPLUS: u64 = 4;

/// A length below which nothing is cut back.
const SMALL: u64 = 256 << 10;

impl Root {
    /// Replaces the file at `p` as [`Root::replace`] does, but the file before stays beside it as
    /// `.<name>.new` and is written over the next time: where both were [given room](Self::keep_room),
    /// this takes neither blocks nor inodes.
    ///
    /// `text` is asked for a content of at least so many bytes: the spare's own length, because cutting
    /// it would free what is kept. With `trim` a spare that is far longer than `least` is cut all the
    /// same. A reader that holds the file open across two replacements may see it change.
    pub fn take_turns(
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
            let mut length = walk::statx_of(&file)?.stx_size;
            if trim && length > SMALL.max(least.saturating_mul(SURPLUS)) {
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

    /// Gives the file at `p`, which must exist, and its spare the blocks for `room` bytes each, without
    /// changing what they hold. A file system that cannot do that is left alone.
    pub fn keep_room(&self, p: &AbsPath, room: u64) -> Result<(), RootError> {
        let keep = || {
            let parent = p.parent().ok_or(Errno::ISDIR)?;
            let spare = spare_of(p, &parent)?;
            for at in [&spare, p] {
                let file = self.open_or_new(at)?;
                let enough = walk::statx_of(&file)?.stx_blocks.saturating_mul(512) >= room;
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
                match self.tapped(at, || Act::Reserve(room), allocate) {
                    Err(error) if unsupported(&error) => {}
                    done => done?,
                }
            }
            Ok(())
        };
        keep().map_err(|error| self.failed("keep room for", p, error))
    }

    /// The spare becomes the file, and the file the spare; where there is no file yet, or names cannot
    /// be exchanged, there is no spare afterwards.
    fn change_places(&self, p: &AbsPath, spare: &AbsPath) -> io::Result<()> {
        let exchange = || Act::Exchange(p.clone());
        match self.rename(spare, p, RenameFlags::EXCHANGE, exchange) {
            Err(error) if walk::is_absent(&error) || unsupported(&error) => {
                self.rename(spare, p, RenameFlags::empty(), || Act::Rename(p.clone()))
            }
            done => done,
        }
    }
}

/// The name that [`Root::replace`] uses, too: what an earlier version left there is the first spare.
fn spare_of(p: &AbsPath, parent: &AbsPath) -> io::Result<AbsPath> {
    parent
        .join(&format!(".{}.new", p.file_name()))
        .map_err(io::Error::other)
}

fn unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}
