//! The `Registration` service, and the connection to a registered plugin.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use machinist_device_plugins::kubelet::api::v1beta1::{
    self as api, device_plugin_client::DevicePluginClient, registration_server::Registration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint},
};

use super::{Knobs, ResourceAccounts, accounts};

/// How long the real one retries to dial a plugin's socket.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// The state that lives as long as the kubelet. Cheap to clone.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) directory: PathBuf,
    pub(super) books: Arc<watch::Sender<ResourceAccounts>>,
    pub(super) channels: Arc<Mutex<BTreeMap<String, Channel>>>,
    pub(super) asked: Arc<watch::Sender<usize>>,
    /// Resources of the previous kubelet.
    pub(super) remembered: Arc<BTreeSet<String>>,
    /// The current plugin of each resource: a resource has one, whatever its socket is.
    clients: Arc<Mutex<BTreeMap<String, CancellationToken>>>,
    to_forget: Arc<AtomicUsize>,
    to_refuse: Arc<AtomicUsize>,
    knobs: Knobs,
}

impl Service {
    pub(super) fn new(directory: &Path, knobs: Knobs) -> Self {
        Self {
            directory: directory.to_owned(),
            books: Arc::new(watch::Sender::new(ResourceAccounts::new())),
            channels: Arc::default(),
            asked: Arc::default(),
            remembered: Arc::new(accounts::read(directory)),
            clients: Arc::default(),
            to_forget: Arc::new(AtomicUsize::new(knobs.forget_streams)),
            to_refuse: Arc::new(AtomicUsize::new(knobs.refuse)),
            knobs,
        }
    }

    /// Registers the plugin on this socket for `resource`, and starts reading its list.
    ///
    /// The previous plugin is replaced immediately, and not restored when this fails.
    pub(super) async fn connect(
        &self,
        resource: &str,
        (endpoint, socket): (&str, &Path),
    ) -> Result<(), String> {
        let ended = CancellationToken::new();
        {
            let mut clients = self.clients.lock().unwrap();
            clients.insert(resource.to_owned(), ended.clone());
        }
        let (channel, answered) = match self.dial(socket).await {
            Ok(connected) => connected,
            Err(error) => {
                self.clients.lock().unwrap().remove(resource);
                return Err(error);
            }
        };
        {
            let mut channels = self.channels.lock().unwrap();
            channels.insert(resource.to_owned(), channel.clone());
        }
        let mut serial = 0;
        self.books.send_modify(|books| {
            let known = books.entry(resource.to_owned()).or_default();
            known.register(endpoint.to_owned(), answered);
            serial = known.registrations;
        });
        if !take_one(&self.to_forget) {
            let (service, resource) = (self.clone(), resource.to_owned());
            tokio::spawn(async move { service.run(channel, &resource, serial, ended).await });
        }
        Ok(())
    }

    /// The connection, the number of attempts, and the plugin's options.
    async fn dial(
        &self,
        socket: &Path,
    ) -> Result<(Channel, (usize, api::DevicePluginOptions)), String> {
        let address = format!("unix:{}", socket.display());
        let endpoint = Endpoint::from_shared(address).unwrap();
        let mut dialled = 0;
        let dialling = async {
            loop {
                dialled += 1;
                match endpoint.connect().await {
                    Ok(channel) => return channel,
                    Err(_) => tokio::time::sleep(DIAL_PAUSE).await,
                }
            }
        };
        let dial_timeout = self.knobs.dial_timeout.unwrap_or(DIAL_TIMEOUT);
        let channel = tokio::time::timeout(dial_timeout, dialling)
            .await
            .map_err(|_| "failed to dial device plugin: context deadline exceeded".to_owned())?;
        let mut client = DevicePluginClient::new(channel.clone());
        let options = match take_one(&self.to_refuse) {
            true => Err(Status::unknown("rejected by the test")),
            false => client.get_device_plugin_options(api::Empty {}).await,
        };
        match options {
            Ok(options) => Ok((channel, (dialled, options.into_inner()))),
            Err(status) => {
                let error = grpc_go_text(&status);
                Err(format!("failed to get device plugin options: {error}"))
            }
        }
    }

    /// Runs one `ListAndWatch` until it ends, without a retry. Its end disconnects the current
    /// plugin of the resource, which may already be the next one: kubelets before 1.37 do that.
    async fn run(&self, channel: Channel, resource: &str, serial: usize, ended: CancellationToken) {
        tokio::time::sleep(self.knobs.stream_late).await;
        tokio::select! {
            () = ended.cancelled() => {}
            () = self.read(channel, resource, serial) => {}
        }
        self.books.send_modify(|books| {
            let known = books.get_mut(resource);
            let current = known.filter(|known| known.registrations == serial);
            current
                .into_iter()
                .for_each(|known| known.streaming = false);
        });
        self.disconnect(resource);
    }

    async fn read(&self, channel: Channel, resource: &str, serial: usize) {
        let mut client = DevicePluginClient::new(channel);
        let Ok(answer) = client.list_and_watch(api::Empty {}).await else {
            return;
        };
        self.books.send_modify(|books| {
            let known = books.get_mut(resource);
            let current = known.filter(|known| known.registrations == serial);
            current.into_iter().for_each(|known| known.streaming = true);
        });
        let mut stream = answer.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            // Under one lock: a test that sees the list finds the checkpoint written.
            self.books.send_modify(|books| {
                books.get_mut(resource).unwrap().take(&message.devices);
                accounts::write(&self.directory, books, &self.remembered);
            });
        }
    }

    /// Disconnects the current plugin of `resource`, if there is one.
    pub(super) fn disconnect(&self, resource: &str) {
        let Some(client) = self.clients.lock().unwrap().remove(resource) else {
            return;
        };
        client.cancel();
        self.books.send_modify(|books| {
            books
                .get_mut(resource)
                .into_iter()
                .for_each(super::Known::stop);
        });
    }
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<api::RegisterRequest>,
    ) -> Result<Response<api::Empty>, Status> {
        let asked = request.into_inner();
        self.asked.send_modify(|asked| *asked += 1);
        tokio::time::sleep(self.knobs.answer_late).await;
        let name = &asked.resource_name;
        let checked = check_versions(&[&asked.version], || {
            format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [\"v1beta1\"]",
                asked.version
            )
        });
        checked
            .and_then(|()| is_extended(name))
            .map_err(Status::unknown)?;
        let socket = self.directory.join(&asked.endpoint);
        let connected = self.connect(name, (&asked.endpoint, &socket)).await;
        connected.map_err(Status::unknown)?;
        Ok(Response::new(api::Empty {}))
    }
}

/// Whether the API version of the fake kubelet is in the plugin's list.
pub(super) fn check_versions(
    versions: &[&str],
    refusal: impl Fn() -> String,
) -> Result<(), String> {
    let known = versions.contains(&"v1beta1");
    known.then_some(()).ok_or_else(refusal)
}

/// Checks that a plugin may register this name: it must be that of an extended resource, and its
/// length includes the prefix that quotas add.
pub(super) fn is_extended(name: &str) -> Result<(), String> {
    let part = |text: &str, also: &str| {
        let inside = |c: char| c.is_ascii_alphanumeric() || also.contains(c);
        let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        text.chars().all(inside) && end(text.chars().next()) && end(text.chars().last())
    };
    let quota = format!("requests.{name}");
    let legal = match quota.split_once('/') {
        Some((domain, kind)) => {
            domain.len() <= 253
                && domain.split('.').all(|label| part(label, "-"))
                && domain == domain.to_ascii_lowercase()
                && kind.len() <= 63
                && part(kind, "-_.")
        }
        None => false,
    };
    let own = name.contains("kubernetes.io/") || name.starts_with("requests.");
    match legal && !own {
        true => Ok(()),
        false => Err(format!("the ResourceName {name:?} is invalid")),
    }
}

/// A call's error in the kubelet's wording.
pub(super) fn grpc_go_text(status: &Status) -> String {
    let (code, message) = match status.code() {
        Code::OutOfRange => (
            Code::ResourceExhausted,
            "grpc: received message larger than max",
        ),
        code => (code, status.message()),
    };
    format!("rpc error: code = {code:?} desc = {message}")
}

fn take_one(count: &AtomicUsize) -> bool {
    count
        .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
}
