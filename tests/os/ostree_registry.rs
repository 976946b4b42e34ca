//! A registry of OS images, and `ostree container image` as libostree's extension for container images changes the
//! repository.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use machinist_plan::{ImageRef, ImageTransport};
use zgvariant::{NATIVE_ENDIAN, Variant, serialized::Context, to_bytes};

/// Where an administrator's own image would be, too.
const REFERENCES: &str = "ostree/repo/refs/heads/ostree/container/image";

/// The registry, and how long a download takes.
#[derive(Default)]
pub(crate) struct OstreeRegistry {
    images: Mutex<Vec<(ImageRef, String)>>,
    /// Indexes, and the image of this platform in each.
    indexes: Mutex<Vec<(ImageRef, ImageRef)>>,
    takes: Mutex<Duration>,
    arguments: Mutex<Vec<String>>,
    /// Images with repositories, and their packages.
    repositories: Mutex<Vec<(ImageRef, Vec<String>)>>,
    /// A program in the background has not ended.
    is_running: AtomicBool,
    /// It does not answer.
    pub(crate) is_away: AtomicBool,
}

impl OstreeRegistry {
    pub(crate) fn publish(&self, image: &ImageRef, version: &str) {
        let mut images = self.images.lock().unwrap();
        images.push((image.clone(), version.to_owned()));
    }

    /// An index has this image for the platform of the machine.
    pub(crate) fn publish_index(&self, index: &ImageRef, image: &ImageRef, version: &str) {
        let pair = (index.clone(), image.clone());
        self.indexes.lock().unwrap().push(pair);
        self.publish(index, version);
    }

    /// The image of this platform.
    fn on_platform(&self, image: &ImageRef) -> ImageRef {
        let indexes = self.indexes.lock().unwrap();
        let found = indexes.iter().find(|(index, _)| index == image);
        found.map_or(image, |(_, image)| image).clone()
    }

    /// The images have these kernel arguments in `/usr/lib/bootc/kargs.d`, which the running one has not.
    pub(crate) fn set_arguments(&self, arguments: &[&str]) {
        *self.arguments.lock().unwrap() = arguments.iter().map(|one| (*one).to_owned()).collect();
    }

    /// This image has a repository with these packages.
    pub(crate) fn publish_repository(&self, image: &ImageRef, packages: &[&str]) {
        let packages = packages.iter().map(|name| (*name).to_owned()).collect();
        self.repositories
            .lock()
            .unwrap()
            .push((image.clone(), packages));
    }

    pub(crate) fn packages(&self, image: &ImageRef) -> Option<Vec<String>> {
        let repositories = self.repositories.lock().unwrap();
        let found = repositories.iter().find(|(known, _)| known == image);
        found.map(|(_, packages)| packages.clone())
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        self.arguments.lock().unwrap().clone()
    }

    pub(crate) fn take(&self, long: Duration) {
        *self.takes.lock().unwrap() = long;
    }

    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Removes the commits that neither an image nor a deployment has.
    pub(crate) fn clean_up(&self, machine: &Path) -> Result<(), String> {
        let deployments = fs::read_dir(machine.join("ostree/deploy/debian/deploy")).unwrap();
        let deployments =
            deployments.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let deployments: Vec<String> = deployments.collect();
        for (image, _) in self.images.lock().unwrap().iter() {
            let (reference, object) = files(machine, image);
            let commit = commit_of(image);
            let is_of_image = |name: &&String| name.starts_with(&commit);
            let mut of_image = deployments.iter().filter(is_of_image);
            let is_deployed = of_image.any(|name| !name.ends_with(".origin"));
            if !reference.exists() && !is_deployed && object.exists() {
                fs::remove_file(object).unwrap();
            }
        }
        Ok(())
    }

    pub(crate) fn takes(&self) -> Duration {
        *self.takes.lock().unwrap()
    }

    /// Runs `ostree container image` with these arguments.
    pub(crate) fn run(&self, machine: &Path, arguments: &[&str]) -> Result<(), String> {
        match arguments {
            ["pull", ..] if self.is_away.load(Ordering::Relaxed) => Err(
                "pinging container registry registry.example.com: connection refused".to_owned(),
            ),
            ["pull", "--quiet", "/ostree/repo", reference] => {
                self.pull(machine, &stored_by(reference))
            }
            ["remove", "--repo", "/ostree/repo", stored] => {
                // Its objects stay until the next cleanup.
                let removed = fs::remove_file(reference_file(machine, stored));
                removed.map_err(|error| error.to_string())
            }
            ["prune-layers", "--repo", "/ostree/repo"] => Ok(()),
            other => panic!("{other:?}"),
        }
    }

    /// The commit of an image that was pulled by this reference.
    pub(crate) fn pulled(&self, machine: &Path, reference: &str) -> String {
        let commit = fs::read_to_string(reference_file(machine, &stored_by(reference)));
        commit.unwrap().trim().to_owned()
    }

    /// A path has the image that was published there last.
    fn pull(&self, machine: &Path, stored: &str) -> Result<(), String> {
        let images = self.images.lock().unwrap();
        let mut known = images.iter().rev();
        let found = known.find(|(image, _)| stored_name(image) == stored);
        let (image, version) = found.ok_or("reading manifest: manifest unknown")?;
        let image = &self.on_platform(image);
        let config = format!(
            r#"{{"architecture":"amd64","config":{{"Labels":{{"org.opencontainers.image.version":"{version}"}}}}}}"#
        );
        let metadata = std::collections::HashMap::from([
            (
                "ostree.manifest-digest",
                Variant::from(image.digest().to_string()),
            ),
            ("ostree.container.image-config", Variant::from(config)),
        ]);
        let nothing: Vec<u8> = Vec::new();
        let related: Vec<(String, Vec<u8>)> = Vec::new();
        let commit = (
            metadata, &nothing, related, "", "", 0_u64, &nothing, &nothing,
        );
        let commit = to_bytes(Context::new(NATIVE_ENDIAN, 0), &commit).unwrap();
        let (_, object) = files(machine, image);
        for (file, bytes) in [
            (object, &*commit),
            (
                reference_file(machine, stored),
                format!("{}\n", commit_of(image)).as_bytes(),
            ),
        ] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
        Ok(())
    }
}

/// The commit of an image.
pub(crate) fn commit_of(image: &ImageRef) -> String {
    let digest = image.digest().to_string();
    digest.strip_prefix("sha256:").unwrap().to_owned()
}

/// The name under which an image is stored that is pulled by this reference.
fn stored_by(reference: &str) -> String {
    match reference.strip_prefix("ostree-unverified-registry:") {
        Some(name) => format!("docker://{name}"),
        None => {
            let kinds = [
                "ostree-unverified-image:",
                "ostree-image-signed:",
                "ostree-remote-image:fedora:",
            ];
            let mut names = kinds.iter().filter_map(|kind| reference.strip_prefix(kind));
            names.next().unwrap().to_owned()
        }
    }
}

/// The image as the extension names it.
fn stored_name(image: &ImageRef) -> String {
    match image.transport() {
        ImageTransport::Registry => format!("docker://{image}"),
        local => format!("{}:{}", local.name(), image.name()),
    }
}

/// The reference of an image that the extension names so.
fn reference_file(machine: &Path, stored: &str) -> PathBuf {
    let name = stored
        .replace("://", "_3A__2F__2F_")
        .replace(":/", "_3A__2F_")
        .replace('.', "_2E_")
        .replace(':', "_3A_")
        .replace('@', "_40_");
    machine.join(format!("{REFERENCES}/{name}"))
}

/// The reference and the commit of an image.
fn files(machine: &Path, image: &ImageRef) -> (PathBuf, PathBuf) {
    let commit = commit_of(image);
    let object = format!(
        "ostree/repo/objects/{}/{}.commit",
        &commit[..2],
        &commit[2..]
    );
    let reference = reference_file(machine, &stored_name(image));
    (reference, machine.join(object))
}

/// Whether anything of an image is in the repository of this machine.
pub(crate) fn is_stored(machine: &Path, image: &ImageRef) -> bool {
    let (reference, object) = files(machine, image);
    reference.exists() || object.exists()
}
