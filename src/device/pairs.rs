//! Names with values, as small as they can be kept.

use litemap::LiteMap;

/// A sorted list of names with their values. A device has one or two of most kinds, and a B-tree keeps room for
/// eleven from the first on: with thousands of devices that would be most of what they take.
pub type Pairs<V> = LiteMap<String, V>;
