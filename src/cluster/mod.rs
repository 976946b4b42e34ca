//! The API server: how it is reached, what is watched there and what is written.
//!
//! The only room that names `kube::Client`. Every request goes through [`Cluster::ask`], which bounds
//! it in time and reads the credentials anew when they are not accepted any more; nobody else waits,
//! counts or repeats below the loops of this room.

mod answer_limit;
pub mod by_hand;
pub mod cancel;
mod client;
pub mod configs;
pub mod dynamic;
mod error;
pub mod events;
pub mod fleet;
mod handover;
pub mod machine_config_node;
pub mod node;
mod other_daemon;
pub mod pods;
pub mod publish;
pub mod slices;
mod token;
mod upgrade_config;

pub use client::{Access, Cluster, Surroundings};
pub use error::{ClusterError, ConnectError, Why};
pub use handover::handed_over;
pub use upgrade_config::UpgradeConfig;

use kube::api::ApiResource;

use crate::crd::names;

/// A kind of OpenShift's machine config group, for objects that are read as they come.
fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: names::GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{}/v1", names::GROUP),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
