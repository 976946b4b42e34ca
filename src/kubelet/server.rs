//! What the kubelet asks of one resource.

use std::{pin::Pin, sync::Arc};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{api::v1beta1 as api, list, state::Board};
use crate::{
    device::{
        Inventory, Resource, ResourceName,
        allocation::{self, AllocationError, Grant, Wish},
    },
    shutdown::Tasks,
};

/// The request lists every free id; gRPC's default of 4 MiB would be too small for what the
/// kubelet may have in its own books.
pub(super) const LARGEST_REQUEST: usize = 16 * 1024 * 1024;

/// How many streams were opened and are still open, over the life of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) opened: u32,
    pub(super) open: u32,
}

/// The device plugin of one resource. All answers come from the inventory as it is.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    pub(super) resource: ResourceName,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) streams: Arc<watch::Sender<Streams>>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: Tasks,
    pub(super) board: Board,
}

impl Plugin {
    /// The inventory and this resource in it.
    fn now(&self) -> Result<(Arc<Inventory>, Arc<Resource>), Status> {
        let inventory = self.inventory.borrow().clone();
        match inventory.resources.get(&self.resource).cloned() {
            Some(resource) => Ok((inventory, resource)),
            None => Err(Status::not_found(format!(
                "nobody offers {} any more",
                self.resource
            ))),
        }
    }
}

/// What we can do; the same at registration and when asked.
pub(super) const fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: true,
    }
}

#[tonic::async_trait]
impl api::device_plugin_server::DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        // One list in the making while another is being sent.
        let (to, from) = mpsc::channel(1);
        let feed = list::feed(
            self.resource.clone(),
            self.inventory.clone(),
            to,
            self.stop.clone(),
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
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let (_, resource) = self.now()?;
        let choose = |asked: api::ContainerPreferredAllocationRequest| {
            let wish = Wish {
                available: &asked.available_device_i_ds,
                must: &asked.must_include_device_i_ds,
                // A negative size asks for nothing.
                size: usize::try_from(asked.allocation_size).unwrap_or_default(),
            };
            let device_i_ds = allocation::preferred(&resource, wish);
            api::ContainerPreferredAllocationResponse { device_i_ds }
        };
        let asked = request.into_inner().container_requests;
        let container_responses = asked.into_iter().map(choose).collect();
        Ok(Response::new(api::PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let _under_way = self.board.allocating();
        let (inventory, resource) = self.now()?;
        let answer = |asked: api::ContainerAllocateRequest| {
            match allocation::grant(&inventory, &resource, &asked.devices_ids) {
                Ok(grant) => Ok(to_wire(grant)),
                Err(error) => {
                    // The kubelet shows the message in the pod's status and nowhere else.
                    let name = &self.resource;
                    tracing::warn!(resource = %name, "an allocation of {name} is refused: {error}");
                    Err(refusal(&error))
                }
            }
        };
        let asked = request.into_inner().container_requests;
        let container_responses = asked.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Response::new(api::AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        // Not asked for in our options; there is nothing to do before a start.
        Ok(Response::new(api::PreStartContainerResponse {}))
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

fn to_wire(grant: Grant) -> api::ContainerAllocateResponse {
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
    api::ContainerAllocateResponse {
        envs: grant.env.into_iter().collect(),
        mounts: mounts.collect(),
        devices: devices.collect(),
        annotations: grant.annotations.into_iter().collect(),
        cdi_devices: Vec::new(),
    }
}
