//! A device plugin that follows a script, and counts the calls it receives.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
};

use machinist_base::shutdown::Tasks;
use machinist_device_plugins::kubelet::{
    api::{
        registration::PluginInfo,
        v1beta1::{
            self as api,
            device_plugin_server::{DevicePlugin, DevicePluginServer},
            registration_client::RegistrationClient,
        },
    },
    limited_incoming::incoming_limited,
    plugin_watcher_info::registrar,
};
use machinist_testkit::WAIT_TIMEOUT;
use tokio::{
    net::UnixListener,
    runtime::{self, Runtime},
    sync::{mpsc, watch},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

/// The directory of plugin sockets and `kubelet.sock`, below its root.
pub(crate) const DIRECTORY: &str = "var/lib/kubelet/device-plugins";

/// The directory that its plugin watcher scans.
pub(crate) const REGISTRY: &str = "var/lib/kubelet/plugins_registry";

/// The answers of a plugin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) preferred: bool,
    /// The options call fails with this message.
    pub(crate) broken_options: Option<&'static str>,
    /// The `ListAndWatch` call fails with this message.
    pub(crate) broken_list: Option<&'static str>,
    /// The size of the answer to `Allocate`, in bytes.
    pub(crate) padding: usize,
}

/// The calls that a plugin has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) options: usize,
    /// Streams opened so far, and those still open.
    pub(crate) opened: usize,
    pub(crate) open: usize,
    pub(crate) allocated: usize,
    pub(crate) preferred: usize,
}

/// A plugin on its socket. Dropping it kills it; the socket file stays.
pub(crate) struct Plugin {
    service: Service,
    process: Option<Runtime>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.process.take().unwrap().shutdown_background();
    }
}

impl Plugin {
    /// Serves on a socket of this name in the kubelet's directory.
    pub(crate) fn serve(root: &Path, socket: &str, script: Script) -> Self {
        Self::at(&root.join(DIRECTORY).join(socket), script, None)
    }

    /// Serves on a socket of this name in the watcher's directory, with this plugin information.
    pub(crate) fn show(root: &Path, socket: &str, script: Script, info: PluginInfo) -> Self {
        Self::at(&root.join(REGISTRY).join(socket), script, Some(info))
    }

    fn at(path: &Path, script: Script, info: Option<PluginInfo>) -> Self {
        let process = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let service = Service::new(script);
        let guard = process.enter();
        service.serve(path, info);
        drop(guard);
        Self {
            service,
            process: Some(process),
        }
    }

    /// Sends this list on all streams.
    pub(crate) fn list(&self, devices: &[(&str, &str)]) {
        self.service.list(devices);
    }

    /// Ends all streams properly.
    pub(crate) fn end(&self) {
        self.service.ends.send_modify(|ends| *ends += 1);
    }

    /// The watcher's result for each registration.
    pub(crate) fn registration_results(&self) -> Vec<Result<(), String>> {
        self.service.told.lock().unwrap().clone()
    }

    pub(crate) fn asked(&self) -> Asked {
        self.service.asked()
    }
}

/// The path of the test's directory may be longer than a socket address permits.
fn bind(path: &Path) -> UnixListener {
    let _ = std::fs::remove_file(path);
    UnixListener::bind(short(path)).unwrap()
}

/// The same file under a name that is short enough for a socket address, as long as this process
/// lives.
pub(crate) fn short(path: &Path) -> PathBuf {
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};
    if path.as_os_str().len() < 100 {
        return path.to_owned();
    }
    let parent = std::fs::File::open(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap();
    let link = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
    let _kept = parent.into_raw_fd();
    link
}

/// Registers `endpoint` for `resource` with the kubelet below `root`.
pub(crate) async fn register(root: &Path, request: api::RegisterRequest) -> Result<(), Status> {
    let mut client = RegistrationClient::new(dialled(root).await.unwrap());
    let asking = client.register(request);
    let answered = tokio::time::timeout(WAIT_TIMEOUT, asking).await;
    answered.expect("no answer in time").map(|_| ())
}

/// A connection to the kubelet below `root`.
pub(crate) async fn dialled(root: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = short(&root.join(DIRECTORY).join("kubelet.sock"));
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    endpoint.connect().await
}

/// The request of an ordinary plugin.
pub(crate) fn request(resource: &str, endpoint: &str) -> api::RegisterRequest {
    api::RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    }
}

/// The state of a plugin, independent of its process.
#[derive(Clone)]
pub(crate) struct Service {
    script: Script,
    list: Arc<watch::Sender<Option<Vec<api::Device>>>>,
    ends: Arc<watch::Sender<usize>>,
    asked: Arc<Mutex<Asked>>,
    told: Arc<Mutex<Vec<Result<(), String>>>>,
}

impl Service {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            script,
            list: Arc::default(),
            ends: Arc::default(),
            asked: Arc::default(),
            told: Arc::default(),
        }
    }

    /// Binds the socket, and serves it from a task of the current runtime.
    pub(crate) fn serve(&self, path: &Path, info: Option<PluginInfo>) {
        let told = Arc::clone(&self.told);
        let registrar = info.map(|info| {
            registrar(info, move |became| {
                told.lock().unwrap().push(became.map_err(str::to_owned));
            })
        });
        let (listener, served) = (bind(path), self.clone());
        tokio::spawn(async move {
            // The watcher sends a path as the HTTP/2 authority, which servers in Rust refuse.
            let tasks = Tasks::new();
            let incoming = incoming_limited(listener, &tasks, tasks.token(), |_| true);
            let serving = Server::builder()
                .add_service(DevicePluginServer::new(served))
                .add_optional_service(registrar)
                .serve_with_incoming(incoming);
            serving.await.unwrap();
        });
    }

    /// Sends this list on all streams.
    pub(crate) fn list(&self, devices: &[(&str, &str)]) {
        let device = |(id, health): &(&str, &str)| api::Device {
            id: (*id).to_owned(),
            health: (*health).to_owned(),
            topology: None,
        };
        let devices = devices.iter().map(device).collect();
        self.list.send_replace(Some(devices));
    }

    pub(crate) fn asked(&self) -> Asked {
        self.asked.lock().unwrap().clone()
    }

    fn note(&self, what: impl FnOnce(&mut Asked)) {
        what(&mut self.asked.lock().unwrap());
    }

    /// Sends each list, until either side ends the stream.
    async fn feed(self, to: mpsc::Sender<Result<api::ListAndWatchResponse, Status>>) {
        let mut list = self.list.subscribe();
        let mut ends = self.ends.subscribe();
        list.mark_changed();
        loop {
            tokio::select! {
                Ok(()) = list.changed() => {
                    let devices = list.borrow_and_update().clone();
                    let Some(devices) = devices else { continue };
                    let message = api::ListAndWatchResponse { devices };
                    if to.send(Ok(message)).await.is_err() {
                        break;
                    }
                }
                Ok(()) = ends.changed() => break,
                () = to.closed() => break,
            }
        }
        self.note(|asked| asked.open -= 1);
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        self.note(|asked| asked.options += 1);
        if let Some(why) = self.script.broken_options {
            return Err(Status::internal(why));
        }
        Ok(Response::new(api::DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: self.script.preferred,
        }))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.note(|asked| asked.opened += 1);
        if let Some(why) = self.script.broken_list {
            return Err(Status::internal(why));
        }
        self.note(|asked| asked.open += 1);
        let (to, from) = mpsc::channel(1);
        tokio::spawn(self.clone().feed(to));
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        self.note(|asked| asked.preferred += 1);
        // An empty preference.
        Ok(Response::new(api::PreferredAllocationResponse::default()))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        self.note(|asked| asked.allocated += 1);
        let padding = "x".repeat(self.script.padding);
        let one = api::ContainerAllocateResponse {
            envs: [("PADDING".to_owned(), padding)].into(),
            ..Default::default()
        };
        let containers = request.into_inner().container_requests.len();
        Ok(Response::new(api::AllocateResponse {
            container_responses: vec![one; containers],
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        Err(Status::internal("unexpected request"))
    }
}
