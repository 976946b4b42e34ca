//! Devices: discovery, declarations and allocation.
//!
//! Except [`registry`], all modules are pure: the same declarations and the same
//! hardware give the same lists, choices and answers.

pub mod allocation;
pub mod answer;
pub mod cdi;
pub mod declaration;
pub mod document;
pub mod dra;
pub mod facts;
pub mod glob;
pub mod holders;
pub mod inventory;
pub mod ledger;
mod live;
pub mod name;
mod pairs;
pub mod presence;
pub mod quantity;
pub mod registry;
pub mod rules;
pub mod sighting;
pub mod source;
pub mod status;
pub mod taint;
pub mod template;
pub mod uevent;
pub mod vendor;

pub use crate::machine_config::Refusal;
pub use declaration::{Allowances, CdiAnswer, Declaration};
pub use inventory::{Device, DeviceNode, Health, Inventory, Resource, Serve, Withheld};
pub use name::ResourceName;
pub use pairs::Pairs;
pub use source::Source;
