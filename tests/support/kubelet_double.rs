//! A kubelet as device plugins meet it, written from the kubelet's behaviour and not from ours.
//!
//! It removes the sockets in its directory when it starts, serves `Registration`, dials the plugin
//! back and asks for its options before it answers, calls `ListAndWatch` once for each registration,
//! takes 4 MiB at most, and forgets everything when it ends.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering::SeqCst},
    time::Duration,
};

use machinist::kubelet::api::v1beta1::{
    self as api,
    device_plugin_client::DevicePluginClient,
    registration_server::{Registration, RegistrationServer},
};
use tokio::{
    net::UnixListener,
    runtime::{self, Runtime},
    sync::watch,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

/// What the kubelet knows of one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The socket name of the last registration.
    pub(crate) endpoint: String,
    /// Every list received since that registration, as `id=health`.
    pub(crate) lists: Vec<Vec<String>>,
    /// Whether the stream is still open.
    pub(crate) streaming: bool,
    /// Registrations in this life of the kubelet.
    pub(crate) registrations: usize,
}

impl Known {
    /// The latest list; empty when there was none.
    pub(crate) fn list(&self) -> &[String] {
        self.lists.last().map_or(&[], Vec::as_slice)
    }
}

pub(crate) type Books = BTreeMap<String, Known>;

/// How a double misbehaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knobs {
    /// The first so many registrations are answered, but no list is asked for.
    pub(crate) forget_streams: usize,
    /// The first so many registrations are refused.
    pub(crate) refuse: usize,
    /// Time between a registration and the answer to it.
    pub(crate) answer_late: Duration,
    /// Time between the answer to a registration and the request for the list.
    pub(crate) stream_late: Duration,
    /// Time between `bind` and `listen`.
    pub(crate) listen_late: Duration,
}

/// A running kubelet. Dropping it is its death: everything it does ends, the socket file stays.
pub(crate) struct KubeletDouble {
    directory: PathBuf,
    books: Arc<watch::Sender<Books>>,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
    /// How often it was asked to register something.
    asked: Arc<watch::Sender<usize>>,
    /// A runtime of its own, so that no connection outlives it.
    process: Option<Runtime>,
}

impl Drop for KubeletDouble {
    fn drop(&mut self) {
        self.channels.lock().unwrap().clear();
        let process = self.process.take().unwrap();
        // A runtime must not be waited for from within another one.
        let death = std::thread::spawn(move || process.shutdown_timeout(Duration::from_secs(5)));
        death.join().unwrap();
    }
}

impl KubeletDouble {
    /// Starts as the real one: directory, wipe, socket.
    pub(crate) async fn start(root: &Path) -> Self {
        Self::start_with(root, Knobs::default()).await
    }

    pub(crate) async fn start_with(root: &Path, knobs: Knobs) -> Self {
        let directory = root.join("var/lib/kubelet/device-plugins");
        std::fs::create_dir_all(&directory).unwrap();
        wipe(&directory);
        let process = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let process = process.unwrap();
        let mut double = Self {
            directory: directory.clone(),
            books: Arc::new(watch::Sender::new(Books::new())),
            channels: Arc::default(),
            asked: Arc::default(),
            process: None,
        };
        let service = Service {
            directory: directory.clone(),
            books: double.books.clone(),
            channels: double.channels.clone(),
            asked: double.asked.clone(),
            answer_late: knobs.answer_late,
            to_forget: Arc::new(AtomicUsize::new(knobs.forget_streams)),
            to_refuse: Arc::new(AtomicUsize::new(knobs.refuse)),
            stream_late: knobs.stream_late,
        };
        let bound = process.spawn(async move {
            let listener = listen(&directory.join("kubelet.sock"), knobs.listen_late).await?;
            let server = Server::builder()
                .add_service(RegistrationServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener));
            tokio::spawn(server);
            io::Result::Ok(())
        });
        bound.await.unwrap().unwrap();
        double.process = Some(process);
        double
    }

    /// What it knows now.
    pub(crate) fn books(&self) -> Books {
        self.books.borrow().clone()
    }

    /// Waits until its books satisfy `wanted`; shows them when they do not within five seconds.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Books) -> bool) -> Books {
        let mut books = self.books.subscribe();
        let waiting = books.wait_for(|books| wanted(books));
        match tokio::time::timeout(Duration::from_secs(5), waiting).await {
            Ok(books) => books.unwrap().clone(),
            Err(_) => panic!("not within 5 s: {what}; the books say {:#?}", self.books()),
        }
    }

    /// How often it was asked to register something.
    pub(crate) fn asked(&self) -> usize {
        *self.asked.borrow()
    }

    /// Waits until it was asked so often.
    pub(crate) async fn until_asked(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let waiting = asked.wait_for(|asked| *asked >= times);
        let waited = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        assert!(waited.is_ok(), "asked {} times", self.asked());
    }

    /// A client of the plugin that is registered for `resource`.
    pub(crate) fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel(resource))
    }

    /// The connection to that plugin.
    pub(crate) fn channel(&self, resource: &str) -> Channel {
        self.channels.lock().unwrap()[resource].clone()
    }

    /// Admission's last step.
    pub(crate) async fn allocate(
        &self,
        resource: &str,
        ids: &[&str],
    ) -> Result<api::ContainerAllocateResponse, Status> {
        let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let one = api::ContainerAllocateRequest { devices_ids };
        let request = api::AllocateRequest {
            container_requests: vec![one],
        };
        let answer = self.plugin(resource).allocate(request).await?.into_inner();
        Ok(answer.container_responses.into_iter().next().unwrap())
    }

    /// The sockets of plugins in its directory.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.directory).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name.starts_with("m-"));
        names.sort();
        names
    }
}

/// Sockets that others remove meanwhile are no error to the real one either.
fn wipe(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// `bind` and `listen` as two steps, as they are.
async fn listen(path: &Path, late: Duration) -> io::Result<UnixListener> {
    let late_for = late;
    if late_for.is_zero() {
        return UnixListener::bind(path);
    }
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
    let socket = nix::sys::socket::socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    nix::sys::socket::bind(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &UnixAddr::new(path)?,
    )?;
    tokio::time::sleep(late_for).await;
    nix::sys::socket::listen(&socket, Backlog::new(64)?)?;
    UnixListener::from_std(socket.into())
}

struct Service {
    directory: PathBuf,
    books: Arc<watch::Sender<Books>>,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
    asked: Arc<watch::Sender<usize>>,
    answer_late: Duration,
    to_forget: Arc<AtomicUsize>,
    to_refuse: Arc<AtomicUsize>,
    stream_late: Duration,
}

fn take_one(count: &AtomicUsize) -> bool {
    count
        .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<api::RegisterRequest>,
    ) -> Result<Response<api::Empty>, Status> {
        let asked = request.into_inner();
        self.asked.send_modify(|asked| *asked += 1);
        tokio::time::sleep(self.answer_late).await;
        if asked.version != "v1beta1" {
            return Err(Status::unknown(format!(
                "requested API version {:?}",
                asked.version
            )));
        }
        if asked.endpoint.contains('/') {
            return Err(Status::unknown("the endpoint is no bare name"));
        }
        if take_one(&self.to_refuse) {
            return Err(Status::unknown(
                "failed to get device plugin options: told to refuse",
            ));
        }
        let address = format!("unix:{}", self.directory.join(&asked.endpoint).display());
        let dialled = Endpoint::from_shared(address).unwrap().connect().await;
        let channel = dialled
            .map_err(|error| Status::unknown(format!("failed to dial device plugin: {error:?}")))?;
        let mut client = DevicePluginClient::new(channel.clone());
        client.get_device_plugin_options(api::Empty {}).await?;
        let name = asked.resource_name.clone();
        self.channels.lock().unwrap().insert(name.clone(), channel);
        self.books.send_modify(|books| {
            let known = books.entry(name.clone()).or_default();
            let registrations = known.registrations + 1;
            let endpoint = asked.endpoint.clone();
            *known = Known {
                endpoint,
                registrations,
                ..Known::default()
            };
        });
        if !take_one(&self.to_forget) {
            let (books, late) = (self.books.clone(), self.stream_late);
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                read_list(client, name, asked.endpoint, books).await;
            });
        }
        Ok(Response::new(api::Empty {}))
    }
}

/// One `ListAndWatch`, until it ends; never again.
async fn read_list(
    mut client: DevicePluginClient<Channel>,
    name: String,
    endpoint: String,
    books: Arc<watch::Sender<Books>>,
) {
    let note = |change: &dyn Fn(&mut Known)| {
        books.send_modify(|books| {
            let known = books
                .get_mut(&name)
                .filter(|known| known.endpoint == endpoint);
            known.into_iter().for_each(change);
        });
    };
    if let Ok(answer) = client.list_and_watch(api::Empty {}).await {
        note(&|known| known.streaming = true);
        let mut stream = answer.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            let list: Vec<String> = message
                .devices
                .iter()
                .map(|one| format!("{}={}", one.id, one.health))
                .collect();
            note(&|known| known.lists.push(list.clone()));
        }
    }
    note(&|known| known.streaming = false);
}
