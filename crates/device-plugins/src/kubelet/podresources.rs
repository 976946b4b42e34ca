//! A client for the kubelet's podresources API: which container has which device.
//!
//! It is not polled: a call is made on a user's request, after an allocation, and while an update
//! waits for devices to be released. Each call has its own connection, so that none outlives a
//! kubelet.
//! devices to come back. Each question has a connection of its own, so that none outlives a kubelet.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::api::v1::{
    self as api, AllocatableResourcesRequest, ListPodResourcesRequest,
    pod_resources_lister_client::PodResourcesListerClient as Client,
};
use machinist_base::abs_path::AbsPath;
use machinist_device::{
    dra::DRIVER_NAME,
    holders::{DeviceHolders, Holder},
};
use machinist_rootfs::{Root, RootError};

/// The kubelet's socket.
pub const POD_RESOURCES_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Bytes of an answer. A node usually has up to 250 pods and some hundred devices; the kubelet's
/// own tests accept this much.
const MAX_POD_RESOURCES_BYTES: usize = 16 * 1024 * 1024;
/// Timeout of a call, connecting included.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between our calls. The kubelet answers a hundred calls a second for all clients
/// together; ours are a tenth of that.
pub const MIN_CALL_INTERVAL: Duration = Duration::from_millis(100);
/// Delay after the kubelet reported too many calls; doubled while it keeps doing so.
const MIN_THROTTLE_BACKOFF: Duration = Duration::from_secs(1);
const MAX_THROTTLE_BACKOFF: Duration = Duration::from_secs(30);

/// Why the holders of devices are unknown.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// There is no kubelet, or it is starting.
    #[error("failed to list devices in use by pods: no kubelet on {POD_RESOURCES_SOCKET}")]
    Absent,
    /// It accepted the call and did not answer.
    #[error("failed to list devices in use by pods: no answer within {} s", CALL_TIMEOUT.as_secs())]
    Silent,
    /// It received too many calls lately, from this or other clients.
    #[error("failed to list devices in use by pods: rate limited by the kubelet; backing off")]
    Busy,
    /// It answered with an error.
    #[error("failed to list devices in use by pods: {message} ({code:?})")]
    Refused {
        /// gRPC's code.
        code: Code,
        /// The kubelet's error text.
        message: String,
    },
    /// Its socket cannot be examined.
    #[error(transparent)]
    Socket(#[from] RootError),
    /// Its socket exists, but this process cannot connect.
    #[error("failed to list devices in use by pods: cannot connect to {POD_RESOURCES_SOCKET}")]
    Unreached(#[source] tonic::transport::Error),
}

impl From<Status> for PodResourcesError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::ResourceExhausted => Self::Busy,
            // The kubelet ended or was restarted during the call.
            Code::Unavailable => Self::Absent,
            code => Self::Refused {
                code,
                message: status.message().to_owned(),
            },
        }
    }
}

/// When the kubelet may be called again.
#[derive(Debug, Default)]
struct CallPacing {
    not_before: Option<Instant>,
    /// How many times in a row the kubelet reported too many calls.
    refused: u32,
}

/// A client of one kubelet. Cheap to clone; clones make their calls one after the other.
#[derive(Clone, Debug)]
pub struct PodResources {
    root: Root,
    pace: Arc<Mutex<CallPacing>>,
}

impl PodResources {
    /// Creates the client without connecting.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            pace: Arc::default(),
        }
    }

    /// The devices of every container of the node.
    pub async fn list(&self) -> Result<DeviceHolders, PodResourcesError> {
        let ask = |mut client: Client<Channel>| async move {
            Ok(client.list(ListPodResourcesRequest {}).await?.into_inner())
        };
        Ok(holders(self.ask(ask).await?))
    }

    /// The devices that the kubelet can allocate, in use or not: the healthy ones, by resource.
    pub async fn allocatable(
        &self,
    ) -> Result<BTreeMap<String, BTreeSet<String>>, PodResourcesError> {
        let ask = |mut client: Client<Channel>| async move {
            let asked = client.get_allocatable_resources(AllocatableResourcesRequest {});
            Ok(asked.await?.into_inner())
        };
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for devices in self.ask(ask).await?.devices {
            all.entry(devices.resource_name)
                .or_default()
                .extend(devices.device_ids);
        }
        Ok(all)
    }

    /// Makes one call at a time, within the rate limit.
    async fn ask<T, F>(
        &self,
        question: impl FnOnce(Client<Channel>) -> F,
    ) -> Result<T, PodResourcesError>
    where
        F: Future<Output = Result<T, PodResourcesError>>,
    {
        let mut pace = self.pace.lock().await;
        if let Some(then) = pace.not_before {
            if pace.refused > 0 && then > Instant::now() {
                return Err(PodResourcesError::Busy);
            }
            sleep_until(then).await;
        }
        let asking = async { question(self.connect().await?).await };
        let answer = timeout(CALL_TIMEOUT, asking).await;
        let answer = answer.unwrap_or(Err(PodResourcesError::Silent));
        let pause = match answer {
            Err(PodResourcesError::Busy) => {
                let pause = MIN_THROTTLE_BACKOFF.saturating_mul(1 << pace.refused.min(5));
                pace.refused += 1;
                pause.min(MAX_THROTTLE_BACKOFF)
            }
            _ => {
                pace.refused = 0;
                MIN_CALL_INTERVAL
            }
        };
        pace.not_before = Some(Instant::now() + pause);
        answer
    }

    async fn connect(&self) -> Result<Client<Channel>, PodResourcesError> {
        let path = AbsPath::new(POD_RESOURCES_SOCKET).map_err(|_| PodResourcesError::Absent)?;
        // Kept until the connection is open: the address refers to it.
        let socket = match self.root.unix_address(&path) {
            Err(error) if error.is_not_found() => return Err(PodResourcesError::Absent),
            socket => socket?,
        };
        let address = format!("unix:{}", socket.path().display());
        let endpoint = Endpoint::from_shared(address).map_err(|_| PodResourcesError::Absent)?;
        let channel = endpoint.connect().await.map_err(unreached)?;
        Ok(Client::new(channel).max_decoding_message_size(MAX_POD_RESOURCES_BYTES))
    }
}

/// A stopped kubelet leaves its socket file, so a refused connection means that it is absent; other
/// errors, such as too many open files, are reported.
fn unreached(error: tonic::transport::Error) -> PodResourcesError {
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(one) = cause {
        if let Some(io) = one.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    PodResourcesError::Absent
                }
                _ => PodResourcesError::Unreached(error),
            };
        }
        cause = one.source();
    }
    PodResourcesError::Absent
}

fn holders(answer: api::ListPodResourcesResponse) -> DeviceHolders {
    let mut all = DeviceHolders::default();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let holder = Holder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
            };
            for devices in container.devices {
                for id in devices.device_ids {
                    all.add(&devices.resource_name, id, holder.clone());
                }
            }
            let claims = container.dynamic_resources.into_iter();
            let ours = claims
                .flat_map(|claim| claim.claim_resources)
                .filter(|one| one.driver_name == DRIVER_NAME);
            for one in ours {
                all.add_claimed(one.device_name, holder.clone());
            }
        }
    }
    all
}
