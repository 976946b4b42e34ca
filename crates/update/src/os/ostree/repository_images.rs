//! The container images in libostree's repository, and the images from which deployments were made.
//!
//! The extension of libostree for container images writes a reference once an image is complete. It selects a commit of
//! all layers. The origin of a deployment names the image.

use std::fmt::Write as _;

use super::{
    booted_deployment::booted_deployment,
    commit_image::CommitImage,
    deployed_image::DeployedImage,
    deployment_origin::{REFERENCE_KEY, origin_of},
    error::OstreeError,
    layered_packages::{LayeredPackages, PackageNames},
    own_packages::own_packages,
    signature_source::SignatureSource,
};
use crate::os::{DeploymentId, FetchedImage, grub::mounts};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{ImageRef, ImageTransport, OsFacts};
use machinist_rootfs::{Root, RootError};

/// Where the extension keeps the references of images.
const IMAGE_REFERENCES: &str = "/ostree/repo/refs/heads/ostree/container/image";

/// Maximum length of a reference.
const MAX_REFERENCE_BYTES: u64 = 4 << 10;

/// Whether a deployment was made from an image that other programs name as this one.
pub(super) fn is_origin(
    root: &Root,
    stateroot: &str,
    deployment: &DeploymentId,
    image: &ImageRef,
) -> bool {
    let reference = pull_reference(root, image);
    let origin = origin_of(root, stateroot, deployment).unwrap_or_default();
    let mut values = origin.lines().filter_map(|line| line.split_once('='));
    values.any(|(_, value)| value.trim() == reference)
}

/// The packages that rpm-ostree has added to a deployment.
pub(super) fn packages_of(
    root: &Root,
    stateroot: &str,
    deployment: &DeploymentId,
) -> LayeredPackages {
    let origin = origin_of(root, stateroot, deployment).unwrap_or_default();
    LayeredPackages::of_origin(&origin)
}

/// Checks the image of a deployment that another program has staged.
pub(super) fn check_image(
    root: &Root,
    stateroot: &str,
    deployment: &DeploymentId,
    wanted: Option<&ImageRef>,
) -> Result<(), OstreeError> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let found = DeployedImage::of(root, stateroot, deployment);
    match found.is(wanted) {
        true => Ok(()),
        false => Err(OstreeError::OtherImage {
            found: found
                .image
                .map_or_else(|| "none".to_owned(), |found| found.to_string()),
            wanted: wanted.to_string(),
        }),
    }
}

/// The origin of a deployment of this image.
pub(super) fn origin_text(root: &Root, image: &ImageRef) -> String {
    let reference = pull_reference(root, image);
    format!("[origin]\n{REFERENCE_KEY}={reference}\n")
}

/// The origin that another program has written for a deployment of this image, with our reference, which keeps how the
/// image is verified: bootc knows no signatures of a remote.
pub(super) fn with_reference(root: &Root, origin: &str, image: &ImageRef) -> String {
    let reference = format!("{REFERENCE_KEY}={}", pull_reference(root, image));
    let lines = origin.lines().map(|line| match line.split_once('=') {
        Some((key, _)) if key.trim() == REFERENCE_KEY => &*reference,
        _ => line,
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// The image as `ostree container image pull` names it.
pub(super) fn pull_reference(root: &Root, image: &ImageRef) -> String {
    SignatureSource::of_booted(root).reference(image)
}

/// The name of an image as part of a reference: letters, digits and `-` stay, as does a `/` after one of the first two;
/// `_` is doubled, and other characters are written by their code.
fn escaped(image: &str) -> String {
    let mut text = String::new();
    let mut follows_alphanumeric = false;
    for (at, character) in image.char_indices() {
        match character {
            '/' if follows_alphanumeric && at + 1 < image.len() => text.push('/'),
            '-' => text.push('-'),
            '_' => text.push_str("__"),
            plain if plain.is_ascii_alphanumeric() => text.push(plain),
            other => {
                // Writing to a String cannot fail.
                let _ = write!(text, "_{:02X}_", u32::from(other));
            }
        }
        follows_alphanumeric = character.is_ascii_alphanumeric();
    }
    text
}

/// The commit of what was last fetched as [`ImageRef::stored_name`] names it; `None` if no image is complete there. If
/// that is a path, the commit may have another digest.
pub(super) fn stored_commit(root: &Root, image: &ImageRef) -> Result<Option<String>, RootError> {
    let path = format!("{IMAGE_REFERENCES}/{}", escaped(&image.stored_name()));
    let Ok(path) = AbsPath::new(&path) else {
        return Ok(None);
    };
    match root.read_text(&path, MAX_REFERENCE_BYTES) {
        Ok(commit) => Ok(Some(commit.trim().to_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// An image that is complete in the repository.
pub(super) fn find_complete(
    root: &Root,
    image: &ImageRef,
) -> Result<Option<FetchedImage>, OstreeError> {
    let fetched = fetched_commit(root, image)?;
    Ok(fetched.map(|(_, CommitImage { version, .. })| FetchedImage { version }))
}

/// The commit of an image that is complete in the repository.
pub(super) fn fetched_commit(
    root: &Root,
    image: &ImageRef,
) -> Result<Option<(String, CommitImage)>, OstreeError> {
    let Some(commit) = stored_commit(root, image)? else {
        return Ok(None);
    };
    let stored = match CommitImage::read(root, &commit) {
        // The reference outlived its commit.
        Err(OstreeError::Root(error)) if error.is_not_found() => return Ok(None),
        stored => stored?,
    };
    // A registry was asked for the digest, which may be that of an index with images of several platforms.
    let is_wanted = image.transport() == ImageTransport::Registry
        || stored.digest.as_deref() == Some(&*image.digest().to_string());
    Ok(is_wanted.then_some((commit, stored)))
}

/// The digest of what was last fetched from the place of an image.
pub(super) fn stored_digest(root: &Root, image: &ImageRef) -> Option<String> {
    let commit = stored_commit(root, image).ok()??;
    CommitImage::read(root, &commit).ok()?.digest
}

/// The image and the packages of the booted deployment, and the version of the desired image.
pub(in crate::os) fn facts(
    root: &Root,
    desired: Option<&str>,
    adopted_packages: PackageNames,
) -> OsFacts {
    let mounts = mounts(root);
    let booted = booted_deployment(&mounts);
    let booted = booted.map(|(stateroot, name)| (stateroot, DeploymentId::new(name)));
    let packages = booted.as_ref();
    let packages = packages.map(|(stateroot, id)| packages_of(root, stateroot, id));
    let booted = booted.map(|(stateroot, id)| DeployedImage::of(root, stateroot, &id));
    let booted = booted.unwrap_or_default();
    let mut own = own_packages(root).unwrap_or_default();
    own.extend(adopted_packages.iter().cloned());
    let own_extensions = packages.as_ref().map(|all| all.own_extensions(&own));
    let has_own_kernel_type = packages
        .as_ref()
        .is_some_and(|all| all.has_own_kernel(&own));
    let desired = desired.and_then(|image| ImageRef::parse(image).ok());
    let fetched = desired
        .as_ref()
        .and_then(|image| find_complete(root, image).ok().flatten());
    let image = desired
        .filter(|desired| booted.is(desired))
        .or(booted.image);
    OsFacts {
        image: image.map(|image| image.to_string()),
        version: booted.version,
        offered: fetched.and_then(|fetched| fetched.version),
        extensions: packages.map(|all| all.extensions()),
        own_extensions: own_extensions.unwrap_or_default(),
        has_own_kernel_type,
        adopted_packages,
        ..OsFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_in_a_reference_is_escaped_as_by_the_extension() {
        for (image, name) in [
            (
                "docker://quay.io/fedora/fedora-bootc:41",
                "docker_3A__2F__2F_quay_2E_io/fedora/fedora-bootc_3A_41",
            ),
            ("docker://a_b/c-/d/", "docker_3A__2F__2F_a__b/c-_2F_d_2F_"),
        ] {
            assert_eq!(escaped(image), name);
        }
    }
}
