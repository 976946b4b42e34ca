//! The kernel's uevents, and arbitrary messages that any process may send to a netlink socket.
use machinist_device::uevent::Uevent;

pub(crate) fn check(message: &[u8]) {
    if let Some(event) = Uevent::parse(message) {
        assert!(event.device_path.starts_with('/') && !event.action.is_empty());
        assert!(event.node.is_none_or(|node| node.len() < message.len()));
    }
}
