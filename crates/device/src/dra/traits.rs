//! The interfaces that the DRA driver needs from other modules.

use std::{collections::BTreeSet, fmt::Debug, future::Future, pin::Pin, sync::Arc};

use super::{
    claim::{BadClaim, ResourceClaim},
    pool::Pool,
};
use crate::{holders::DeviceHolders, resource_name::ResourceName};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraCallError {
    /// The other side was unreachable or refused.
    #[error("{0}")]
    Unreachable(String),
    /// The claim is not valid.
    #[error(transparent)]
    Claim(#[from] BadClaim),
}

impl DraCallError {
    /// Whether the same call may succeed later. The kubelet retries in any case.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

/// A pending reply. Dropping it cancels the call.
pub type CallFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DraCallError>> + Send + 'a>>;

/// Access to the cluster's claims.
pub trait ClaimReader: Debug + Send + Sync + 'static {
    /// The current claim in the API server; none if there is no such object.
    fn get<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> CallFuture<'a, Option<ResourceClaim>>;
}

/// Access to the kubelet's allocations to containers.
pub trait InUseDevices: Debug + Send + Sync + 'static {
    /// The holders of devices by resource, and of claimed devices by their names in the pool.
    fn holders(&self) -> CallFuture<'_, DeviceHolders>;
}

/// The result of publishing the pool to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedPool {
    /// The pool generation that was published last; the next one is higher.
    pub generation: u64,
    /// The resources with devices in the published pool; none while that is not known.
    pub resources: Option<BTreeSet<ResourceName>>,
    /// Why the pool is not published completely, as text.
    pub problem: Option<String>,
}

/// The pool to publish; none while nothing may be published, and the published slices then stay
/// unchanged.
pub type DesiredPool = Option<Arc<Pool>>;
