//! What the kernel says about devices – and what anybody may send to a netlink socket.
#![no_main]

use libfuzzer_sys::fuzz_target;
use machinist::hardware::uevent::Uevent;

fuzz_target!(|message: &[u8]| {
    if let Some(event) = Uevent::parse(message) {
        assert!(event.device_path.starts_with('/') && !event.action.is_empty());
        assert!(event.node.is_none_or(|node| node.len() < message.len()));
    }
});
