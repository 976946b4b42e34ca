//! Client of the API server: connection, watches and writes.
//!
//! The only module that uses `kube::Client`. Every request goes through [`Cluster::ask`], which
//! applies a timeout and reloads the credentials when they are rejected. Waiting, counting failures
//! and retrying happen only in this module's top-level loops.

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

/// A kind of OpenShift's machine config API group, for objects that are read untyped.
fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: names::GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{}/v1", names::GROUP),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
