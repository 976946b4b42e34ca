//! A client of one container runtime.

use std::{collections::BTreeSet, time::Duration};

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, UnixAddress};
use tonic::transport::{Channel, Endpoint};

use crate::{
    api::v1::{
        AuthConfig, ImageFsInfoRequest, ImageSpec, ImageStatusRequest, PullImageRequest,
        VersionRequest, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
    containerd_labels::ImageLabels,
    error::CriError,
    request::answered,
};

/// Timeout of a request that only reads. The kubelet waits two minutes; a runtime that needs longer than this is
/// busy, and is asked again.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How an image is protected from garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// By its configuration.
    Crio,
    /// By a label of the image.
    Containerd,
    /// Not at all.
    Other,
}

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalImage {
    /// Its names with a digest.
    pub digests: Vec<String>,
    /// Whether it is protected from garbage collection.
    pub pinned: bool,
}

/// The runtime behind a socket.
#[derive(Clone, Debug)]
pub struct Runtime {
    channel: Channel,
    /// Its own name for itself.
    name: String,
    /// The socket, for messages.
    socket: AbsPath,
}

impl Runtime {
    /// Connects to the first of the sockets that exists.
    pub async fn connect(root: &Root, sockets: &[AbsPath]) -> Result<Self, CriError> {
        for socket in sockets {
            match root.unix_address(socket) {
                Err(error) if error.is_not_found() => {}
                address => return Self::open(address?, socket).await,
            }
        }
        let names: Vec<_> = sockets.iter().map(ToString::to_string).collect();
        Err(CriError::NoSocket(names.join(", ")))
    }

    /// `address` lives until the connection is open: the path refers to it. A lost connection is not opened again.
    async fn open(address: UnixAddress, socket: &AbsPath) -> Result<Self, CriError> {
        let path = format!("unix:{}", address.path().display());
        let unreached = |error| CriError::unreached(socket, error);
        let endpoint = Endpoint::from_shared(path).map_err(unreached)?;
        let channel = endpoint.connect().await.map_err(unreached)?;
        let mut runtime = Self {
            channel,
            name: String::new(),
            socket: socket.clone(),
        };
        runtime.name = runtime.version().await?;
        Ok(runtime)
    }

    async fn version(&self) -> Result<String, CriError> {
        let mut client = RuntimeServiceClient::new(self.channel.clone());
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        let what = || {
            format!(
                "query the version of the container runtime on {}",
                self.socket
            )
        };
        let answer = answered(client.version(request), READ_TIMEOUT, what).await?;
        Ok(answer.runtime_name)
    }

    fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone())
    }

    /// How this runtime protects images.
    pub fn kind(&self) -> RuntimeKind {
        match self.name.as_str() {
            "cri-o" => RuntimeKind::Crio,
            "containerd" => RuntimeKind::Containerd,
            _ => RuntimeKind::Other,
        }
    }

    /// Its own name for itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Labels of images, if this is containerd.
    pub fn labels(&self) -> ImageLabels {
        ImageLabels::new(self.channel.clone())
    }

    /// The image, if it is present.
    pub async fn image(&self, image: &str) -> Result<Option<LocalImage>, CriError> {
        let request = ImageStatusRequest {
            image: Some(spec(image)),
            verbose: false,
        };
        let mut client = self.images();
        let what = || format!("look for image {image}");
        let answer = answered(client.image_status(request), READ_TIMEOUT, what).await?;
        Ok(answer.image.map(|found| LocalImage {
            digests: found.repo_digests,
            pinned: found.pinned,
        }))
    }

    /// Pulls an image within `limit`. A pull that is dropped is cancelled, and continues with the next one where the
    /// runtime keeps complete layers.
    pub async fn pull(
        &self,
        image: &str,
        auth: Option<AuthConfig>,
        limit: Duration,
    ) -> Result<(), CriError> {
        let request = PullImageRequest {
            image: Some(spec(image)),
            auth,
        };
        let mut client = self.images();
        let what = || format!("pull image {image}");
        answered(client.pull_image(request), limit, what).await?;
        Ok(())
    }

    /// Directories on the file systems that hold images.
    pub async fn image_file_systems(&self) -> Result<BTreeSet<AbsPath>, CriError> {
        let mut client = self.images();
        let request = client.image_fs_info(ImageFsInfoRequest {});
        let what = || "query the file system of images".to_owned();
        let answer = answered(request, READ_TIMEOUT, what).await?;
        let identified = answer
            .image_filesystems
            .into_iter()
            .filter_map(|one| one.fs_id);
        Ok(identified
            .filter_map(|one| AbsPath::new(one.mountpoint).ok())
            .collect())
    }
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_owned(),
    }
}
