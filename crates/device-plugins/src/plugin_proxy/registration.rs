//! The kubelet's registration service, as offered to plugins.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::server::UdsConnectInfo};

use super::{
    Vendor,
    plugin_client::{self, PluginConnection},
    task_events::PluginTaskEvent,
};
use crate::kubelet::api::v1beta1::{self as api, registration_server::Registration};
use machinist_base::{abs_path::AbsPath, error_chain::chain, rate_limit::RateLimiter};
use machinist_device::ResourceName;
use machinist_rootfs::Root;

/// Bytes; a registration has a few hundred.
pub(super) const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Average registrations per second; twice as many are accepted at once, and others wait. A plugin
/// makes one for each of its resources.
const REGISTRATIONS_PER_SECOND: u32 = 20;
/// How long a registration waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent registrations, each for up to ten seconds; others wait for their turn.
const MAX_CONCURRENT_REGISTRATIONS: usize = 16;

/// The registration service of one vendor.
#[derive(Clone, Debug)]
pub(super) struct RegistrationService {
    pub(super) root: Root,
    pub(super) directory: AbsPath,
    pub(super) vendor: Arc<Vendor>,
    pub(super) events: mpsc::Sender<PluginTaskEvent>,
    pub(super) stop: CancellationToken,
    connection_numbers: Arc<AtomicU64>,
    dial_slots: Arc<Semaphore>,
    rate: Arc<Mutex<RateLimiter>>,
}

impl RegistrationService {
    pub(super) fn new(
        root: Root,
        directory: AbsPath,
        vendor: Arc<Vendor>,
        events: mpsc::Sender<PluginTaskEvent>,
        stop: CancellationToken,
        connection_numbers: Arc<AtomicU64>,
    ) -> Self {
        Self {
            root,
            directory,
            vendor,
            events,
            stop,
            connection_numbers,
            dial_slots: Arc::new(Semaphore::new(MAX_CONCURRENT_REGISTRATIONS)),
            rate: Arc::new(Mutex::new(RateLimiter::new(REGISTRATIONS_PER_SECOND))),
        }
    }

    /// Connects to a plugin; only a few at a time. `Err` is the reason.
    pub(super) async fn dial_limited(
        &self,
        endpoint: &str,
    ) -> Result<PluginConnection, plugin_client::DialError> {
        // The semaphore is never closed.
        let _one = self.dial_slots.acquire().await;
        self.dial(endpoint).await
    }

    async fn dial(&self, endpoint: &str) -> Result<PluginConnection, plugin_client::DialError> {
        let number = self.connection_numbers.fetch_add(1, Ordering::Relaxed);
        plugin_client::dial(&self.root, &self.directory, endpoint, &self.vendor, number).await
    }

    /// Checks the peer: the directory is the identity, and its user is checked in addition.
    fn admit(&self, peer: Option<&UdsConnectInfo>) -> Result<(), Status> {
        let user = peer.and_then(|peer| peer.peer_cred.map(|cred| cred.uid()));
        match user {
            Some(user) if self.vendor.may_connect(user) => Ok(()),
            Some(user) => Err(Status::permission_denied(format!(
                "user {user} may not register plugins of {}; expected {}",
                self.vendor.name,
                plugin_client::users(&self.vendor)
            ))),
            None => Err(Status::permission_denied(
                "peer credentials are not available",
            )),
        }
    }

    /// The resource name, if it is valid and the vendor may claim it.
    fn allowed_resource(
        &self,
        registration: &api::RegisterRequest,
    ) -> Result<ResourceName, Status> {
        let given = plugin_client::quoted(&registration.resource_name);
        if registration.version != api::VERSION {
            let supported = [api::VERSION];
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is {supported:?}",
                plugin_client::quoted(&registration.version)
            )));
        }
        let Ok(name) = ResourceName::new(given) else {
            return Err(Status::unknown(format!(
                "the ResourceName {given:?} is invalid"
            )));
        };
        if self.vendor.may_claim(&name) {
            return Ok(name);
        }
        let claims: Vec<_> = self
            .vendor
            .resources
            .iter()
            .map(|one| one.as_str())
            .collect();
        Err(Status::permission_denied(format!(
            "vendor {} may not claim {name}; expected one of spec.resources: {}",
            self.vendor.name,
            claims.join(", ")
        )))
    }

    /// Waits for a registration's turn; a plugin that registers too often gets an error.
    async fn wait_for_rate_limit(&self) -> Result<(), Status> {
        let turn = async { self.rate.lock().await.wait().await };
        timeout(TURN_TIMEOUT, turn).await.map_err(|_| {
            let name = &self.vendor.name;
            Status::resource_exhausted(format!(
                "plugins of {name} register more than {REGISTRATIONS_PER_SECOND} times in a second"
            ))
        })
    }

    async fn register_plugin(&self, registration: api::RegisterRequest) -> Result<(), Status> {
        self.wait_for_rate_limit().await?;
        let resource = self.allowed_resource(&registration)?;
        let dialled = tokio::select! {
            // Safe to drop: nothing is registered before the plugin was reached.
            () = self.stop.cancelled() => return Err(stopping()),
            dialled = self.dial_limited(&registration.endpoint) => dialled,
        };
        let connection = dialled.map_err(|error| Status::unknown(chain(&error)))?;
        let (reply, result) = oneshot::channel();
        let event = PluginTaskEvent::Registered {
            resource,
            connection,
            reply,
        };
        self.events.send(event).await.map_err(|_| stopping())?;
        let result = result.await.map_err(|_| stopping())?;
        result.map_err(Status::resource_exhausted)
    }
}

fn stopping() -> Status {
    Status::unavailable("registrations are not accepted at the moment")
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(
        &self,
        request: Request<api::RegisterRequest>,
    ) -> Result<Response<api::Empty>, Status> {
        let admitted = self.admit(request.extensions().get::<UdsConnectInfo>());
        let registration = request.into_inner();
        let name = plugin_client::quoted(&registration.resource_name).to_owned();
        let registered = match admitted {
            Ok(()) => self.register_plugin(registration).await,
            refused => refused,
        };
        if let Err(status) = registered {
            let reason = status.message().to_owned();
            // Do not wait for this to be recorded.
            let _ = self
                .events
                .try_send(PluginTaskEvent::RegistrationRefused { name, reason });
            return Err(status);
        }
        Ok(Response::new(api::Empty {}))
    }
}
