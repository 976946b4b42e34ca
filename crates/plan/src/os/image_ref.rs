//! Parses references to OS images, which must contain a digest.

use std::fmt;

use machinist_base::{abs_path::AbsPath, digest::Digest};

/// Where an image is, as containers-transports(5) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageTransport {
    /// A registry. It has no prefix in a reference.
    Registry,
    /// A directory of the host with the OCI image layout.
    OciDirectory,
    /// A tar archive of such a directory.
    OciArchive,
}

impl ImageTransport {
    const LOCAL: [Self; 2] = [Self::OciDirectory, Self::OciArchive];

    /// The name of the transport.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registry => "registry",
            Self::OciDirectory => "oci",
            Self::OciArchive => "oci-archive",
        }
    }
}

/// A container image by its digest, such as `quay.io/os/coreos@sha256:…`, `oci:/srv/os@sha256:…` or
/// `oci-archive:/srv/os.tar:9@sha256:…`.
///
/// A tag may be moved to another image at any time, and so may a directory get another content. Then
/// two machines with the same config would differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef {
    transport: ImageTransport,
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
    /// Parses `NAME@sha256:…` or `NAME:TAG@sha256:…` of a registry, and `oci:/PATH@sha256:…` or
    /// `oci-archive:/PATH@sha256:…`. The tag of a registry has no effect beside the digest and is
    /// dropped. `:TAG` after a path selects one of several images and stays.
    ///
    /// # Errors
    /// There is no digest, or no valid name before it.
    pub fn parse(text: &str) -> Result<Self, ImageRefError> {
        let read = || {
            let (name, digest) = text.split_once('@')?;
            let local = ImageTransport::LOCAL.iter().find_map(|transport| {
                let path = name.strip_prefix(transport.name())?.strip_prefix(':')?;
                // Otherwise it is the port of a registry with this name.
                (!path.starts_with(|c: char| c.is_ascii_digit())).then_some((*transport, path))
            });
            let (transport, name) = match local {
                Some((transport, path)) => (transport, local_name(path)?),
                None => (ImageTransport::Registry, registry_name(name)?),
            };
            Some(Self {
                transport,
                name: name.to_owned(),
                digest: digest.parse().ok()?,
            })
        };
        read().ok_or_else(|| ImageRefError {
            given: text.to_owned(),
        })
    }

    /// Where the image is.
    pub const fn transport(&self) -> ImageTransport {
        self.transport
    }

    /// Registry and repository without tag and digest, or the path with its tag.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of its manifest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

/// Registry and repository, without a tag.
fn registry_name(name: &str) -> Option<&str> {
    // A colon after the last slash starts a tag; a colon before it, a registry's port.
    let (path, last) = name.rsplit_once('/').map_or(("", name), |(p, l)| (p, l));
    let last = last.split_once(':').map_or(last, |(last, _)| last);
    let name = &name[..path.len() + usize::from(!path.is_empty()) + last.len()];
    let plain = |c: char| c.is_ascii_alphanumeric() || "./:_-[]".contains(c);
    let named = !last.is_empty() && !name.contains("//") && name.chars().all(plain);
    named.then_some(name)
}

/// An absolute path, with `:TAG` or without.
fn local_name(name: &str) -> Option<&str> {
    let (path, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let named = AbsPath::new(path).is_ok_and(|path| path.as_str() != "/")
        && path.chars().all(|c| plain(c) || c == '/');
    (named && !tag.is_empty() && tag.chars().all(plain)).then_some(name)
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.transport != ImageTransport::Registry {
            write!(f, "{}:", self.transport.name())?;
        }
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
    fn an_image_reference_to_a_path_keeps_the_tag() {
        for (name, transport, path) in [
            ("oci:/srv/os", ImageTransport::OciDirectory, "/srv/os"),
            (
                "oci:/srv/os:9.1",
                ImageTransport::OciDirectory,
                "/srv/os:9.1",
            ),
            (
                "oci-archive:/srv/os.tar",
                ImageTransport::OciArchive,
                "/srv/os.tar",
            ),
            ("oci:5000/os", ImageTransport::Registry, "oci:5000/os"),
        ] {
            let image = ImageRef::parse(&format!("{name}@{DIGEST}")).unwrap();
            assert_eq!(image.to_string(), format!("{name}@{DIGEST}"));
            assert_eq!((image.transport(), image.name()), (transport, path));
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
            &format!("docker://quay.io/os@{DIGEST}"),
            &format!("oci:srv/os:latest@{DIGEST}"),
            &format!("oci:/@{DIGEST}"),
            &format!("oci:/srv/../os@{DIGEST}"),
            &format!("oci:/srv/os:@{DIGEST}"),
            &format!("oci:/srv/os:a:b@{DIGEST}"),
            &format!("oci:/srv/o s@{DIGEST}"),
            "oci:/srv/os",
        ] {
            assert!(ImageRef::parse(text).is_err(), "{text}");
        }
    }
}
