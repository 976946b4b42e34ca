//! The image from which a commit in libostree's repository was made.
//!
//! The metadata of a commit of all layers has the digest of the image's manifest and the image's configuration.

use std::collections::HashMap;

use serde::Deserialize;

use super::error::OstreeError;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;
use zgvariant::{
    NATIVE_ENDIAN, OwnedVariant,
    serialized::{Context, Data},
};

/// The repository.
pub(super) const REPOSITORY: &str = "/ostree/repo";

/// The digest of the manifest, in the metadata of a commit.
const MANIFEST_DIGEST: &str = "ostree.manifest-digest";

/// The configuration of the image, in the metadata of a commit.
const IMAGE_CONFIG: &str = "ostree.container.image-config";

/// The version of a commit that was not made from an image.
const VERSION: &str = "version";

/// Exists in the metadata of a commit of rpm-ostree, whose parent is the commit of the image.
const LAYERED: &str = "rpmostree.clientlayer";

/// The labels that have the version of an image, in the order in which the extension reads them.
const VERSION_LABELS: [&str; 2] = ["org.opencontainers.image.version", VERSION];

/// Maximum length of a commit. It has the manifest and the configuration of the image, of which the OCI specification
/// recommends at most 4 MiB each.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// The parts of a commit (`OSTREE_COMMIT_GVARIANT_FORMAT`), of which the first is its metadata.
type Commit = (
    HashMap<String, OwnedVariant>,
    Vec<u8>,
    Vec<(String, Vec<u8>)>,
    String,
    String,
    u64,
    Vec<u8>,
    Vec<u8>,
);

/// The image of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommitImage {
    /// The digest of the manifest; `None` if the commit was not made from an image.
    pub(super) digest: Option<String>,
    pub(super) version: Option<String>,
    /// The commit of the image to which rpm-ostree has added packages.
    base: Option<String>,
}

#[derive(Deserialize)]
struct ImageConfig {
    config: Option<ContainerConfig>,
}

#[derive(Deserialize)]
struct ContainerConfig {
    #[serde(rename = "Labels")]
    labels: Option<HashMap<String, String>>,
}

impl CommitImage {
    /// The image of a commit, or of the commit to which rpm-ostree has added packages.
    pub(super) fn read(root: &Root, commit: &str) -> Result<Self, OstreeError> {
        let image = Self::read_commit(root, commit)?;
        match &image.base {
            Some(base) => Self::read_commit(root, base),
            None => Ok(image),
        }
    }

    fn read_commit(root: &Root, commit: &str) -> Result<Self, OstreeError> {
        let missing = || OstreeError::Commit(commit.to_owned());
        let (directory, file) = commit.split_at_checked(2).ok_or_else(missing)?;
        let path = format!("{REPOSITORY}/objects/{directory}/{file}.commit");
        let path = AbsPath::new(&path).map_err(|_| missing())?;
        let bytes = root.read(&path, MAX_COMMIT_BYTES)?;
        let image = Self::parse(&bytes);
        image.map_err(|error| OstreeError::CommitUnreadable(commit.to_owned(), error.to_string()))
    }

    fn parse(commit: &[u8]) -> zgvariant::Result<Self> {
        let data = Data::new(commit, Context::new(NATIVE_ENDIAN, 0));
        let (commit, _) = data.deserialize::<Commit>()?;
        let mut metadata = commit.0;
        let is_layered = metadata.contains_key(LAYERED);
        let mut text = |name: &str| metadata.remove(name)?.try_into().ok();
        let digest: Option<String> = text(MANIFEST_DIGEST);
        let config: Option<String> = text(IMAGE_CONFIG);
        let version = text(VERSION);
        let parent = commit.1.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self {
            digest,
            version: config.and_then(|config| image_version(&config)).or(version),
            base: is_layered.then(|| parent.collect()),
        })
    }
}

fn image_version(config: &str) -> Option<String> {
    let config: ImageConfig = serde_json::from_str(config).ok()?;
    let labels = config.config?.labels?;
    let version = VERSION_LABELS.iter().find_map(|label| labels.get(*label));
    version.cloned()
}
