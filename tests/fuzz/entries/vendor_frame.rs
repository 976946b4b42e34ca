//! Messages of vendors as received: whatever the bytes are, counting their parts terminates.
use machinist::vendor::{codec::Guard as _, heard::FromVendor};

pub(crate) fn check(wire: &[u8]) {
    let later = FromVendor::check(wire, false);
    // The first message has one more limit, and is never accepted where others are not.
    if FromVendor::check(wire, true).is_ok() {
        assert!(later.is_ok());
    }
}
