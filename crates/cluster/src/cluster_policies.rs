//! Reads the disruption policies of the cluster: `MachineConfiguration/cluster`.
//!
//! The spec is read, and not the status into which a controller merges it: the spec is never outdated, needs no
//! controller, and its mistakes are named. Both lead to the same decisions (`machinist_plan::cluster_policies`).

use kube::api::ApiResource;
use serde_json::Value;

use super::{
    Cluster, ClusterError,
    object_text::{fetch_text, without_lines},
};
use machinist_base::reason::Reason;
use machinist_ignition::Refusal;
use machinist_kube_api::keys;
use machinist_plan::Policies;

/// The kind MachineConfiguration, for objects that are read untyped.
pub fn machine_configuration() -> ApiResource {
    ApiResource {
        group: keys::OPERATOR_GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{}/v1", keys::OPERATOR_GROUP),
        kind: "MachineConfiguration".to_owned(),
        plural: "machineconfigurations".to_owned(),
    }
}

/// The cluster's policies; none if the object or its kind does not exist, or if it defines none.
pub async fn read(
    cluster: &Cluster,
) -> Result<Result<Option<Policies>, Vec<Refusal>>, ClusterError> {
    let (path, name) = (
        format!("/apis/{}/v1/machineconfigurations", keys::OPERATOR_GROUP),
        keys::MACHINE_CONFIGURATION,
    );
    let object = format!("MachineConfiguration {name}");
    match fetch_text(cluster, &path, name, object.clone()).await {
        Ok(text) => Ok(parse(&object, &text)),
        Err(error) if error.is_not_found() => Ok(Ok(None)),
        Err(error) => Err(error),
    }
}

fn parse(object: &str, text: &str) -> Result<Option<Policies>, Vec<Refusal>> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let refusal = Refusal::new(Reason::SyntaxInvalid, error.to_string());
        vec![refusal.file(object)]
    })?;
    // The object was created for other settings and defines no policies.
    if value["spec"]["nodeDisruptionPolicy"].is_null() {
        return Ok(None);
    }
    let policies = Policies::from_machine_configuration(&value);
    let policies = policies.map_err(|refusals| without_lines(refusals, object))?;
    Ok(Some(policies))
}
