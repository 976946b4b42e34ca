//! Devices as dynamic resource allocation (DRA, KEP-4381) has them: one driver, one pool for each node, named
//! devices with attributes and taints, and claims that were given some of them.
//!
//! The scheduler chooses by what the pool says; this machine keeps what it chose. All here is pure.

pub mod claim;
pub mod edits;
pub mod name;
pub mod pool;
pub mod ports;
pub mod prepared;

/// The driver's name, the same on all nodes: a DeviceClass names it. Attributes of devices are below it, as
/// `device.attributes["dra.machinist.dev"].resource`.
pub const DRIVER: &str = "dra.machinist.dev";
