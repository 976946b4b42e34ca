//! Devices: discovery, declarations and allocation.
//!
//! Except [`registry`], all modules are pure: the same declarations and the same
//! hardware give the same lists, choices and answers.

pub mod allocation;
pub mod allocator;
pub mod cdi;
pub mod declaration;
pub mod discovery;
pub mod dra;
pub mod flap_detection;
pub mod glob;
pub mod holders;
pub mod inventory;
pub mod mount_allowlist;
pub mod quantity;
pub mod registry;
pub mod registry_state;
pub mod resource_name;
mod small_map;
pub mod source;
mod source_flap_detection;
pub mod status;
pub mod sysfs_facts;
pub mod taint;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod uevent;
pub mod vendor_declaration;
pub mod yaml;

pub use declaration::{Allowances, CdiDelivery, Declaration};
pub use inventory::{
    AllocationDisabled, Device, DeviceNode, Health, Inventory, Resource, ServeMode,
};
pub use machinist_ignition::Refusal;
pub use resource_name::ResourceName;
pub use small_map::SmallMap;
pub use source::ResourceSource;
