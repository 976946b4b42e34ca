//! Dynamic resource allocation (`resource.k8s.io`) as the API server has it: the version that it speaks, and its
//! claims.

use kube::{Client, api::GetParams, core::Request};
use serde::Deserialize;

use super::{Cluster, ClusterError, Why};
use crate::{
    crd::names,
    device::dra::{
        claim::Claim,
        pool::Spelling,
        ports::{Claims, PortError, Reply},
    },
    telemetry::chain,
};

/// The group of claims and slices.
pub(super) const GROUP: &str = "resource.k8s.io";

/// Versions that are understood, the newest first, and how they spell devices.
const VERSIONS: [(&str, Spelling); 3] = [
    ("v1", Spelling::Plain),
    ("v1beta2", Spelling::Plain),
    ("v1beta1", Spelling::Basic),
];

#[derive(Deserialize)]
struct Group {
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// The newest version that the server and we know.
///
/// # Errors
/// It does not say; 404 where it has no such group, or none of these versions.
pub(super) async fn version(cluster: &Cluster) -> Result<(&'static str, Spelling), ClusterError> {
    let get = |client: Client| async move {
        let request = Request::new("/apis").get(GROUP, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        client.request::<Group>(request).await
    };
    let group = cluster.ask("get", format!("the API {GROUP}"), get).await?;
    let has = |version: &str| group.versions.iter().any(|one| one.version == version);
    let found = VERSIONS.into_iter().find(|(version, _)| has(version));
    found.ok_or_else(|| ClusterError {
        act: "get",
        object: format!("the API {GROUP}"),
        why: Why::NoVersion(VERSIONS.map(|(version, _)| version).join(", ")),
    })
}

/// The claims of the cluster.
#[derive(Debug)]
pub struct ClusterClaims {
    cluster: Cluster,
}

impl ClusterClaims {
    /// Nothing is asked yet.
    pub const fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Option<String>, ClusterError> {
        let object = format!("ResourceClaim {namespace}/{name}");
        // They become part of a path.
        if !names::is_object_name(namespace) || !names::is_object_name(name) {
            return Err(ClusterError {
                act: "get",
                object,
                why: Why::NoName,
            });
        }
        // Asked each time: where a server has lost a version, none of its claims is there, and that must not look
        // like claims that are gone.
        let (version, _) = version(&self.cluster).await.map_err(|error| ClusterError {
            why: if error.is_not_found() {
                Why::NotUnderstood
            } else {
                error.why
            },
            ..error
        })?;
        let path = format!("/apis/{GROUP}/{version}/namespaces/{namespace}/resourceclaims");
        let path = path.as_str();
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request_text(request).await
        };
        match self.cluster.ask("get", object, get).await {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Claims for ClusterClaims {
    fn get<'a>(&'a self, namespace: &'a str, name: &'a str) -> Reply<'a, Option<Claim>> {
        Box::pin(async move {
            let found = self.read(namespace, name).await;
            let found = found.map_err(|error| PortError::Away(chain(&error)))?;
            Ok(found.as_deref().map(Claim::read).transpose()?)
        })
    }
}
