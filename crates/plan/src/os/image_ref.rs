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
#[error("{given:?} {fault}")]
pub struct ImageRefError {
    given: String,
    fault: ImageRefFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum ImageRefFault {
    #[error("is not an image reference with a digest")]
    NoDigest,
    #[error("does not end with a digest: sha256: and 64 lower-case hexadecimal digits")]
    Digest,
    #[error("begins with docker://, which must be left out")]
    Docker,
    #[error("names a transport other than oci: and oci-archive:")]
    Transport,
    #[error("has no absolute path of letters, digits, and the characters . _ - +")]
    Path,
    #[error("has a tag with other characters than letters, digits, and . _ - +")]
    Tag,
    #[error("does not name a repository: a registry, and lower-case words with a / between them")]
    Repository,
}

impl ImageRefError {
    /// Whether nothing but the digest is missing or wrong.
    pub(super) fn lacks_digest(&self) -> bool {
        matches!(self.fault, ImageRefFault::NoDigest | ImageRefFault::Digest)
    }
}

impl ImageRef {
    /// Parses `NAME@sha256:…` or `NAME:TAG@sha256:…` of a registry, and `oci:/PATH@sha256:…` or
    /// `oci-archive:/PATH@sha256:…`. The tag of a registry has no effect beside the digest and is
    /// dropped. `:TAG` after a path selects one of several images and stays.
    ///
    /// # Errors
    /// There is no digest, or no valid name before it.
    pub fn parse(text: &str) -> Result<Self, ImageRefError> {
        Self::parts(text).map_err(|fault| ImageRefError {
            given: text.to_owned(),
            fault,
        })
    }

    fn parts(text: &str) -> Result<Self, ImageRefFault> {
        let (name, digest) = text.split_once('@').ok_or(ImageRefFault::NoDigest)?;
        let (transport, name) = split_transport(name)?;
        let name = match transport {
            ImageTransport::Registry => registry_name(name).ok_or(ImageRefFault::Repository)?,
            _ => local_name(name)?,
        };
        Ok(Self {
            transport,
            name: name.to_owned(),
            digest: digest.parse().map_err(|_| ImageRefFault::Digest)?,
        })
    }

    /// The image as the repository of libostree names it (containers-transports(5)). A path has no digest there.
    pub fn stored_name(&self) -> String {
        match self.transport {
            ImageTransport::Registry => format!("docker://{self}"),
            local => format!("{}:{}", local.name(), self.name),
        }
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

fn split_transport(name: &str) -> Result<(ImageTransport, &str), ImageRefFault> {
    let Some((prefix, rest)) = name.split_once(':') else {
        return Ok((ImageTransport::Registry, name));
    };
    // Otherwise it is the port of a registry, or the tag of a repository.
    let is_port = rest.starts_with(|c: char| c.is_ascii_digit());
    let local = ImageTransport::LOCAL.into_iter();
    let local = local
        .filter(|_| !is_port && rest.contains('/'))
        .find(|one| one.name() == prefix);
    match local {
        Some(transport) => Ok((transport, rest)),
        None if name.starts_with("docker://") => Err(ImageRefFault::Docker),
        // A tag has no slash, and a port is a number.
        None if !prefix.contains('/')
            && !name.starts_with('[')
            && rest.contains('/')
            && !is_port =>
        {
            Err(ImageRefFault::Transport)
        }
        None => Ok((ImageTransport::Registry, name)),
    }
}

/// Registry and repository, without a tag (OCI distribution specification, "Pulling manifests").
fn registry_name(name: &str) -> Option<&str> {
    // A colon after the last slash starts a tag; a colon before it, a registry's port.
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let tag = name[last..].find(':').map(|colon| last + colon);
    let name = &name[..tag.unwrap_or(name.len())];
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if is_registry_host(first) => (first, rest),
        _ => ("", name),
    };
    let in_registry = |c: char| c.is_ascii_alphanumeric() || ".:-[]".contains(c);
    let in_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_word = |word: &str| {
        word.starts_with(in_word)
            && word.ends_with(in_word)
            && word.chars().all(|c| in_word(c) || "._-".contains(c))
    };
    let is_registry = !registry.starts_with(['.', '-', ':']) && registry.chars().all(in_registry);
    let is_valid = is_registry && repository.split('/').all(is_word);
    is_valid.then_some(name)
}

/// Whether the first part of a name is a registry (github.com/distribution/reference).
fn is_registry_host(first: &str) -> bool {
    let has_capitals = first.contains(|c: char| c.is_ascii_uppercase());
    first.contains(['.', ':']) || first == "localhost" || has_capitals
}

/// An absolute path, with `:TAG` or without.
fn local_name(name: &str) -> Result<&str, ImageRefFault> {
    let (path, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let is_path = AbsPath::new(path).is_ok_and(|path| path.as_str() != "/");
    if !is_path || !path.chars().all(|c| is_plain(c) || c == '/') {
        return Err(ImageRefFault::Path);
    }
    match !tag.is_empty() && tag.chars().all(is_plain) {
        true => Ok(name),
        false => Err(ImageRefFault::Tag),
    }
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
            ("oci:latest", "oci"),
            ("REGISTRY/os", "REGISTRY/os"),
            ("[fd00::1]:5000/os", "[fd00::1]:5000/os"),
            (
                "Registry.example.com/a-b/c_d__e",
                "Registry.example.com/a-b/c_d__e",
            ),
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
    fn an_image_reference_that_cannot_be_used_is_rejected_with_the_reason() {
        let short = &DIGEST[..70];
        for (text, fault) in [
            ("", ImageRefFault::NoDigest),
            ("quay.io/os/coreos", ImageRefFault::NoDigest),
            ("quay.io/os/coreos:4.16", ImageRefFault::NoDigest),
            ("oci:/srv/os", ImageRefFault::NoDigest),
            (&format!("quay.io/os@{short}"), ImageRefFault::Digest),
            (&format!("quay.io/os@x@{DIGEST}"), ImageRefFault::Digest),
            (&format!("@{DIGEST}"), ImageRefFault::Repository),
            (&format!("quay.io/@{DIGEST}"), ImageRefFault::Repository),
            (&format!("quay.io/o s@{DIGEST}"), ImageRefFault::Repository),
            (&format!("quay.io/Os@{DIGEST}"), ImageRefFault::Repository),
            (&format!("quay.io//os@{DIGEST}"), ImageRefFault::Repository),
            (&format!("/srv/os@{DIGEST}"), ImageRefFault::Repository),
            (&format!("./os@{DIGEST}"), ImageRefFault::Repository),
            (
                &format!("docker://quay.io/os@{DIGEST}"),
                ImageRefFault::Docker,
            ),
            (&format!("dir:/srv/os@{DIGEST}"), ImageRefFault::Transport),
            (
                &format!("ostree-unverified-registry:quay.io/os@{DIGEST}"),
                ImageRefFault::Transport,
            ),
            (&format!("oci:srv/os:latest@{DIGEST}"), ImageRefFault::Path),
            (&format!("oci:/@{DIGEST}"), ImageRefFault::Path),
            (&format!("oci:/srv/../os@{DIGEST}"), ImageRefFault::Path),
            (&format!("oci:/srv/o s@{DIGEST}"), ImageRefFault::Path),
            (&format!("oci:/srv/os:@{DIGEST}"), ImageRefFault::Tag),
            (&format!("oci:/srv/os:a:b@{DIGEST}"), ImageRefFault::Tag),
        ] {
            assert_eq!(ImageRef::parse(text).unwrap_err().fault, fault, "{text}");
        }
    }
}
