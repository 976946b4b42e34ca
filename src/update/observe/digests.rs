//! Digests of files that were read before, so that one update does not read thousands of files three times.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};

use crate::{digest::Digest, root::Stat};

/// A time of change this old is followed by another one when the content changes again: the coarsest file
/// systems count in steps of two seconds (vfat), and the kernel's own clock for it in a hundredth of one.
const SETTLED: SignedDuration = SignedDuration::from_secs(3);

/// Digests by the file's identity, length and time of change (`ctime`), which writing sets and no program can
/// set otherwise. A program that has mapped the file may write some more without a new time, until the kernel
/// has written the page out: the watch for drift therefore never asks here.
///
/// What the last full look did not ask for is forgotten with the next one.
#[derive(Debug, Default)]
pub struct Digests(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    /// When the look began: what changed shortly before, or since, is not settled.
    began: Timestamp,
    /// Which look it is.
    look: u64,
    /// Each with the last look that asked for it.
    known: HashMap<Stamp, (Digest, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    device: (u32, u32),
    ino: u64,
    size: u64,
    changed: (i64, u32),
}

impl Stamp {
    pub(super) const fn of(stat: &Stat) -> Self {
        Self {
            device: stat.device,
            ino: stat.identity.ino,
            size: stat.size,
            changed: stat.changed,
        }
    }

    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Whether a later change of the content is sure to change the stamp.
    fn settled(&self, now: Timestamp) -> bool {
        let changed = Timestamp::from_second(self.changed.0);
        changed.is_ok_and(|changed| now.duration_since(changed) > SETTLED)
    }
}

impl Digests {
    /// Begins a full look.
    pub(super) fn begin(&self) {
        let mut known = self.hold();
        let last = known.look;
        known.known.retain(|_, (_, asked)| *asked == last);
        known.look += 1;
        known.began = Timestamp::now();
    }

    pub(super) fn get(&self, stamp: &Stamp) -> Option<Digest> {
        let mut known = self.hold();
        let look = known.look;
        let (digest, asked) = known.known.get_mut(stamp)?;
        *asked = look;
        Some(*digest)
    }

    pub(super) fn put(&self, stamp: Stamp, digest: Digest) {
        let mut known = self.hold();
        if stamp.settled(known.began) {
            let look = known.look;
            known.known.insert(stamp, (digest, look));
        }
    }

    /// Each change is one call on a map, so that a panic elsewhere leaves nothing half done.
    fn hold(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ino: u64, seconds_ago: i64) -> Stamp {
        Stamp {
            device: (8, 1),
            ino,
            size: 3,
            changed: (Timestamp::now().as_second() - seconds_ago, 0),
        }
    }

    #[test]
    fn a_file_that_was_changed_just_now_is_read_again() {
        let digests = Digests::default();
        digests.begin();
        let digest = Digest::of(b"one");
        digests.put(stamp(1, 1), digest);
        assert_eq!(digests.get(&stamp(1, 1)), None);
        let old = stamp(1, 60);
        digests.put(old, digest);
        assert_eq!(digests.get(&old), Some(digest));
        for other in [
            Stamp { size: 4, ..old },
            Stamp {
                changed: (old.changed.0, 1),
                ..old
            },
            Stamp {
                device: (8, 2),
                ..old
            },
        ] {
            assert_eq!(digests.get(&other), None);
        }
    }

    #[test]
    fn what_a_full_look_did_not_ask_for_is_forgotten_with_the_next() {
        let digests = Digests::default();
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
