//! A fake of the kubelet's PodResources API, with content set by the test. Counts the requests.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use machinist_device_plugins::kubelet::api::v1::{
    self as api,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};

/// The content of the answers. Cheap to clone.
#[derive(Clone, Default)]
pub struct FakePodResources(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pods: Vec<api::PodResources>,
    allocatable: Vec<api::ContainerDevices>,
    asked: usize,
    refuse: Option<(Code, &'static str)>,
    silent: bool,
}

impl FakePodResources {
    /// Serves as the kubelet does, until the returned handle is aborted or dropped.
    pub fn serve(&self, root: &Path) -> Serving {
        let directory = root.join("var/lib/kubelet/pod-resources");
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("kubelet.sock");
        // A kubelet that starts removes the socket of its predecessor.
        let _ = std::fs::remove_file(&socket);
        // The path of the test's directory may be longer than a socket address permits.
        let name = std::path::PathBuf::from("kubelet.sock");
        let listener = bind(&directory, &name);
        let server = Server::builder()
            .add_service(PodResourcesListerServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        Serving(tokio::spawn(async move { server.await.unwrap() }))
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.0.lock().unwrap())
    }

    /// Adds a pod of namespace `lab` with these devices in its container `main`.
    pub fn give(&self, pod: &str, resource: &str, ids: &[&str]) {
        let device = devices(resource, ids);
        let container = |name: &str, devices| api::ContainerResources {
            name: name.to_owned(),
            devices,
            dynamic_resources: Vec::new(),
        };
        let pod = api::PodResources {
            name: pod.to_owned(),
            namespace: "lab".to_owned(),
            containers: vec![
                container("sidecar", vec![]),
                container("main", vec![device]),
            ],
        };
        self.with(|state| state.pods.push(pod));
    }

    /// Adds a pod of namespace `lab` with these claimed devices of our pool in its container
    /// `main`.
    pub fn claimed(&self, pod: &str, devices: &[&str]) {
        let resource = |device: &&str| api::ClaimResource {
            driver_name: "dra.machinist.dev".to_owned(),
            pool_name: "node-1".to_owned(),
            device_name: (*device).to_owned(),
        };
        let claim = api::DynamicResource {
            claim_name: "c".to_owned(),
            claim_namespace: "lab".to_owned(),
            claim_resources: devices.iter().map(resource).collect(),
        };
        let pod = api::PodResources {
            name: pod.to_owned(),
            namespace: "lab".to_owned(),
            containers: vec![api::ContainerResources {
                name: "main".to_owned(),
                devices: Vec::new(),
                dynamic_resources: vec![claim],
            }],
        };
        self.with(|state| state.pods.push(pod));
    }

    /// Removes the pod, as if it had ended.
    pub fn take(&self, pod: &str) {
        self.with(|state| state.pods.retain(|known| known.name != pod));
    }

    pub fn set_allocatable(&self, resource: &str, ids: &[&str]) {
        self.with(|state| state.allocatable = vec![devices(resource, ids)]);
    }

    pub fn refuses(&self, with: Option<(Code, &'static str)>) {
        self.with(|state| state.refuse = with);
    }

    /// The server accepts requests and answers none.
    pub fn is_silent(&self) {
        self.with(|state| state.silent = true);
    }

    pub fn asked(&self) -> usize {
        self.with(|state| state.asked)
    }

    async fn answer<T>(&self, what: impl FnOnce(&State) -> T) -> Result<Response<T>, Status> {
        let silent = self.with(|state| {
            state.asked += 1;
            state.silent
        });
        if silent {
            std::future::pending::<()>().await;
        }
        self.with(|state| match state.refuse {
            Some((code, message)) => Err(Status::new(code, message)),
            None => Ok(Response::new(what(state))),
        })
    }
}

/// A server that ends with its test; its socket stays, like that of a killed kubelet.
pub struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn bind(directory: &Path, name: &Path) -> UnixListener {
    use std::os::fd::AsRawFd as _;
    let held = std::fs::File::open(directory).unwrap();
    let short = format!("/proc/self/fd/{}/{}", held.as_raw_fd(), name.display());
    UnixListener::bind(short).unwrap()
}

fn devices(resource: &str, ids: &[&str]) -> api::ContainerDevices {
    api::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[tonic::async_trait]
impl PodResourcesLister for FakePodResources {
    async fn list(
        &self,
        _: Request<api::ListPodResourcesRequest>,
    ) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        self.answer(|state| api::ListPodResourcesResponse {
            pod_resources: state.pods.clone(),
        })
        .await
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<api::AllocatableResourcesRequest>,
    ) -> Result<Response<api::AllocatableResourcesResponse>, Status> {
        self.answer(|state| api::AllocatableResourcesResponse {
            devices: state.allocatable.clone(),
        })
        .await
    }
}
