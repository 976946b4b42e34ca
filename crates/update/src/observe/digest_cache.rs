//! Caches digests of files, so that one update does not read thousands of files three times.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};

use machinist_base::digest::Digest;
use machinist_rootfs::Stat;

/// Minimum age of a change time for caching. After this time, another change of the content is sure to set a
/// different time: the coarsest file systems have a resolution of two seconds (vfat), and the kernel's clock for
/// change times one of a hundredth of a second.
const MIN_CACHE_AGE: SignedDuration = SignedDuration::from_secs(3);

/// Digests, keyed by the file's identity, length, and change time (`ctime`), which every write updates and no
/// program can set. A program that has mapped the file may continue to write without a new time until the kernel
/// writes the page back. Therefore the drift watch never uses this cache.
///
/// An entry that the last full observation did not use is dropped at the start of the next one.
#[derive(Debug, Default)]
pub struct DigestCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    /// Start of the observation: files that changed shortly before or since are not cached.
    began: Timestamp,
    /// Number of the observation.
    look: u64,
    /// Each digest with the last observation that used it.
    known: HashMap<FileStamp, (Digest, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileStamp {
    device: (u32, u32),
    ino: u64,
    size: u64,
    changed: (i64, u32),
}

impl FileStamp {
    pub(super) const fn of(stat: &Stat) -> Self {
        Self {
            device: stat.device,
            ino: stat.identity.ino,
            size: stat.size,
            changed: stat.changed,
        }
    }

    /// Returns whether both are stamps of one file, which may have been written in between.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.ino) == (other.device, other.ino)
    }

    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether a later change of the content is sure to change the stamp.
    fn settled(&self, now: Timestamp) -> bool {
        let changed = Timestamp::from_second(self.changed.0);
        changed.is_ok_and(|changed| now.duration_since(changed) > MIN_CACHE_AGE)
    }
}

impl DigestCache {
    /// Starts a full observation.
    pub(super) fn begin(&self) {
        let mut known = self.hold();
        let last = known.look;
        known.known.retain(|_, (_, asked)| *asked == last);
        known.look += 1;
        known.began = Timestamp::now();
    }

    pub(super) fn get(&self, stamp: &FileStamp) -> Option<Digest> {
        let mut known = self.hold();
        let look = known.look;
        let (digest, asked) = known.known.get_mut(stamp)?;
        *asked = look;
        Some(*digest)
    }

    pub(super) fn put(&self, stamp: FileStamp, digest: Digest) {
        let mut known = self.hold();
        if stamp.settled(known.began) {
            let look = known.look;
            known.known.insert(stamp, (digest, look));
        }
    }

    /// Locks the cache. Each change is a single map operation, so a panic elsewhere leaves it consistent.
    fn hold(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ino: u64, seconds_ago: i64) -> FileStamp {
        FileStamp {
            device: (8, 1),
            ino,
            size: 3,
            changed: (Timestamp::now().as_second() - seconds_ago, 0),
        }
    }

    #[test]
    fn a_recently_changed_file_is_hashed_again() {
        let digests = DigestCache::default();
        digests.begin();
        let digest = Digest::of(b"one");
        digests.put(stamp(1, 1), digest);
        assert_eq!(digests.get(&stamp(1, 1)), None);
        let old = stamp(1, 60);
        digests.put(old, digest);
        assert_eq!(digests.get(&old), Some(digest));
        for other in [
            FileStamp { size: 4, ..old },
            FileStamp {
                changed: (old.changed.0, 1),
                ..old
            },
            FileStamp {
                device: (8, 2),
                ..old
            },
        ] {
            assert_eq!(digests.get(&other), None);
        }
    }

    #[test]
    fn digests_unused_during_a_full_scan_are_evicted() {
        let digests = DigestCache::default();
        digests.begin();
        let (asked, not) = (stamp(1, 60), stamp(2, 60));
        digests.put(asked, Digest::of(b"1"));
        digests.put(not, Digest::of(b"2"));
        digests.begin();
        assert!(digests.get(&asked).is_some());
        digests.begin();
        assert!(digests.get(&asked).is_some());
        assert!(digests.get(&not).is_none());
    }
}
