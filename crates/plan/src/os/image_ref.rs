//! Parses references to OS images, which must contain a digest.

use std::fmt;

use machinist_base::digest::Digest;

/// A container image by its digest, such as `quay.io/os/coreos@sha256:…`.
///
/// A tag may be moved to another image at any time, and then two machines with the same config
/// would differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef {
    name: String,
    digest: Digest,
}

/// Why a text is not an image reference with a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an image reference with a digest")]
pub struct ImageRefError {
    given: String,
}

impl ImageRef {
    /// Parses `NAME@sha256:…` or `NAME:TAG@sha256:…`; the tag has no effect then and is dropped.
    ///
    /// # Errors
    /// There is no digest, or nothing before it.
    pub fn parse(text: &str) -> Result<Self, ImageRefError> {
        let read = || {
            let (name, digest) = text.split_once('@')?;
            // A colon after the last slash starts a tag; a colon before it, a registry's port.
            let (path, last) = name.rsplit_once('/').map_or(("", name), |(p, l)| (p, l));
            let last = last.split_once(':').map_or(last, |(last, _)| last);
            let name = &name[..path.len() + usize::from(!path.is_empty()) + last.len()];
            let plain = |c: char| c.is_ascii_alphanumeric() || "./:_-[]".contains(c);
            let named = !last.is_empty() && name.chars().all(plain);
            Some(Self {
                name: named.then(|| name.to_owned())?,
                digest: digest.parse().ok()?,
            })
        };
        read().ok_or_else(|| ImageRefError {
            given: text.to_owned(),
        })
    }

    /// Registry and repository, without tag and digest.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of its manifest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn an_image_reference_keeps_the_digest_and_ignores_the_tag() {
        for (name, plain) in [
            ("quay.io/os/coreos", "quay.io/os/coreos"),
            ("quay.io/os/coreos:4.16", "quay.io/os/coreos"),
            ("localhost:5000/os", "localhost:5000/os"),
            ("localhost:5000/os:latest", "localhost:5000/os"),
            ("os:9", "os"),
        ] {
            let image = ImageRef::parse(&format!("{name}@{DIGEST}")).unwrap();
            assert_eq!(image.to_string(), format!("{plain}@{DIGEST}"));
        }
    }

    #[test]
    fn an_image_reference_without_full_digest_or_name_is_rejected() {
        let short = &DIGEST[..70];
        for text in [
            "",
            "quay.io/os/coreos",
            "quay.io/os/coreos:4.16",
            &format!("@{DIGEST}"),
            &format!("quay.io/@{DIGEST}"),
            &format!("quay.io/os@{short}"),
            &format!("quay.io/o s@{DIGEST}"),
            &format!("quay.io/os@x@{DIGEST}"),
        ] {
            assert!(ImageRef::parse(text).is_err(), "{text}");
        }
    }
}
