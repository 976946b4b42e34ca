//! The image from which a deployment was made.

use super::{
    commit_image::CommitImage,
    deployment_origin::{commit_of, origin_of, reference_in},
};
use crate::os::DeploymentId;
use machinist_base::{digest::Digest, error_chain::chain};
use machinist_plan::ImageRef;
use machinist_rootfs::Root;

/// The image of a deployment.
#[derive(Clone, Debug, Default)]
pub(super) struct DeployedImage {
    /// The image, with the digest for which the registry was asked; `None` if it cannot be read, or if the deployment was
    /// not made from an image.
    pub(super) image: Option<ImageRef>,
    /// The digest of the manifest. It is another one if the registry was asked for an index with images of several
    /// platforms.
    manifest: Option<Digest>,
    pub(super) version: Option<String>,
}

impl DeployedImage {
    pub(super) fn of(root: &Root, stateroot: &str, deployment: &DeploymentId) -> Self {
        let commit = match CommitImage::read(root, commit_of(deployment)) {
            Ok(commit) => commit,
            Err(error) => {
                let error = chain(&error);
                tracing::debug!("the image of the deployment {deployment} is unknown: {error}");
                return Self::default();
            }
        };
        let manifest: Option<Digest> = commit.digest.and_then(|digest| digest.parse().ok());
        let origin = origin_of(root, stateroot, deployment).ok();
        let reference = origin.as_deref().and_then(image_reference);
        let image = reference.zip(manifest).and_then(|(reference, manifest)| {
            let (name, digest) = match reference.split_once('@') {
                Some((name, digest)) => (name, digest.to_owned()),
                None => (reference, manifest.to_string()),
            };
            ImageRef::parse(&format!("{name}@{digest}")).ok()
        });
        Self {
            image,
            manifest,
            version: commit.version,
        }
    }

    /// Whether it was made from this image, or from one with the same content.
    pub(super) fn is(&self, wanted: &ImageRef) -> bool {
        let Some(image) = &self.image else {
            return false;
        };
        [Some(image.digest()), self.manifest].contains(&Some(wanted.digest()))
    }
}

/// The image in the origin of a deployment, with its tag and its digest.
fn image_reference(origin: &str) -> Option<&str> {
    let value = reference_in(origin)?;
    if let Some(rest) = value.strip_prefix("ostree-remote-registry:") {
        return Some(rest.split_once(':')?.1);
    }
    let registry = ["docker://", "registry:"];
    let mut registry = registry.iter().filter_map(|name| value.split_once(name));
    let local = || {
        let local = [":oci:/", ":oci-archive:/"];
        let at = local.iter().find_map(|transport| value.find(transport))?;
        Some(&value[at + 1..])
    };
    registry.next().map(|(_, name)| name).or_else(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_names_the_image() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let by_digest = format!("quay.io/os@{digest}");
        for (reference, image) in [
            (
                format!("ostree-unverified-registry:{by_digest}"),
                Some(&*by_digest),
            ),
            (
                "ostree-unverified-image:docker://r:5000/os:4.16".to_owned(),
                Some("r:5000/os:4.16"),
            ),
            (
                "ostree-image-signed:registry:quay.io/os:9".to_owned(),
                Some("quay.io/os:9"),
            ),
            (
                "ostree-remote-registry:fedora:quay.io/os".to_owned(),
                Some("quay.io/os"),
            ),
            (
                "ostree-unverified-image:oci:/srv/os".to_owned(),
                Some("oci:/srv/os"),
            ),
            (
                "ostree-remote-image:fedora:oci-archive:/srv/os.tar:9".to_owned(),
                Some("oci-archive:/srv/os.tar:9"),
            ),
            ("ostree-unverified-image:dir:/srv/os".to_owned(), None),
        ] {
            let text = format!("[origin]\ncontainer-image-reference={reference}\n");
            assert_eq!(image_reference(&text), image, "{reference}");
        }
        assert_eq!(image_reference("[origin]\nrefspec=debian/stable\n"), None);
    }
}
