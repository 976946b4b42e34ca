//! The API server: how it is reached, what is watched there and what is written.
//!
//! The only room that names `kube::Client`. Every request goes through [`Cluster::ask`], which bounds
//! it in time and reads the credentials anew when they are not accepted any more; nobody else waits,
//! counts or repeats below the loops of this room.

pub mod by_hand;
mod client;
pub mod configs;
mod error;
pub mod events;
pub mod machine_config_node;
pub mod node;
pub mod pods;
pub mod publish;

pub use client::{Access, Cluster, Surroundings};
pub use error::{ClusterError, ConnectError, Why};
