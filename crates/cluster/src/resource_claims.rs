//! Client for dynamic resource allocation (`resource.k8s.io`): API version discovery and
//! ResourceClaims.

use kube::{Client, api::GetParams, core::Request};
use serde::Deserialize;

use super::{Cluster, ClusterError, ClusterErrorKind};
use machinist_base::error_chain::chain;
use machinist_device::dra::{
    claim::ResourceClaim,
    pool::ApiFlavor,
    traits::{CallFuture, ClaimReader, DraCallError},
};
use machinist_kube_api::keys;

/// API group of ResourceClaims and ResourceSlices.
pub(super) const RESOURCE_API_GROUP: &str = "resource.k8s.io";

/// Supported API versions, newest first, and how each one encodes devices.
const API_VERSIONS: [(&str, ApiFlavor); 3] = [
    ("v1", ApiFlavor::Plain),
    ("v1beta2", ApiFlavor::Plain),
    ("v1beta1", ApiFlavor::Basic),
];

#[derive(Deserialize)]
struct ApiGroup {
    versions: Vec<ApiGroupVersion>,
}

#[derive(Deserialize)]
struct ApiGroupVersion {
    version: String,
}

/// The newest API version that both the server and machinist support.
///
/// # Errors
/// The request failed; 404 if the server has neither the group nor a supported version.
pub(super) async fn version(cluster: &Cluster) -> Result<(&'static str, ApiFlavor), ClusterError> {
    let get = |client: Client| async move {
        let request = Request::new("/apis").get(RESOURCE_API_GROUP, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        client.request::<ApiGroup>(request).await
    };
    let group = cluster
        .request("get", format!("the API {RESOURCE_API_GROUP}"), get)
        .await?;
    let has = |version: &str| group.versions.iter().any(|one| one.version == version);
    let found = API_VERSIONS.into_iter().find(|(version, _)| has(version));
    found.ok_or_else(|| ClusterError {
        act: "get",
        object: format!("the API {RESOURCE_API_GROUP}"),
        why: ClusterErrorKind::NoVersion(API_VERSIONS.map(|(version, _)| version).join(", ")),
    })
}

/// Reads ResourceClaims from the API server.
#[derive(Debug)]
pub struct ClusterClaims {
    cluster: Cluster,
}

impl ClusterClaims {
    /// Creates the client without sending a request.
    pub const fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Option<String>, ClusterError> {
        let object = format!("ResourceClaim {namespace}/{name}");
        // Both become part of a URL path.
        if !keys::is_object_name(namespace) || !keys::is_object_name(name) {
            return Err(ClusterError {
                act: "get",
                object,
                why: ClusterErrorKind::NoName,
            });
        }
        // The version is discovered for each request: after a server drops a version, a 404 for its
        // claims must not look like deleted claims.
        let (version, _) = version(&self.cluster).await.map_err(|error| ClusterError {
            why: if error.is_not_found() {
                ClusterErrorKind::NotUnderstood
            } else {
                error.why
            },
            ..error
        })?;
        let path =
            format!("/apis/{RESOURCE_API_GROUP}/{version}/namespaces/{namespace}/resourceclaims");
        let path = path.as_str();
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request_text(request).await
        };
        match self.cluster.request("get", object, get).await {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl ClaimReader for ClusterClaims {
    fn get<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> CallFuture<'a, Option<ResourceClaim>> {
        Box::pin(async move {
            let found = self.read(namespace, name).await;
            let found = found.map_err(|error| DraCallError::Unreachable(chain(&error)))?;
            Ok(found.as_deref().map(ResourceClaim::read).transpose()?)
        })
    }
}
