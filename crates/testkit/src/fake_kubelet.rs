//! A fake of the kubelet's device manager, written from the kubelet's behaviour and not from our
//! code; `tests/kubelet.rs` and the lab check it and the real one against the same facts.
//!
//! It removes the sockets in its directory when it starts, serves `Registration`, dials the plugin
//! and requests its options before it answers, calls `ListAndWatch` once for each registration,
//! accepts messages of at most 4 MiB, and counts and admits like the real one. Its checkpoint holds
//! the names of resources and nothing else.

use std::{
    fs::FileType,
    io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use machinist_device_plugins::kubelet::api::v1beta1::{
    self as api, device_plugin_client::DevicePluginClient, registration_server::RegistrationServer,
};
use tokio::{
    net::UnixListener,
    runtime::{self, Runtime},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Status,
    transport::{Channel, Server},
};

mod accounts;
mod admission;
mod registration;
mod watcher;

use accounts::CHECKPOINT;
pub use accounts::{Known, ResourceAccounts};
use registration::Service;

use crate::WAIT_TIMEOUT;

/// How a fake kubelet misbehaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Knobs {
    /// The first registrations, this many, are answered, but `ListAndWatch` is not called.
    pub forget_streams: usize,
    /// The first registrations, this many, are refused.
    pub refuse: usize,
    /// Delay between a registration and its answer.
    pub answer_late: Duration,
    /// Delay between the answer to a registration and the `ListAndWatch` call.
    pub stream_late: Duration,
    /// Its plugin watcher accepts device plugins, too; drivers have a watcher of their own in these
    /// tests.
    pub watches: bool,
    /// Delay between `bind` and `listen`.
    pub listen_late: Duration,
    /// Its start removes every file and not only sockets, as kubelet 1.26 does.
    pub removes_files: bool,
    /// How long dialling a plugin's socket is retried; otherwise ten seconds, like the real one.
    pub dial_timeout: Option<Duration>,
}

/// A running kubelet. Dropping it kills it: all its tasks end, and the socket file stays.
pub struct FakeKubelet {
    directory: PathBuf,
    service: Service,
    /// A runtime of its own, so that no connection outlives it.
    process: Option<Runtime>,
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.service.channels.lock().unwrap().clear();
        let process = self.process.take().unwrap();
        // Shutting down a runtime blocks, which is not allowed within another one.
        let death = std::thread::spawn(move || process.shutdown_timeout(WAIT_TIMEOUT));
        death.join().unwrap();
    }
}

impl FakeKubelet {
    /// Starts like the real one: creates the directory, removes old sockets, creates its own.
    pub async fn start(root: &Path) -> Self {
        Self::start_with(root, Knobs::default()).await
    }

    pub async fn start_with(root: &Path, knobs: Knobs) -> Self {
        let directory = root.join("var/lib/kubelet/device-plugins");
        std::fs::create_dir_all(&directory).unwrap();
        wipe(&directory, &knobs);
        let process = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let process = process.unwrap();
        let service = Service::new(&directory, knobs);
        let mut double = Self {
            directory: directory.clone(),
            service: service.clone(),
            process: None,
        };
        let bound = process.spawn(async move {
            let listener = listen(&directory.join("kubelet.sock"), knobs.listen_late).await?;
            if knobs.watches {
                tokio::spawn(watcher::watch(service.clone()));
            }
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

    /// The current state of its resources.
    pub fn books(&self) -> ResourceAccounts {
        self.service.books.borrow().clone()
    }

    /// Capacity and allocatable count of a resource as reported to the Node, or `None` when it was
    /// never registered.
    pub fn counts(&self, resource: &str) -> Option<(usize, usize)> {
        let books = self.service.books.borrow();
        let known = books.get(resource).map(Known::counts);
        let remembered = self.service.remembered.contains(resource);
        known.or_else(|| remembered.then_some((0, 0)))
    }

    /// Waits until the state satisfies `wanted`; panics with the state after [`WAIT_TIMEOUT`].
    pub async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&ResourceAccounts) -> bool,
    ) -> ResourceAccounts {
        let mut books = self.service.books.subscribe();
        let waiting = books.wait_for(|books| wanted(books));
        match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
            Ok(books) => books.unwrap().clone(),
            Err(_) => panic!(
                "not within {WAIT_TIMEOUT:?}: {what}; state: {:#?}",
                self.books()
            ),
        }
    }

    /// How many registrations it has received.
    pub fn asked(&self) -> usize {
        *self.service.asked.borrow()
    }

    /// Waits for this many registrations.
    pub async fn wait_for_requests(&self, times: usize) {
        let mut asked = self.service.asked.subscribe();
        let waiting = asked.wait_for(|asked| *asked >= times);
        let waited = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        assert!(waited.is_ok(), "asked {} times", self.asked());
    }

    /// Closes the connection to the plugin of a resource, though the plugin still runs.
    pub fn disconnect_plugin(&self, resource: &str) {
        self.service.disconnect(resource);
    }

    /// A client of the plugin that is registered for `resource`.
    pub fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel(resource))
    }

    /// The connection to that plugin.
    pub fn channel(&self, resource: &str) -> Channel {
        self.service.channels.lock().unwrap()[resource].clone()
    }

    /// The last step of admission: the `Allocate` call.
    pub async fn allocate(
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
    pub fn sockets(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.directory).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name.starts_with("m-"));
        names.sort();
        names
    }
}

/// Sockets that another process removes meanwhile are no error to the real one either.
fn wipe(directory: &Path, knobs: &Knobs) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let meant = |kind: FileType| kind.is_socket() || knobs.removes_files && kind.is_file();
        if entry.file_type().is_ok_and(meant) && entry.file_name() != CHECKPOINT {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Does `bind` and `listen` as two steps, with a delay between them.
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
