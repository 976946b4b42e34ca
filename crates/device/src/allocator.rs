//! The interface to a resource's source, for allocations that a device spec alone cannot answer.

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    allocation::{ContainerAllocation, PreferredRequest},
    inventory::Resource,
    source::ResourceSource,
};

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationResponse {
    /// As a parsed allocation.
    Grant(ContainerAllocation),
    /// As an encoded `v1beta1.AllocateResponse` for one container, which is passed to the kubelet
    /// unchanged, so that fields that this version does not know survive.
    Wire(Vec<u8>),
}

/// Why a source gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The source is unreachable.
    #[error("{by} is unreachable: {why}")]
    Unreachable {
        /// The source.
        by: ResourceSource,
        /// The reason, as text.
        why: String,
    },
    /// The answer did not arrive in time.
    #[error("{by} did not respond within {} s", after.as_secs_f64())]
    TimedOut {
        /// The source.
        by: ResourceSource,
        /// How long the agent waited.
        after: Duration,
    },
    /// The source refused, or its answer must not be used.
    #[error("allocation from {by} rejected: {why}")]
    Refused {
        /// The source.
        by: ResourceSource,
        /// The reason, as text.
        why: String,
    },
}

impl AllocateError {
    /// Whether the same call may succeed later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. })
    }
}

/// The devices to allocate to a container.
#[derive(Clone, Copy, Debug)]
pub struct AllocationRequest<'a> {
    /// The device ids of the resource, with share numbers.
    pub ids: &'a [String],
    /// The kubelet's encoded request, if there is one. It may contain fields that this version does
    /// not know; proxies forward all of it.
    pub wire: Option<&'a [u8]>,
}

impl<'a> From<&'a [String]> for AllocationRequest<'a> {
    fn from(ids: &'a [String]) -> Self {
        Self { ids, wire: None }
    }
}

impl<'a> From<&'a Vec<String>> for AllocationRequest<'a> {
    fn from(ids: &'a Vec<String>) -> Self {
        ids.as_slice().into()
    }
}

/// A pending answer. Dropping it cancels the call.
pub type AllocationFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, AllocateError>> + Send + 'a>>;

/// Allocates the devices of one kind of source: declarations, vendors or device plugins. Each call
/// has a deadline of its own.
pub trait Allocator: Debug + Send + Sync + 'static {
    /// What a container gets with exactly these devices, which must exist and be allocatable.
    fn allocate<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, AllocationResponse>;

    /// Checks allocations that were built from device specs, since their paths may lead elsewhere
    /// than when the specs were read. In the result, links in the host paths of mounts are resolved.
    /// Sources without device specs return them unchanged. All containers of a request are checked
    /// in one call, so that what is the same for all of them is looked up once.
    fn recheck_paths<'a>(
        &'a self,
        _resource: &'a Resource,
        grants: Vec<ContainerAllocation>,
    ) -> AllocationFuture<'a, Vec<ContainerAllocation>> {
        Box::pin(std::future::ready(Ok(grants)))
    }

    /// The preferred devices. The caller validates the answer.
    fn preferred<'a>(
        &'a self,
        resource: &'a Resource,
        request: PreferredRequest<'a>,
    ) -> AllocationFuture<'a, Vec<String>>;

    /// Makes devices ready before a container is started.
    fn pre_start<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, ()>;
}

/// The allocation backend for each kind of source.
#[derive(Clone, Debug, Default)]
pub struct Allocators {
    /// For [`ResourceSource::File`]: only [`Allocator::recheck_paths`] is called on it.
    pub file: Option<Arc<dyn Allocator>>,
    /// For [`ResourceSource::Vendor`].
    pub vendor: Option<Arc<dyn Allocator>>,
    /// For [`ResourceSource::Plugin`].
    pub plugin: Option<Arc<dyn Allocator>>,
}

impl Allocators {
    /// The backend for `source`; an error if there is none.
    pub fn of(&self, source: &ResourceSource) -> Result<&dyn Allocator, AllocateError> {
        let found = match source {
            ResourceSource::File(_) => self.file.as_deref(),
            ResourceSource::Vendor(_) => self.vendor.as_deref(),
            ResourceSource::Plugin(_) => self.plugin.as_deref(),
        };
        found.ok_or_else(|| AllocateError::Unreachable {
            by: source.clone(),
            why: "no allocation backend for this source".to_owned(),
        })
    }
}
