//! Messages of vendors, as they come in: whatever the bytes are, counting their parts ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use machinist::vendor::{codec::Guard as _, heard::FromVendor};

fuzz_target!(|wire: &[u8]| {
    let later = FromVendor::check(wire, false);
    // The first message is held against one more limit, and is never let through where others are not.
    if FromVendor::check(wire, true).is_ok() {
        assert!(later.is_ok());
    }
});
