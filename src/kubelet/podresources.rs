//! What the kubelet tells of the devices that containers have (its podresources API).
//!
//! Nobody polls this: it is asked when a person asks, after an allocation, and while an update waits for
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
use crate::{
    device::{
        dra::DRIVER,
        holders::{Holder, Holders},
    },
    path::AbsPath,
    root::{Root, RootError},
};

/// Where the kubelet answers.
pub const POD_RESOURCES_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// A node has 250 pods and some hundred devices as a rule; kubelet's own tests take as much as this.
const LARGEST: usize = 16 * 1024 * 1024;
/// How long a question may take, the connection included.
const DEADLINE: Duration = Duration::from_secs(10);
/// The kubelet answers a hundred questions a second, all who ask together. Ours are a tenth of that.
pub const APART: Duration = Duration::from_millis(100);
/// How long it is left alone when it says that there were too many; doubled while it keeps saying so.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why nobody can tell who has what.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// There is no kubelet, or it is starting.
    #[error(
        "the kubelet does not tell who has which device: nobody answers on {POD_RESOURCES_SOCKET}"
    )]
    Absent,
    /// It took the question and did not answer.
    #[error("the kubelet does not tell who has which device: no answer within {} s", DEADLINE.as_secs())]
    Silent,
    /// It has been asked too much lately, by us or by others.
    #[error("the kubelet is asked too often who has which device; it is left alone for a while")]
    Busy,
    /// It answered with an error.
    #[error("the kubelet does not tell who has which device: {message} ({code:?})")]
    Refused {
        /// gRPC's code.
        code: Code,
        /// The kubelet's words.
        message: String,
    },
    /// Its socket cannot be looked at.
    #[error(transparent)]
    Socket(#[from] RootError),
    /// Its socket is there, and this process cannot connect.
    #[error(
        "the kubelet does not tell who has which device: cannot connect to {POD_RESOURCES_SOCKET}"
    )]
    Unreached(#[source] tonic::transport::Error),
}

impl From<Status> for PodResourcesError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::ResourceExhausted => Self::Busy,
            // It ended, or was restarted, while it was being asked.
            Code::Unavailable => Self::Absent,
            code => Self::Refused {
                code,
                message: status.message().to_owned(),
            },
        }
    }
}

/// When the kubelet may be asked again.
#[derive(Debug, Default)]
struct Pace {
    not_before: Option<Instant>,
    /// It was told so often in a row that it is too much.
    refused: u32,
}

/// Asks one kubelet. Cheap to clone; all clones ask one after the other.
#[derive(Clone, Debug)]
pub struct PodResources {
    root: Root,
    pace: Arc<Mutex<Pace>>,
}

impl PodResources {
    /// Nothing is asked yet.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            pace: Arc::default(),
        }
    }

    /// What every container of the node has.
    pub async fn list(&self) -> Result<Holders, PodResourcesError> {
        let ask = |mut client: Client<Channel>| async move {
            Ok(client.list(ListPodResourcesRequest {}).await?.into_inner())
        };
        Ok(holders(self.ask(ask).await?))
    }

    /// What the kubelet could give to containers, held or not: the healthy devices by resource.
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

    /// One question at a time, and not too many of them.
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
        let answer = timeout(DEADLINE, asking).await;
        let answer = answer.unwrap_or(Err(PodResourcesError::Silent));
        let pause = match answer {
            Err(PodResourcesError::Busy) => {
                let pause = FIRST_PAUSE.saturating_mul(1 << pace.refused.min(5));
                pace.refused += 1;
                pause.min(LONGEST_PAUSE)
            }
            _ => {
                pace.refused = 0;
                APART
            }
        };
        pace.not_before = Some(Instant::now() + pause);
        answer
    }

    async fn connect(&self) -> Result<Client<Channel>, PodResourcesError> {
        let path = AbsPath::new(POD_RESOURCES_SOCKET).map_err(|_| PodResourcesError::Absent)?;
        // Held until the connection stands: the address names it.
        let socket = match self.root.unix_address(&path) {
            Err(error) if error.is_not_found() => return Err(PodResourcesError::Absent),
            socket => socket?,
        };
        let address = format!("unix:{}", socket.path().display());
        let endpoint = Endpoint::from_shared(address).map_err(|_| PodResourcesError::Absent)?;
        let channel = endpoint.connect().await.map_err(unreached)?;
        Ok(Client::new(channel).max_decoding_message_size(LARGEST))
    }
}

/// A socket file that nobody serves any more is what a kubelet leaves that was stopped; anything else is ours to
/// tell, such as too many open files.
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

fn holders(answer: api::ListPodResourcesResponse) -> Holders {
    let mut all = Holders::default();
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
                .filter(|one| one.driver_name == DRIVER);
            for one in ours {
                all.add_claimed(one.device_name, holder.clone());
            }
        }
    }
    all
}
