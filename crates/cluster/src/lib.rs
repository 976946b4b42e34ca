//! Client of the API server: connection, watches and writes.
//!
//! The only module that uses `kube::Client`. Every request goes through [`Cluster::request`], which
//! applies a timeout and reloads the credentials when they are rejected. Waiting, counting failures
//! and retrying happen only in this module's top-level loops.

mod client;
pub mod cluster_policies;
mod controller_lease;
mod error;
pub mod events;
pub mod fleet_queries;
mod fleet_watch;
pub mod json_patch;
pub mod machine_config_node;
pub mod machine_config_source;
mod mcd_pod;
pub mod node;
pub mod node_changes;
pub mod node_commands;
pub mod node_poll;
pub mod node_writer;
mod object_text;
pub mod pinned_image_sets;
pub mod pod_queries;
pub mod pods;
pub mod pool_commands;
pub mod publisher;
pub mod resource_claims;
pub mod resource_slices;
mod response_limit;
mod token_file;
pub mod update_cancel;
pub mod upgrade_config;
pub mod watch_loop;
mod watch_stream;

pub use client::{Cluster, ClusterAccess, ClusterEnv};
pub use controller_lease::ControllerLease;
pub use error::{ClusterError, ClusterErrorKind, ConnectError};
pub use fleet_watch::{Fleet, FleetWatch, WatchRefused};
pub use node_commands::handover_annotations;
pub use upgrade_config::UpgradeConfig;
pub use watch_stream::WatchChange;

use kube::api::ApiResource;

use machinist_kube_api::keys;

/// A kind of OpenShift's machine config API group, for objects that are read untyped.
pub fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: keys::GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{}/v1", keys::GROUP),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
