//! Compares images, and refuses those that are named by a tag.

use super::{ImageRef, ImageTransport, OsPart, origin};
use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal};

/// Downloads have private directories in place of these (`PrivateTmp=` of systemd.exec(5)), and find no image there.
const PRIVATE_DIRECTORIES: [&str; 2] = ["/tmp/", "/var/tmp/"];

/// Refuses references without a digest, because a tag may be moved to another image, and those that nothing can fetch.
pub(super) fn unusable_references(from: &MachineConfig, to: &MachineConfig) -> Vec<Refusal> {
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
        let refusal = refusal(part, image)?;
        Some(refusal.at(&origin(to, part.origin_kind(), image)))
    };
    changed.filter_map(refuse).collect()
}

fn refusal(part: OsPart, image: &str) -> Option<Refusal> {
    let of_registry = "registry/name@sha256:…";
    match (part, ImageRef::parse(image)) {
        (OsPart::ExtensionsImage, Ok(image)) if image.transport() != ImageTransport::Registry => {
            let text =
                format!("the image of extensions must come from a registry, not from {image}");
            Some(Refusal::new(Reason::ValueInvalid, text).expected(of_registry))
        }
        (_, Ok(image)) => {
            let is_below = |directory: &&str| image.name().starts_with(directory);
            let directory = PRIVATE_DIRECTORIES.into_iter().find(is_below)?;
            let text =
                format!("downloads do not see {directory} of the host, and would not find {image}");
            let refusal = Refusal::new(Reason::ValueInvalid, text);
            Some(refusal.expected("another directory, such as /srv"))
        }
        (part, Err(error)) => {
            let expected = match part {
                OsPart::ExtensionsImage => of_registry.to_owned(),
                _ => {
                    format!("{of_registry}, oci:/directory@sha256:… or oci-archive:/file@sha256:…")
                }
            };
            let reason = match error.lacks_digest() {
                true => Reason::ImageNotByDigest,
                false => Reason::ValueInvalid,
            };
            Some(Refusal::new(reason, error.to_string()).expected(expected))
        }
    }
}

/// Whether two references select the same content. A mirror may have another name.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let digest = |image: &str| ImageRef::parse(image).ok().map(|image| image.digest());
    one == other || digest(one).is_some_and(|one| digest(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_downloads_cannot_see_is_refused() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (name, is_refused) in [
            ("oci:/tmp/os", true),
            ("oci-archive:/var/tmp/os.tar:9", true),
            ("oci:/tmpfs/os", false),
            ("oci:/srv/tmp/os", false),
            ("localhost/tmp/os", false),
        ] {
            let refusal = refusal(OsPart::Image, &format!("{name}@{digest}"));
            assert_eq!(refusal.is_some(), is_refused, "{name}: {refusal:?}");
        }
    }

    #[test]
    fn only_the_os_image_may_be_a_path() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let path = format!("oci:/srv/os@{digest}");
        assert_eq!(refusal(OsPart::Image, &path), None);
        let text = refusal(OsPart::ExtensionsImage, &path).unwrap().to_string();
        assert!(text.contains(&path), "{text}");
        let text = refusal(OsPart::Image, "oci:/srv/os").unwrap().to_string();
        assert!(text.contains("oci:/directory@sha256:"), "{text}");
    }
}
