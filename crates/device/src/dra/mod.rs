//! Dynamic resource allocation (DRA, KEP-4381): one driver, one pool for each node, named devices
//! with attributes and taints, and the claims to which devices are allocated.
//!
//! The scheduler allocates devices from the published pool; the driver on the node prepares them. All
//! code here is pure.

pub mod cdi_edits;
pub mod claim;
pub mod claim_checkpoint;
pub mod device_names;
pub mod pool;
pub mod traits;

/// The driver's name, the same on all nodes: DeviceClasses refer to it. It is also the domain of
/// device attributes, as in `device.attributes["dra.machinist.dev"].resource`.
pub const DRIVER_NAME: &str = "dra.machinist.dev";
