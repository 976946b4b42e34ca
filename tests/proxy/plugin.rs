//! An unmodified device plugin, as vendors write them: it serves on a socket of its own next to
//! `kubelet.sock`, registers, and registers again when it detects a restart of the kubelet.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt as _;
use inotify::{Inotify, WatchMask};
use machinist_device_plugins::kubelet::{
    api::{
        relay::device_plugin_server::{DevicePlugin, DevicePluginServer},
        v1beta1::{self as api, registration_client::RegistrationClient},
    },
    raw_message::RawMessage,
};
use machinist_testkit::WAIT_TIMEOUT;
use prost::Message as _;
use tokio::{
    net::UnixListener,
    runtime::{self, Runtime},
    sync::watch,
    task::JoinHandle,
};
use tokio_stream::{Stream, wrappers::UnixListenerStream, wrappers::WatchStream};
use tonic::{
    Code, Request, Response, Status,
    transport::{Endpoint, Server},
};

/// How a plugin detects a restart of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// It watches for a new `kubelet.sock`.
    Watches,
    /// It polls whether its own socket still exists.
    Polls,
}

/// The reaction to a call.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Answers with these bytes, or with a default where bytes do not apply.
    Answers(Vec<u8>),
    /// Fails with this message.
    Fails(String),
    /// Answers with the status of a server that is shutting down.
    Leaves,
    /// Never answers.
    Hangs,
}

/// Its behaviour; it may be changed while it runs, except the options.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) options: api::DevicePluginOptions,
    pub(crate) asked_options: Does,
    /// Delay between the `ListAndWatch` call and the first list.
    pub(crate) list_late: Duration,
    pub(crate) allocate: Does,
    pub(crate) preferred: Vec<String>,
    pub(crate) pre_start: Does,
    /// `ListAndWatch` streams stay open without a list.
    pub(crate) lists_nothing: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            options: api::DevicePluginOptions::default(),
            asked_options: Does::Answers(Vec::new()),
            list_late: Duration::ZERO,
            allocate: Does::Answers(Vec::new()),
            preferred: Vec::new(),
            pre_start: Does::Answers(Vec::new()),
            lists_nothing: false,
        }
    }
}

/// Everything the plugin has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) registered: usize,
    pub(crate) refused: Vec<String>,
    /// How often its options were requested.
    pub(crate) asked: usize,
    pub(crate) listed: usize,
    pub(crate) allocated: Vec<Vec<String>>,
    /// The bytes of `Allocate` and `PreStartContainer` requests.
    pub(crate) questions: Vec<Vec<u8>>,
    pub(crate) started: usize,
    /// Calls that were cancelled before they were answered.
    pub(crate) cancelled: usize,
    /// How often its socket did not exist when it polled.
    pub(crate) vanished: usize,
}

#[derive(Clone)]
struct Shared {
    directory: PathBuf,
    resource: String,
    endpoint: String,
    script: Arc<Mutex<Script>>,
    devices: Arc<watch::Sender<Vec<api::Device>>>,
    seen: Arc<watch::Sender<Seen>>,
}

/// A running plugin. Dropping it kills it: its socket file stays.
pub(crate) struct Plugin {
    shared: Shared,
    process: Option<Runtime>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let process = self.process.take().unwrap();
        // Shutting down a runtime blocks, which is not allowed within another one.
        let death = std::thread::spawn(move || process.shutdown_timeout(WAIT_TIMEOUT));
        death.join().unwrap();
    }
}

pub(crate) fn device(id: &str, healthy: bool) -> api::Device {
    api::Device {
        id: id.to_owned(),
        health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: None,
    }
}

impl Plugin {
    /// Serves, and registers when there is a kubelet; `style` determines how it detects restarts.
    pub(crate) async fn start(
        directory: &Path,
        resource: &str,
        endpoint: &str,
        ids: &[&str],
        style: Option<Style>,
    ) -> Self {
        Self::start_with(directory, resource, endpoint, ids, style, Script::default()).await
    }

    pub(crate) async fn start_with(
        directory: &Path,
        resource: &str,
        endpoint: &str,
        ids: &[&str],
        style: Option<Style>,
        script: Script,
    ) -> Self {
        let devices = ids.iter().map(|id| device(id, true)).collect();
        let shared = Shared {
            directory: directory.to_owned(),
            resource: resource.to_owned(),
            endpoint: endpoint.to_owned(),
            script: Arc::new(Mutex::new(script)),
            devices: Arc::new(watch::Sender::new(devices)),
            seen: Arc::default(),
        };
        let process = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let life = shared.clone();
        let started = process.spawn(async move {
            let server = life.serve();
            life.register().await;
            if let Some(style) = style {
                tokio::spawn(life.keep(server, style));
            }
        });
        started.await.unwrap();
        Self {
            shared,
            process: Some(process),
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.shared.seen.borrow().clone()
    }

    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock().unwrap());
    }

    pub(crate) fn list(&self, devices: Vec<api::Device>) {
        self.shared.devices.send_replace(devices);
    }

    /// Registers once more, on the socket that it has.
    pub(crate) async fn register(&self) {
        self.shared.register().await;
    }

    /// How many `ListAndWatch` streams are open.
    pub(crate) fn streams(&self) -> usize {
        self.shared.devices.receiver_count()
    }

    /// Waits until the received calls satisfy `wanted`.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.shared.seen.subscribe();
        let waiting = seen.wait_for(|seen| wanted(seen));
        match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("not within {WAIT_TIMEOUT:?}: {what}; {:#?}", self.seen()),
        }
    }
}

/// Sends a registration, as a plugin would.
pub(crate) async fn register(
    directory: &Path,
    request: api::RegisterRequest,
) -> Result<(), Status> {
    let address = format!("unix:{}", directory.join("kubelet.sock").display());
    let channel = Endpoint::from_shared(address).unwrap().connect().await;
    let channel = channel.map_err(|error| Status::unavailable(format!("{error:?}")))?;
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map(drop)
}

impl Shared {
    fn socket(&self) -> PathBuf {
        self.directory.join(&self.endpoint)
    }

    fn serve(&self) -> JoinHandle<()> {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).unwrap();
        let server = Server::builder()
            .add_service(DevicePluginServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(async move { server.await.unwrap() })
    }

    async fn register(&self) {
        let request = api::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.resource.clone(),
            options: None,
        };
        let answer = register(&self.directory, request).await;
        self.seen.send_modify(|seen| match answer {
            Ok(()) => seen.registered += 1,
            Err(status) => seen.refused.push(status.message().to_owned()),
        });
    }

    async fn keep(self, mut server: JoinHandle<()>, style: Style) {
        let inotify = Inotify::init().unwrap();
        inotify
            .watches()
            .add(&self.directory, WatchMask::CREATE)
            .unwrap();
        let mut events = inotify.into_event_stream(vec![0; 4096]).unwrap();
        loop {
            match style {
                Style::Watches => loop {
                    let event = events.next().await.unwrap().unwrap();
                    if event.name.is_some_and(|name| name == "kubelet.sock") {
                        break;
                    }
                },
                Style::Polls => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if self.socket().exists() {
                        continue;
                    }
                    self.seen.send_modify(|seen| seen.vanished += 1);
                    // Many plugins wait like this: the kubelet needs a moment.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            // Many plugins restart their server. That ends streams, so the kubelet notices.
            server.abort();
            server = self.serve();
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.register().await;
        }
    }
}

/// Counts a call that was cancelled.
struct Unanswered(Option<Arc<watch::Sender<Seen>>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(seen) = self.0.take() {
            seen.send_modify(|seen| seen.cancelled += 1);
        }
    }
}

impl Shared {
    async fn does(&self, what: Does) -> Result<Vec<u8>, Status> {
        match what {
            Does::Answers(bytes) => Ok(bytes),
            Does::Fails(why) => Err(Status::new(Code::Unknown, why)),
            Does::Leaves => Err(Status::unavailable("Cancelling all calls")),
            Does::Hangs => {
                let _cancelled = Unanswered(Some(self.seen.clone()));
                std::future::pending().await
            }
        }
    }

    fn script(&self) -> Script {
        self.script.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl DevicePlugin for Shared {
    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        let script = self.script();
        self.seen.send_modify(|seen| seen.asked += 1);
        self.does(script.asked_options).await?;
        Ok(Response::new(script.options))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.seen.send_modify(|seen| seen.listed += 1);
        tokio::time::sleep(self.script().list_late).await;
        let lists = WatchStream::new(self.devices.subscribe());
        let lists = lists.map(|devices| Ok(api::ListAndWatchResponse { devices }));
        if self.script().lists_nothing {
            return Ok(Response::new(Box::pin(tokio_stream::pending())));
        }
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<RawMessage>, Status> {
        let one = api::ContainerPreferredAllocationResponse {
            device_i_ds: self.script().preferred,
        };
        let answer = api::PreferredAllocationResponse {
            container_responses: vec![one],
        };
        Ok(Response::new(RawMessage(answer.encode_to_vec().into())))
    }

    async fn allocate(&self, request: Request<RawMessage>) -> Result<Response<RawMessage>, Status> {
        let RawMessage(wire) = request.into_inner();
        let asked = api::AllocateRequest::decode(wire.clone()).unwrap();
        let ids = asked.container_requests[0].devices_ids.clone();
        self.seen.send_modify(|seen| {
            seen.allocated.push(ids);
            seen.questions.push(wire.to_vec());
        });
        let answer = self.does(self.script().allocate).await?;
        Ok(Response::new(RawMessage(answer.into())))
    }

    async fn pre_start_container(
        &self,
        request: Request<RawMessage>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let RawMessage(wire) = request.into_inner();
        self.seen.send_modify(|seen| {
            seen.started += 1;
            seen.questions.push(wire.to_vec());
        });
        self.does(self.script().pre_start).await?;
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
