//! Messages of vendors as received: whatever the bytes are, counting their parts terminates.
use machinist_device_plugins::vendor_api::{
    lazy_messages::LazyFromVendor, limited_codec::SizeGuard as _,
};

pub(crate) fn check(wire: &[u8]) {
    let later = LazyFromVendor::check(wire, false);
    // The first message has one more limit, and is never accepted where others are not.
    if LazyFromVendor::check(wire, true).is_ok() {
        assert!(later.is_ok());
    }
}
