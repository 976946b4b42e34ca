//! Messages of vendors, as they come in: whatever the bytes are, counting their parts ends.
use machinist::vendor::{codec::Guard as _, heard::FromVendor};

pub(crate) fn check(wire: &[u8]) {
    let later = FromVendor::check(wire, false);
    // The first message is held against one more limit, and is never let through where others are not.
    if FromVendor::check(wire, true).is_ok() {
        assert!(later.is_ok());
    }
}
