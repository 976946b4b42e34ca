//! Lists of unmodified plugins as received: read in pieces, never whole.
use machinist_device_plugins::plugin_proxy::count;

const MOST: usize = 8;

pub(crate) fn check(message: &[u8]) {
    let (piece, message) = message.split_first().unwrap_or((&1, &[]));
    let whole = count(message, MOST, message.len());
    // The pieces of a message do not change the result; which of two errors is reported first may
    // differ.
    let pieces = count(message, MOST, usize::from(*piece));
    assert_eq!(whole.is_ok(), pieces.is_ok());
    if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
        assert_eq!(whole, pieces);
        assert!(whole.0 <= MOST);
    }
}
