//! A compact map from names to values.

use litemap::LiteMap;

/// A sorted list of names with their values. Most devices have one or two entries, while a B-tree
/// allocates room for eleven with the first: with thousands of devices that would be most of their
/// memory.
pub type SmallMap<V> = LiteMap<String, V>;
