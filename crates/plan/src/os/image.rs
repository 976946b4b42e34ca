//! Compares images, and refuses those that are named by a tag.

use super::{ImageRef, OsPart, origin};
use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal};

/// Refuses image references by tag: a tag may be moved to another image.
pub(super) fn by_tag(from: &MachineConfig, to: &MachineConfig) -> Vec<Refusal> {
    let images = [
        (OsPart::Image, &from.os_image_url, &to.os_image_url),
        (
            OsPart::ExtensionsImage,
            &from.extensions_image,
            &to.extensions_image,
        ),
    ];
    let changed = images
        .into_iter()
        .filter(|(_, before, after)| before != after);
    let refuse = |(part, _, image): (OsPart, _, &Option<String>)| {
        let image = image.as_deref()?;
        let error = ImageRef::parse(image).err()?;
        let refusal = Refusal::new(Reason::ImageNotByDigest, error.to_string());
        let refusal = refusal.expected("registry/name@sha256:…");
        Some(refusal.at(&origin(to, part.origin_kind(), image)))
    };
    changed.filter_map(refuse).collect()
}

/// Whether two references select the same content. A mirror may have another name.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let digest = |image: &str| ImageRef::parse(image).ok().map(|image| image.digest());
    one == other || digest(one).is_some_and(|one| digest(other) == Some(one))
}
