//! Downloads images to libostree's repository, and removes those that no deployment has any more.

use std::{error::Error, time::Duration};

use super::{
    OSTREE_TIMEOUT, OstreeProvider, RpmOstree,
    commit_image::REPOSITORY,
    deployment_origin,
    error::OstreeError,
    fetched_images::{record, recorded},
    package_repository, repository_images,
    state::OstreeState,
};
use crate::os::{
    BackgroundError, FetchedImage, HostCommand, OsError, OutputFiles, ProviderStep,
    host_detection::is_there,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_plan::{ImageRef, ImageTransport};
use machinist_rootfs::RootError;

/// The file of a new deployment's origin, and those with the output of a program in the background.
const ORIGIN_FILE: &str = "/run/machinist/os.origin";
const ERROR_FILE: &str = "/run/machinist/os-download.errors";
pub(super) const OUTPUT_FILE: &str = "/run/machinist/os-download.output";
const RUN_DIRECTORY: &str = "/run/machinist";

/// Exists after a registry or a repository has not answered bootc or rpm-ostree. The next download asks it, before the node
/// is drained again.
pub(super) const UNANSWERED: &str = "/run/machinist/os-unanswered";

/// Number of bytes of the errors that are read, counted from their end.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Number of characters of the errors that a message has, counted from their end.
const MAX_ERROR_CHARS: usize = 1_000;

/// A program in the background that failed.
#[derive(Debug, thiserror::Error)]
#[error("{program} failed: {output}")]
struct ProgramError {
    program: String,
    output: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

/// What the errors of the program mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DownloadFailure {
    /// The registry has no such image, or the signature policy rejects it.
    Final,
    NoSpace,
    /// A file of an image on this host.
    Unreadable,
    Other,
}

/// Errors of a full disk: of the kernel, and of libostree.
const NO_SPACE: [&str; 2] = ["no space left on device", "min-free-space"];

/// Errors that the same image causes again: of the registry (OCI distribution specification, "Error codes"), of a
/// directory with several images or without the tag, of containers-policy.json(5), and of libostree's signatures.
const FINAL_ERRORS: [&str; 13] = [
    "manifest unknown",
    "name unknown",
    "more than one image in oci",
    "no descriptor found for reference",
    "rejected by policy",
    "signature was required",
    "None of the signatures were accepted",
    "nvalid signature",
    "Signature for identity",
    "insecureAcceptAnything`; refusing usage",
    "Expected commitmeta object",
    "GPG verification enabled, but no signatures found",
    "GPG signatures found, but none are in trusted keyring",
];

/// Whether the errors of a program mean a full disk.
pub(super) fn is_no_space(output: &str) -> bool {
    let output = output.to_ascii_lowercase();
    NO_SPACE.iter().any(|text| output.contains(text))
}

impl DownloadFailure {
    fn of(image: &ImageRef, output: &str) -> Self {
        let is_local = image.transport() != ImageTransport::Registry;
        // Errors of the kernel begin with a small letter in Go, the language of skopeo.
        let output = output.to_ascii_lowercase();
        let has = |texts: &[&str]| {
            texts
                .iter()
                .any(|text| output.contains(&*text.to_ascii_lowercase()))
        };
        match () {
            () if is_no_space(&output) => Self::NoSpace,
            () if has(&FINAL_ERRORS) => Self::Final,
            () if is_local && has(&["permission denied"]) => Self::Unreadable,
            () => Self::Other,
        }
    }
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Downloads an image, unless it is complete in the repository.
    pub(super) async fn download(
        &self,
        image: &ImageRef,
        limit: Duration,
    ) -> Result<FetchedImage, OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Fetch);
        let fetched = repository_images::find_complete(&self.root, image).map_err(at)?;
        if let Some(fetched) = fetched.filter(|_| !is_there(&self.root, UNANSWERED)) {
            return Ok(fetched);
        }
        self.try_remove_images(Some(image)).await;
        let recorded = self.record_before(image);
        recorded.map_err(|error| at(error.into()))?;
        let reference = repository_images::pull_reference(&self.root, image);
        let pull = [
            "container",
            "image",
            "pull",
            "--quiet",
            REPOSITORY,
            &reference,
        ];
        if let Err(error) = self.run_ostree_in_background(&pull, limit).await {
            return Err(self.download_error(image, error, limit).await);
        }
        match repository_images::find_complete(&self.root, image).map_err(at)? {
            Some(fetched) => Ok(fetched),
            None => Err(self.other_content(image).await),
        }
    }

    /// Removes what was fetched instead of the image, and returns the error.
    async fn other_content(&self, image: &ImageRef) -> OsError {
        let found = repository_images::stored_digest(&self.root, image);
        self.try_remove_images(None).await;
        match found {
            Some(found) => OsError::Unreachable {
                image: image.clone(),
                retryable: false,
                source: Box::new(OstreeError::OtherDigest(found)),
            },
            None => OstreeError::NotFetched(image.clone()).at(ProviderStep::Fetch),
        }
    }

    /// Runs a program that takes long. Its error has the end of what it has printed as errors.
    pub(super) async fn run_in_background(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<(), BackgroundError> {
        let files = OutputFiles {
            output: OUTPUT_FILE,
            errors: ERROR_FILE,
        };
        for file in [files.output, files.errors] {
            let cleared = self.write_run_file(file, "");
            cleared.map_err(|error| BackgroundError::Failed(error.into()))?;
        }
        let run = self
            .commands
            .run_in_background(program, arguments, limit, files);
        let source = match run.await {
            Err(BackgroundError::Failed(source)) => source,
            ended => return ended,
        };
        let error = ProgramError {
            program: program.rsplit('/').next().unwrap_or(program).to_owned(),
            output: self.last_errors(),
            source,
        };
        Err(BackgroundError::Failed(error.into()))
    }

    /// Records an image before its download, so that it can be removed whatever happens.
    fn record_before(&self, image: &ImageRef) -> Result<(), RootError> {
        let mut recorded = recorded(&self.root)?;
        if !recorded.contains(image) {
            recorded.push(image.clone());
            record(&self.root, &recorded)?;
        }
        Ok(())
    }

    pub(super) fn write_run_file(&self, file: &str, text: &str) -> Result<(), RootError> {
        let (Ok(directory), Ok(file)) = (AbsPath::new(RUN_DIRECTORY), AbsPath::new(file)) else {
            return Ok(());
        };
        self.root.make_dirs(&directory, 0o755)?;
        self.root.replace(&file, text.as_bytes(), 0o600)
    }

    /// Writes the origin of a deployment of an image, and returns the file.
    pub(super) fn write_origin(&self, origin: &str) -> Result<&'static str, OstreeError> {
        let origin = deployment_origin::without_state(origin);
        self.write_run_file(ORIGIN_FILE, &origin)?;
        Ok(ORIGIN_FILE)
    }

    /// The end of what the last program in the background has printed as errors.
    fn last_errors(&self) -> String {
        let output = AbsPath::new(ERROR_FILE).ok();
        let output = output.and_then(|file| self.root.read_end(&file, MAX_ERROR_BYTES).ok());
        let output = String::from_utf8_lossy(output.as_deref().unwrap_or_default()).into_owned();
        let words: Vec<&str> = output.split_whitespace().collect();
        let line = words.join(" ");
        let start = line.char_indices().rev().nth(MAX_ERROR_CHARS);
        start.map_or(&*line, |(start, _)| &line[start..]).to_owned()
    }

    /// Complete layers stay for the next attempt, unless that would fail too.
    pub(super) async fn download_error(
        &self,
        image: &ImageRef,
        error: BackgroundError,
        limit: Duration,
    ) -> OsError {
        let BackgroundError::Failed(source) = error else {
            let step = ProviderStep::Fetch;
            return OsError::TimedOut { step, limit };
        };
        let failure = DownloadFailure::of(image, &source.to_string());
        if failure != DownloadFailure::Other {
            self.try_remove_layers().await;
        }
        let image = image.clone();
        match failure {
            DownloadFailure::NoSpace => self.no_space(source),
            DownloadFailure::Unreadable => OsError::Unreachable {
                image,
                retryable: false,
                source: Box::new(OstreeError::Unreadable(source)),
            },
            _ => OsError::Unreachable {
                image,
                retryable: failure == DownloadFailure::Other,
                source,
            },
        }
    }

    /// Removes the repositories of packages, so that the next attempt has more space.
    pub(super) fn no_space(&self, source: Box<dyn Error + Send + Sync>) -> OsError {
        if let Err(error) = package_repository::remove_all(&self.root) {
            tracing::warn!("a repository of packages remains: {}", chain(&error));
        }
        let step = ProviderStep::Fetch;
        OsError::NoSpace { step, source }
    }

    /// Removes the images that machinist has fetched and that no deployment has, but not this one. Images that cannot be
    /// removed are tried again the next time.
    pub(super) async fn try_remove_images(&self, needed: Option<&ImageRef>) {
        if let Err(error) = self.remove_images(needed).await {
            tracing::warn!("unused OS images remain: {}", chain(&error));
        }
    }

    pub(super) async fn remove_images(&self, needed: Option<&ImageRef>) -> Result<(), OstreeError> {
        let recorded = recorded(&self.root)?;
        if recorded.is_empty() {
            return Ok(());
        }
        let state = OstreeState::read(&self.root)?;
        let mut used = Vec::new();
        for image in &recorded {
            let commit = repository_images::stored_commit(&self.root, image)?;
            match commit {
                Some(commit) if state.has_commit(&commit) || state.has_image(image) => {
                    used.push(image.clone());
                }
                _ if needed == Some(image) => used.push(image.clone()),
                // The same path has another image by now.
                _ if needed.is_some_and(|needed| needed.stored_name() == image.stored_name()) => {}
                Some(_) => {
                    let image = image.stored_name();
                    self.container("remove", &["--repo", REPOSITORY, &image])
                        .await?;
                }
                None => {}
            }
        }
        if used != recorded {
            self.remove_layers().await?;
            record(&self.root, &used)?;
        }
        Ok(())
    }

    pub(super) async fn try_remove_layers(&self) {
        if let Err(error) = self.remove_layers().await {
            tracing::warn!("layers of the failed download remain: {}", chain(&error));
        }
    }

    /// Removes layers that no image has, and then their objects.
    async fn remove_layers(&self) -> Result<(), OstreeError> {
        let arguments = ["--repo", REPOSITORY];
        self.container("prune-layers", &arguments).await?;
        self.admin("cleanup", &[], OSTREE_TIMEOUT).await
    }

    async fn container(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<(), OstreeError> {
        let mut all = vec!["container", "image", command];
        all.extend(arguments);
        let done = self.run_ostree(&all).await;
        done.map_err(|source| OstreeError::Container { command, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_a_download_decide_whether_it_is_retried() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let image = |name: &str| ImageRef::parse(&format!("{name}@{digest}")).unwrap();
        let (remote, local) = (image("q.io/os"), image("oci:/root/os"));
        let opened = "Creating importer Caused by: failed to invoke method OpenImage: failed to invoke method OpenImage: ";
        for (output, failure) in [
            (
                "reading manifest sha256:ab in q.io/os: manifest unknown",
                DownloadFailure::Final,
            ),
            (
                "A signature was required, but no signature exists",
                DownloadFailure::Final,
            ),
            (
                "Running image docker://q.io/os is rejected by policy.",
                DownloadFailure::Final,
            ),
            (
                "containers-policy.json specifies a default of `insecureAcceptAnything`; refusing usage",
                DownloadFailure::Final,
            ),
            (
                "writing: No space left on device (os error 28)",
                DownloadFailure::NoSpace,
            ),
            (
                "untarring file \"/var/tmp/x\": write /var/tmp/x: no space left on device",
                DownloadFailure::NoSpace,
            ),
            (
                "min-free-space-percent '3%' would be exceeded",
                DownloadFailure::NoSpace,
            ),
            (
                "pinging container registry q.io: dial tcp: connection refused",
                DownloadFailure::Other,
            ),
            ("", DownloadFailure::Other),
        ] {
            let output = format!("{opened}{output}");
            assert_eq!(DownloadFailure::of(&remote, &output), failure, "{output}");
        }
        let output = "open /root/os/index.json: permission denied";
        let found = [&remote, &local].map(|image| DownloadFailure::of(image, output));
        assert_eq!(found, [DownloadFailure::Other, DownloadFailure::Unreadable]);
    }
}
