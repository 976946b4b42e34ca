//! Reads from the origin of the running deployment how the signature of an image is verified.
//!
//! A new image is verified like the running one: an administrator who has chosen a signed image does not get an unverified
//! one. In every case the program that downloads it enforces containers-policy.json(5).

use super::{
    booted_deployment::booted_deployment,
    deployment_origin::{origin_of, reference_in},
};
use crate::os::{DeploymentId, grub::mounts};
use machinist_plan::{ImageRef, ImageTransport};
use machinist_rootfs::Root;

/// What verifies an image, besides containers-policy.json(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SignatureSource {
    #[default]
    Nothing,
    /// The policy, which must require a signature.
    Policy,
    /// The signatures of commits that a remote of libostree requires.
    Remote(String),
}

impl SignatureSource {
    /// That of the running deployment.
    pub(super) fn of_booted(root: &Root) -> Self {
        let mounts = mounts(root);
        let booted = booted_deployment(&mounts);
        let origin = booted.and_then(|(stateroot, name)| {
            let id = DeploymentId::new(name);
            origin_of(root, stateroot, &id).ok()
        });
        origin.as_deref().map_or(Self::Nothing, Self::of_origin)
    }

    fn of_origin(origin: &str) -> Self {
        let reference = reference_in(origin).unwrap_or_default();
        let remote = ["ostree-remote-registry:", "ostree-remote-image:"];
        let mut remote = remote
            .iter()
            .filter_map(|kind| reference.strip_prefix(kind));
        match remote.next().and_then(|rest| rest.split_once(':')) {
            Some((remote, _)) => Self::Remote(remote.to_owned()),
            None if reference.starts_with("ostree-image-signed:") => Self::Policy,
            None => Self::Nothing,
        }
    }

    /// The image as `ostree container image pull` and the origins of deployments name it.
    pub(super) fn reference(&self, image: &ImageRef) -> String {
        let stored = image.stored_name();
        match self {
            Self::Policy => format!("ostree-image-signed:{stored}"),
            Self::Remote(remote) => format!("ostree-remote-image:{remote}:{stored}"),
            Self::Nothing if image.transport() == ImageTransport::Registry => {
                format!("ostree-unverified-registry:{image}")
            }
            Self::Nothing => format!("ostree-unverified-image:{stored}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ostree::deployment_origin::REFERENCE_KEY;

    #[test]
    fn a_new_image_is_verified_like_the_running_one() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let named = |name: &str| format!("{name}@{digest}");
        let remote = named("q.io/os");
        let local = named("oci:/srv/os");
        for (running, image, expected) in [
            ("", &remote, format!("ostree-unverified-registry:{remote}")),
            (
                "ostree-unverified-image:docker://q.io/old",
                &remote,
                format!("ostree-unverified-registry:{remote}"),
            ),
            (
                "ostree-image-signed:docker://q.io/old:9",
                &remote,
                format!("ostree-image-signed:docker://{remote}"),
            ),
            (
                "ostree-image-signed:registry:q.io/old:9",
                &local,
                "ostree-image-signed:oci:/srv/os".to_owned(),
            ),
            (
                "ostree-remote-registry:fedora:q.io/old:9",
                &remote,
                format!("ostree-remote-image:fedora:docker://{remote}"),
            ),
            (
                "ostree-unverified-registry:q.io/old",
                &local,
                "ostree-unverified-image:oci:/srv/os".to_owned(),
            ),
        ] {
            let origin = format!("[origin]\n{REFERENCE_KEY}={running}\n");
            let image = ImageRef::parse(image).unwrap();
            let found = SignatureSource::of_origin(&origin).reference(&image);
            assert_eq!(found, expected, "{running}");
        }
    }
}
