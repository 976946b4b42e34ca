//! Downloads images to libostree's repository, and removes those that no deployment has any more.

use std::{error::Error, time::Duration};

use super::{MENU_TIMEOUT, OSTREE, OstreeProvider, error::OstreeError, images, state::OstreeState};
use crate::os::{FetchedImage, HostCommand, OsError, ProviderStep};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_plan::ImageRef;
use machinist_rootfs::{Root, RootError};

/// The file of a new deployment's origin, and that of a download's errors.
const ORIGIN_FILE: &str = "/run/machinist/os.origin";
const ERROR_FILE: &str = "/run/machinist/os-download.errors";
const RUN_DIRECTORY: &str = "/run/machinist";

/// The images that machinist has fetched, one in each line. Others are never removed.
const FETCHED_IMAGES: &str = "/var/lib/machinist/os-images";

/// Maximum length of that list.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Maximum length of the errors.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Number of characters of the errors that a message has, counted from their end.
const MAX_ERROR_CHARS: usize = 1_000;

/// A failed download.
#[derive(Debug, thiserror::Error)]
#[error("ostree container image pull failed: {output}")]
struct DownloadError {
    output: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

/// What the errors of the program mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DownloadFailure {
    /// The registry has no such image, or a policy rejects it.
    Final,
    NoSpace,
    Other,
}

impl DownloadFailure {
    /// Classifies the errors of libostree, of skopeo and of the registry (OCI distribution specification, "Error codes").
    fn of(output: &str) -> Self {
        let has = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
        match () {
            () if has(&["No space left on device", "min-free-space"]) => Self::NoSpace,
            () if has(&["manifest unknown", "name unknown", "ejected by policy"]) => Self::Final,
            () => Self::Other,
        }
    }
}

impl<C: HostCommand> OstreeProvider<C> {
    /// Downloads an image, unless it is complete in the repository.
    pub(super) async fn download(
        &self,
        image: &ImageRef,
        limit: Duration,
    ) -> Result<FetchedImage, OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Fetch);
        if let Some(fetched) = images::fetched(&self.root, image).map_err(at)? {
            return Ok(fetched);
        }
        self.remove_unused_images(Some(image)).await;
        self.prepare(image).map_err(|error| at(error.into()))?;
        let reference = images::pulled(image);
        let pull = [
            "container",
            "image",
            "pull",
            "--quiet",
            images::REPOSITORY,
            &reference,
        ];
        let pulled = self
            .commands
            .run_in_background(OSTREE, &pull, limit, ERROR_FILE)
            .await;
        if let Err(source) = pulled {
            let error = self.download_error(image, source);
            self.remove_layers().await;
            return Err(error);
        }
        let fetched = images::fetched(&self.root, image).map_err(at)?;
        fetched.ok_or_else(|| at(OstreeError::NotFetched(image.clone())))
    }

    /// Records an image before its download, so that it can be removed whatever happens.
    fn prepare(&self, image: &ImageRef) -> Result<(), RootError> {
        let mut recorded = recorded(&self.root)?;
        if !recorded.contains(image) {
            recorded.push(image.clone());
            record(&self.root, &recorded)?;
        }
        self.write_run_file(ERROR_FILE, "")
    }

    fn write_run_file(&self, file: &str, text: &str) -> Result<(), RootError> {
        let (Ok(directory), Ok(file)) = (AbsPath::new(RUN_DIRECTORY), AbsPath::new(file)) else {
            return Ok(());
        };
        self.root.make_dirs(&directory, 0o755)?;
        self.root.replace(&file, text.as_bytes(), 0o600)
    }

    /// Writes the origin of a deployment of an image, and returns the file.
    pub(super) fn write_origin(&self, origin: &str) -> Result<&'static str, OstreeError> {
        self.write_run_file(ORIGIN_FILE, origin)?;
        Ok(ORIGIN_FILE)
    }

    fn download_error(&self, image: &ImageRef, source: Box<dyn Error + Send + Sync>) -> OsError {
        let output = AbsPath::new(ERROR_FILE).ok();
        let output = output.and_then(|file| self.root.read(&file, MAX_ERROR_BYTES).ok());
        let output = String::from_utf8_lossy(output.as_deref().unwrap_or_default()).into_owned();
        let words: Vec<&str> = output.split_whitespace().collect();
        let line = words.join(" ");
        let start = line.char_indices().rev().nth(MAX_ERROR_CHARS);
        let last = start.map_or(&*line, |(start, _)| &line[start..]);
        let error = DownloadError {
            output: last.to_owned(),
            source,
        };
        let (image, source) = (image.clone(), Box::new(error));
        match DownloadFailure::of(&line) {
            DownloadFailure::NoSpace => OsError::NoSpace { image, source },
            failure => OsError::Unreachable {
                image,
                retryable: failure != DownloadFailure::Final,
                source,
            },
        }
    }

    /// Removes the images that machinist has fetched and that no deployment has, but not this one. Images that cannot be
    /// removed are tried again the next time.
    pub(super) async fn remove_unused_images(&self, needed: Option<&ImageRef>) {
        if let Err(error) = self.try_remove_unused_images(needed).await {
            tracing::warn!("unused OS images remain: {}", chain(&error));
        }
    }

    async fn try_remove_unused_images(&self, needed: Option<&ImageRef>) -> Result<(), OstreeError> {
        let recorded = recorded(&self.root)?;
        if recorded.is_empty() {
            return Ok(());
        }
        let state = OstreeState::read(&self.root)?;
        let mut used = Vec::new();
        for image in &recorded {
            let commit = images::commit_of_image(&self.root, image)?;
            match commit {
                Some(commit) if state.has_commit(&commit) => used.push(image.clone()),
                _ if needed == Some(image) => used.push(image.clone()),
                Some(_) => {
                    self.container(
                        "remove",
                        &["--repo", images::REPOSITORY, &images::stored(image)],
                    )
                    .await?;
                }
                None => {}
            }
        }
        if used != recorded {
            record(&self.root, &used)?;
        }
        Ok(())
    }

    /// Removes the layers of a download that failed.
    async fn remove_layers(&self) {
        let removed = self.container("prune-layers", &["--repo", images::REPOSITORY]);
        if let Err(error) = removed.await {
            tracing::warn!("layers of the failed download remain: {}", chain(&error));
        }
    }

    async fn container(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<(), OstreeError> {
        let mut all = vec!["container", "image", command];
        all.extend(arguments);
        let done = self.commands.run(OSTREE, &all, MENU_TIMEOUT).await;
        done.map_err(|source| OstreeError::Container { command, source })
    }
}

/// The images that machinist has fetched.
fn recorded(root: &Root) -> Result<Vec<ImageRef>, RootError> {
    let Ok(path) = AbsPath::new(FETCHED_IMAGES) else {
        return Ok(Vec::new());
    };
    let text = match root.read_text(&path, MAX_RECORD_BYTES) {
        Err(error) if error.is_not_found() => String::new(),
        text => text?,
    };
    let images = text.lines().filter_map(|line| ImageRef::parse(line).ok());
    Ok(images.collect())
}

/// Records the images that machinist has fetched.
fn record(root: &Root, images: &[ImageRef]) -> Result<(), RootError> {
    let Ok(path) = AbsPath::new(FETCHED_IMAGES) else {
        return Ok(());
    };
    if images.is_empty() {
        return root.remove_file(&path);
    }
    let lines: String = images.iter().map(|image| format!("{image}\n")).collect();
    root.replace(&path, lines.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_a_download_decide_whether_it_is_retried() {
        for (output, failure) in [
            (
                "error: Pulling: reading manifest sha256:ab in q.io/os: manifest unknown",
                DownloadFailure::Final,
            ),
            (
                "Source image rejected: Running image docker://q.io/os is rejected by policy.",
                DownloadFailure::Final,
            ),
            (
                "error: Writing content object: No space left on device",
                DownloadFailure::NoSpace,
            ),
            (
                "error: min-free-space-percent '3%' would be exceeded",
                DownloadFailure::NoSpace,
            ),
            (
                "pinging container registry q.io: dial tcp: connection refused",
                DownloadFailure::Other,
            ),
            ("", DownloadFailure::Other),
        ] {
            assert_eq!(DownloadFailure::of(output), failure, "{output}");
        }
    }
}
