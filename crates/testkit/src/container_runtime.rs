//! A container runtime without containers: images by name, pulls that the test delays or lets fail, and the ways in
//! which containerd and CRI-O protect images.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use machinist_cri::api::{
    containerd::{
        Descriptor, GetImageRequest, GetImageResponse, Image as LabelledImage, UpdateImageRequest,
        UpdateImageResponse,
        images_server::{Images, ImagesServer},
    },
    v1::{
        AuthConfig, FilesystemIdentifier, FilesystemUsage, Image, ImageFsInfoRequest,
        ImageFsInfoResponse, ImageStatusRequest, ImageStatusResponse, PullImageRequest,
        PullImageResponse, VersionRequest, VersionResponse,
        image_service_server::{ImageService, ImageServiceServer},
        runtime_service_server::{RuntimeService, RuntimeServiceServer},
    },
};
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};

/// The label by which containerd knows a protected image.
pub const PINNED_LABEL: &str = "io.cri-containerd.pinned";

/// The directory of CRI-O's configuration.
const CRIO_CONFIG_DIR: &str = "etc/crio/crio.conf.d";

/// The runtime. Cheap to clone.
#[derive(Clone)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
    /// Pulls end only while this is true.
    open: Arc<watch::Sender<bool>>,
    root: PathBuf,
    name: &'static str,
}

#[derive(Default)]
struct State {
    /// Labels by the name of the image.
    images: BTreeMap<String, HashMap<String, String>>,
    pulls: Vec<(String, Option<AuthConfig>)>,
    failures: VecDeque<(String, Code, String)>,
    /// Images whose pulls never end.
    endless: BTreeSet<String>,
    /// Images whose status is an error, until as many pulls have ended.
    unreadable: BTreeMap<String, usize>,
    pulling: usize,
    most_pulling: usize,
    requests: usize,
    label_changes: usize,
    breaks_labels: bool,
}

impl FakeRuntime {
    /// containerd on the machine with this root.
    pub fn containerd(root: &Path) -> Self {
        Self::new(root, "containerd")
    }

    /// CRI-O, which reads its configuration at each request.
    pub fn crio(root: &Path) -> Self {
        Self::new(root, "cri-o")
    }

    fn new(root: &Path, name: &'static str) -> Self {
        Self {
            state: Arc::default(),
            open: Arc::new(watch::Sender::new(true)),
            root: root.to_owned(),
            name,
        }
    }

    /// Serves on the runtime's usual socket, until the returned handle is dropped.
    pub fn serve(&self) -> ServingRuntime {
        let (dir, name) = match self.name {
            "cri-o" => ("run/crio", "crio.sock"),
            _ => ("run/containerd", "containerd.sock"),
        };
        let dir = self.root.join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let _ = std::fs::remove_file(dir.join(name));
        let listener = UnixListener::bind(dir.join(name)).unwrap();
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(self.clone()))
            .add_service(ImageServiceServer::new(self.clone()))
            .add_service(ImagesServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        ServingRuntime(tokio::spawn(async move { server.await.unwrap() }))
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.state.lock().unwrap())
    }

    /// Adds an image with these labels.
    pub fn add(&self, image: &str, labels: &[(&str, &str)]) {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let labels = labels.iter().map(own).collect();
        self.with(|state| state.images.insert(image.to_owned(), labels));
    }

    /// Removes an image, as garbage collection does.
    pub fn remove(&self, image: &str) {
        self.with(|state| state.images.remove(image).unwrap());
    }

    /// Names of all images.
    pub fn images(&self) -> Vec<String> {
        self.with(|state| state.images.keys().cloned().collect())
    }

    /// Names of the images with containerd's label.
    pub fn labelled(&self) -> Vec<String> {
        let has_label = |labels: &HashMap<String, String>| labels.contains_key(PINNED_LABEL);
        self.with(|state| {
            let all = state.images.iter().filter(|(_, labels)| has_label(labels));
            all.map(|(name, _)| name.clone()).collect()
        })
    }

    /// The next pull of this image fails; several are queued.
    pub fn fail_pull(&self, image: &str, code: Code, message: &str) {
        let failure = (image.to_owned(), code, message.to_owned());
        self.with(|state| state.failures.push_back(failure));
    }

    /// Pulls of this image never end.
    pub fn never_end_pull(&self, image: &str) {
        self.with(|state| state.endless.insert(image.to_owned()));
    }

    /// The status of this image is an error, until it was pulled so many times.
    pub fn break_status(&self, image: &str, pulls: usize) {
        self.with(|state| state.unreadable.insert(image.to_owned(), pulls));
    }

    /// Whether pulls end.
    pub fn let_pulls_end(&self, is_open: bool) {
        self.open.send_replace(is_open);
    }

    /// Every pull with its credentials.
    pub fn pulls(&self) -> Vec<(String, Option<AuthConfig>)> {
        self.with(|state| state.pulls.clone())
    }

    /// The largest number of pulls at once.
    pub fn most_pulling(&self) -> usize {
        self.with(|state| state.most_pulling)
    }

    /// The number of pulls now.
    pub fn pulling(&self) -> usize {
        self.with(|state| state.pulling)
    }

    /// From now on the runtime ends with each change of a label.
    pub fn break_labels(&self) {
        self.with(|state| state.breaks_labels = true);
    }

    /// The number of changes of labels.
    pub fn label_changes(&self) -> usize {
        self.with(|state| state.label_changes)
    }

    /// The number of requests of any kind.
    pub fn requests(&self) -> usize {
        self.with(|state| state.requests)
    }

    fn is_pinned(&self, image: &str, labels: &HashMap<String, String>) -> bool {
        if self.name == "containerd" {
            return labels.contains_key(PINNED_LABEL);
        }
        let files = std::fs::read_dir(self.root.join(CRIO_CONFIG_DIR));
        let mut texts = files
            .into_iter()
            .flatten()
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        texts.any(|text| text.contains(&format!("\"{image}\"")))
    }
}

/// A server that ends with its test; its socket stays, like that of a killed runtime.
pub struct ServingRuntime(JoinHandle<()>);

impl Drop for ServingRuntime {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a pull until it ends or is cancelled.
struct RunningPull(FakeRuntime);

impl RunningPull {
    fn begin(runtime: &FakeRuntime) -> Self {
        runtime.with(|state| {
            state.pulling += 1;
            state.most_pulling = state.most_pulling.max(state.pulling);
        });
        Self(runtime.clone())
    }
}

impl Drop for RunningPull {
    fn drop(&mut self) {
        self.0.with(|state| state.pulling -= 1);
    }
}

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        self.with(|state| state.requests += 1);
        Ok(Response::new(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: self.name.to_owned(),
            runtime_version: "double".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }
}

#[tonic::async_trait]
impl ImageService for FakeRuntime {
    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap().image;
        let (labels, is_broken) = self.with(|state| {
            state.requests += 1;
            let pulls = state.unreadable.get(&name);
            let is_broken = pulls.is_some_and(|pulls| *pulls > 0);
            (state.images.get(&name).cloned(), is_broken)
        });
        if is_broken {
            return Err(Status::unknown("image is damaged"));
        }
        let image = labels.map(|labels| Image {
            id: format!("id of {name}"),
            repo_tags: Vec::new(),
            pinned: self.is_pinned(&name, &labels),
            repo_digests: vec![name],
        });
        Ok(Response::new(ImageStatusResponse { image }))
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let PullImageRequest { image, auth } = request.into_inner();
        let name = image.unwrap().image;
        let _running = RunningPull::begin(self);
        self.with(|state| state.pulls.push((name.clone(), auth)));
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
        if self.with(|state| state.endless.contains(&name)) {
            std::future::pending::<()>().await;
        }
        let failure = self.with(|state| {
            let mut all = state.failures.iter();
            let at = all.position(|(image, ..)| *image == name);
            at.and_then(|at| state.failures.remove(at))
        });
        if let Some((_, code, message)) = failure {
            return Err(Status::new(code, message));
        }
        self.with(|state| {
            state.images.entry(name.clone()).or_default();
            if let Some(pulls) = state.unreadable.get_mut(&name) {
                *pulls = pulls.saturating_sub(1);
            }
        });
        Ok(Response::new(PullImageResponse { image_ref: name }))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let usage = FilesystemUsage {
            fs_id: Some(FilesystemIdentifier {
                mountpoint: "/var/lib/images".to_owned(),
            }),
        };
        Ok(Response::new(ImageFsInfoResponse {
            image_filesystems: vec![usage],
        }))
    }
}

#[tonic::async_trait]
impl Images for FakeRuntime {
    async fn get(
        &self,
        request: Request<GetImageRequest>,
    ) -> Result<Response<GetImageResponse>, Status> {
        check_namespace(&request)?;
        let name = request.into_inner().name;
        let labels = self.with(|state| state.images.get(&name).cloned());
        let labels = labels.ok_or_else(|| Status::not_found(name.clone()))?;
        Ok(Response::new(GetImageResponse {
            image: Some(LabelledImage {
                target: Some(Descriptor {
                    digest: format!("target of {name}"),
                    ..Descriptor::default()
                }),
                name,
                labels,
                ..LabelledImage::default()
            }),
        }))
    }

    async fn update(
        &self,
        request: Request<UpdateImageRequest>,
    ) -> Result<Response<UpdateImageResponse>, Status> {
        check_namespace(&request)?;
        let UpdateImageRequest { image, update_mask } = request.into_inner();
        let mut image = image.unwrap();
        let is_broken = self.with(|state| {
            state.label_changes += 1;
            state.breaks_labels
        });
        if is_broken {
            return Err(Status::unavailable("error reading from server: EOF"));
        }
        let target = image.target.take().unwrap_or_default().digest;
        if target != format!("target of {}", image.name) {
            return Err(Status::internal("containerd crashes without the target"));
        }
        let paths = update_mask.unwrap().paths;
        self.with(|state| {
            let known = state.images.get_mut(&image.name);
            let known = known.ok_or_else(|| Status::not_found(image.name.clone()))?;
            for path in paths {
                let label = path.strip_prefix("labels.").unwrap();
                match image.labels.remove(label) {
                    Some(value) => known.insert(label.to_owned(), value),
                    None => known.remove(label),
                };
            }
            Ok(Response::new(UpdateImageResponse { image: None }))
        })
    }
}

fn check_namespace<T>(request: &Request<T>) -> Result<(), Status> {
    match request.metadata().get("containerd-namespace") {
        Some(namespace) if namespace == "k8s.io" => Ok(()),
        _ => Err(Status::failed_precondition("namespace is required")),
    }
}
