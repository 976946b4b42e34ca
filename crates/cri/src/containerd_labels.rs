//! The label by which containerd's CRI knows that an image is pinned.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};

use crate::{
    api::containerd::{
        FieldMask, GetImageRequest, Image, UpdateImageRequest, images_client::ImagesClient,
    },
    error::CriError,
    request::answered,
};

/// The header that selects containerd's namespace, and the namespace of its CRI.
const NAMESPACE_HEADER: &str = "containerd-namespace";
const CRI_NAMESPACE: &str = "k8s.io";

/// Label and value of pinned images.
const PINNED_LABEL: &str = "io.cri-containerd.pinned";
const PINNED_VALUE: &str = "pinned";

const LABEL_TIMEOUT: Duration = Duration::from_secs(30);

/// A client for labels of images in containerd.
#[derive(Clone, Debug)]
pub struct ImageLabels {
    client: ImagesClient<Channel>,
}

impl ImageLabels {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            client: ImagesClient::new(channel),
        }
    }

    /// Whether the image of this name has the label; `None` if there is no image of this name.
    pub async fn is_pinned(&self, name: &str) -> Result<Option<bool>, CriError> {
        let image = self.image(name).await?;
        Ok(image.map(|image| {
            let value = image.labels.get(PINNED_LABEL);
            value.map(String::as_str) == Some(PINNED_VALUE)
        }))
    }

    /// Sets the label or removes it. An image that is gone has no label to remove.
    pub async fn set_pinned(&self, name: &str, is_pinned: bool) -> Result<(), CriError> {
        let what = || format!("change the label {PINNED_LABEL} of image {name}");
        let Some(image) = self.image(name).await? else {
            return match is_pinned {
                true => Err(refused(what(), Status::not_found("no such image"))),
                false => Ok(()),
            };
        };
        if image.target.is_none() {
            // containerd would crash.
            return Err(refused(what(), Status::internal("it has no target")));
        }
        let label = is_pinned.then(|| (PINNED_LABEL.to_owned(), PINNED_VALUE.to_owned()));
        // The image is returned as it was read: containerd relies on fields that are not in the mask, too.
        let request = in_namespace(UpdateImageRequest {
            image: Some(Image {
                labels: HashMap::from_iter(label),
                ..image
            }),
            update_mask: Some(FieldMask {
                paths: vec![format!("labels.{PINNED_LABEL}")],
            }),
        });
        let mut client = self.client.clone();
        match answered(client.update(request), LABEL_TIMEOUT, what).await {
            Err(error) if !is_pinned && is_missing(&error) => Ok(()),
            answer => answer.map(drop),
        }
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, CriError> {
        let request = in_namespace(GetImageRequest {
            name: name.to_owned(),
        });
        let mut client = self.client.clone();
        let what = || format!("read the labels of image {name}");
        match answered(client.get(request), LABEL_TIMEOUT, what).await {
            Err(error) if is_missing(&error) => Ok(None),
            answer => Ok(answer?.image),
        }
    }
}

fn refused(what: String, status: Status) -> CriError {
    CriError::Refused {
        what,
        status: Box::new(status),
    }
}

fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let namespace = MetadataValue::from_static(CRI_NAMESPACE);
    request.metadata_mut().insert(NAMESPACE_HEADER, namespace);
    request
}

fn is_missing(error: &CriError) -> bool {
    matches!(error, CriError::Refused { status, .. } if status.code() == Code::NotFound)
}
