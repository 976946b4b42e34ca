//! The device plugin gRPC service of one resource.

use std::{pin::Pin, sync::Arc};

use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    api::{relay::device_plugin_server::DevicePlugin, v1beta1 as api},
    list_and_watch,
    raw_message::RawMessage,
    status::KubeletStatusWriter,
};
use machinist_base::shutdown::Tasks;
use machinist_device::{
    Inventory, Resource, ResourceName,
    allocation::{self, AllocationError, ContainerAllocation, PreferredRequest},
    allocator::{AllocateError, AllocationRequest, AllocationResponse, Allocators},
};

/// Bytes of a request, which lists every free id; gRPC's default of 4 MiB is too small for what the
/// kubelet may have in its checkpoint.
pub(super) const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// Number of streams opened and still open, over the life of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) opened: u32,
    pub(super) open: u32,
}

/// The device plugin of one resource. All answers use the current inventory.
#[derive(Clone, Debug)]
pub(super) struct DevicePluginService {
    pub(super) resource: ResourceName,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) allocators: Allocators,
    pub(super) streams: Arc<watch::Sender<Streams>>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: Tasks,
    pub(super) status_writer: KubeletStatusWriter,
}

impl DevicePluginService {
    /// The inventory and this resource in it.
    fn now(&self) -> Result<(Arc<Inventory>, Arc<Resource>), Status> {
        let inventory = self.inventory.borrow().clone();
        match inventory.resources.get(&self.resource).cloned() {
            Some(resource) => Ok((inventory, resource)),
            None => Err(Status::not_found(format!(
                "{} is no longer offered",
                self.resource
            ))),
        }
    }
}

/// The plugin's options, the same at registration and on request.
pub(super) fn options(inventory: &Inventory, name: &ResourceName) -> api::DevicePluginOptions {
    let resource = inventory.resources.get(name);
    api::DevicePluginOptions {
        pre_start_required: resource.is_some_and(|one| one.asks.pre_start),
        get_preferred_allocation_available: true,
    }
}

#[tonic::async_trait]
impl DevicePlugin for DevicePluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        let inventory = self.inventory.borrow().clone();
        Ok(Response::new(options(&inventory, &self.resource)))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        // Capacity for one list in preparation while another is being sent.
        let (to, from) = mpsc::channel(1);
        let feed = list_and_watch::feed(
            self.resource.clone(),
            self.inventory.clone(),
            to,
            (self.stop.clone(), self.status_writer.log_rates.clone()),
        );
        let streams = Arc::clone(&self.streams);
        streams.send_modify(|count| {
            count.opened += 1;
            count.open += 1;
        });
        self.tasks.spawn("device list", async move {
            feed.await;
            streams.send_modify(|count| count.open -= 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<RawMessage>, Status> {
        let (_, resource) = self.now()?;
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let preference = PreferredRequest {
                available: &asked.available_device_i_ds,
                must: &asked.must_include_device_i_ds,
                // A negative size requests nothing.
                size: usize::try_from(asked.allocation_size).unwrap_or_default(),
            };
            let device_i_ds = self.prefer(&resource, preference).await;
            container_responses.push(api::ContainerPreferredAllocationResponse { device_i_ds });
        }
        let answer = api::PreferredAllocationResponse {
            container_responses,
        };
        Ok(Response::new(RawMessage(answer.encode_to_vec().into())))
    }

    async fn allocate(&self, request: Request<RawMessage>) -> Result<Response<RawMessage>, Status> {
        let _in_progress = self.status_writer.allocating();
        let (inventory, resource) = self.now()?;
        let RawMessage(wire) = request.into_inner();
        let asked = api::AllocateRequest::decode(wire.clone()).map_err(decode_error)?;
        let answers = match resource.asks.allocate {
            true => self.ask_source(&inventory, &resource, &asked, &wire).await,
            false => self.answer_from_specs(&inventory, &resource, &asked).await,
        };
        let answers = answers.inspect_err(|status| {
            // The kubelet shows the message in the pod's status and nowhere else.
            let (name, why) = (&self.resource, status.message());
            self.warn(|suppressed| {
                tracing::warn!(resource = %name, suppressed, "allocation of {name} rejected: {why}");
            });
        });
        Ok(Response::new(RawMessage::joined(answers?)))
    }

    async fn pre_start_container(
        &self,
        request: Request<RawMessage>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let (inventory, resource) = self.now()?;
        if resource.asks.pre_start {
            // Its source was ordered to release the hardware.
            if let Some(allocation_disabled) = inventory
                .allocation_disabled
                .as_ref()
                .filter(|it| it.refuses)
            {
                let (name, why) = (&self.resource, &allocation_disabled.why);
                return Err(Status::unavailable(format!(
                    "allocation of {name} disabled: {why}"
                )));
            }
            let RawMessage(wire) = request.into_inner();
            let asked =
                api::PreStartContainerRequest::decode(wire.clone()).map_err(decode_error)?;
            let wanted = AllocationRequest {
                ids: &asked.devices_ids,
                wire: Some(&wire),
            };
            let by = self.allocators.of(&resource.source).map_err(unanswered)?;
            by.pre_start(&resource, wanted).await.map_err(|error| {
                let name = &self.resource;
                self.warn(|suppressed| {
                    tracing::warn!(resource = %name, suppressed, "a container with {name} cannot start: {error}");
                });
                unanswered(error)
            })?;
        }
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}

impl DevicePluginService {
    /// Logs a line about a call, with the number of lines suppressed before: any process that can call this
    /// service can cause it at will.
    fn warn(&self, log: impl FnOnce(u64)) {
        if let Some(suppressed) = self.status_writer.log_rates.take(self.resource.as_str()) {
            log(suppressed);
        }
    }

    /// Our own choice if the source does not choose, cannot be reached, or chooses devices that
    /// were not available: it is only advice, and no pod should wait for it.
    async fn prefer(&self, resource: &Resource, preference: PreferredRequest<'_>) -> Vec<String> {
        if resource.asks.preferred
            && let Ok(by) = self.allocators.of(&resource.source)
        {
            match by.preferred(resource, preference).await {
                Ok(chosen) if allocation::is_valid_preference(preference, &chosen) => {
                    return chosen;
                }
                Ok(_) => {
                    let (name, by) = (&self.resource, &resource.source);
                    self.warn(|suppressed| {
                        tracing::warn!(resource = %name, suppressed, "{by} returned an invalid preferred allocation for {name}");
                    });
                }
                Err(error) => {
                    let name = &self.resource;
                    self.warn(|suppressed| {
                        tracing::warn!(resource = %name, suppressed, "failed to get the preferred allocation of {name}: {error}");
                    });
                }
            }
        }
        allocation::preferred(resource, preference)
    }

    /// The answer for each container, as an `AllocateResponse` of its own, from device specs.
    async fn answer_from_specs(
        &self,
        inventory: &Inventory,
        resource: &Resource,
        asked: &api::AllocateRequest,
    ) -> Result<Vec<RawMessage>, Status> {
        let mut grants = Vec::with_capacity(asked.container_requests.len());
        for container in &asked.container_requests {
            let grant = allocation::allocate(inventory, resource, &container.devices_ids);
            grants.push(grant.map_err(|error| refusal(&error))?);
            // A request may name many containers, and others are served on the same thread.
            tokio::task::consume_budget().await;
        }
        // The paths may lead elsewhere than when the device spec was first checked.
        if let Ok(by) = self.allocators.of(&resource.source) {
            let checked = by.recheck_paths(resource, grants).await;
            grants = checked.map_err(unanswered)?;
        }
        Ok(grants.into_iter().map(to_wire).collect())
    }

    /// The answer for each container, as an `AllocateResponse` of its own, from the source.
    async fn ask_source(
        &self,
        inventory: &Inventory,
        resource: &Resource,
        asked: &api::AllocateRequest,
        wire: &[u8],
    ) -> Result<Vec<RawMessage>, Status> {
        // Kubelets request one container at a time; only then can the request be forwarded.
        let wire = (asked.container_requests.len() == 1).then_some(wire);
        let mut answers = Vec::with_capacity(asked.container_requests.len());
        for container in &asked.container_requests {
            let ids = &container.devices_ids;
            allocation::allocatable_devices(inventory, resource, ids)
                .map_err(|error| refusal(&error))?;
            let by = self.allocators.of(&resource.source).map_err(unanswered)?;
            let wanted = AllocationRequest { ids, wire };
            let answer = by.allocate(resource, wanted).await.map_err(unanswered)?;
            answers.push(match answer {
                AllocationResponse::Grant(grant) => to_wire(grant),
                AllocationResponse::Wire(bytes) => RawMessage(bytes.into()),
            });
        }
        Ok(answers)
    }
}

fn decode_error(error: prost::DecodeError) -> Status {
    Status::invalid_argument(format!("failed to decode the request: {error}"))
}

fn unanswered(error: AllocateError) -> Status {
    let message = error.to_string();
    match error {
        AllocateError::Unreachable { .. } => Status::unavailable(message),
        AllocateError::TimedOut { .. } => Status::deadline_exceeded(message),
        AllocateError::Refused { .. } => Status::failed_precondition(message),
    }
}

fn refusal(error: &AllocationError) -> Status {
    let message = error.to_string();
    match error {
        AllocationError::Unknown { .. } => Status::not_found(message),
        AllocationError::Unhealthy { .. } => Status::unavailable(message),
        AllocationError::SameDevice { .. } | AllocationError::SamePlace { .. } => {
            Status::failed_precondition(message)
        }
    }
}

fn to_wire(grant: ContainerAllocation) -> RawMessage {
    let devices = grant.nodes.into_iter().map(|node| api::DeviceSpec {
        container_path: node.inside,
        host_path: node.host,
        permissions: node.permissions,
    });
    let mounts = grant.mounts.into_iter().map(|mount| api::Mount {
        container_path: mount.inside,
        host_path: mount.host,
        read_only: mount.read_only,
    });
    let cdi = grant.cdi.into_iter().map(|name| api::CdiDevice { name });
    let one = api::ContainerAllocateResponse {
        envs: grant.env.into_iter().collect(),
        mounts: mounts.collect(),
        devices: devices.collect(),
        annotations: grant.annotations.into_iter().collect(),
        cdi_devices: cdi.collect(),
    };
    let answer = api::AllocateResponse {
        container_responses: vec![one],
    };
    RawMessage(answer.encode_to_vec().into())
}

#[cfg(test)]
mod tests;
