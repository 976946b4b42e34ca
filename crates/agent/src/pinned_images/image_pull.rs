//! Pulls images: a few at a time, each with a time limit, and only while enough space is free.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::image_state::ImageFailure;
use machinist_base::{
    abs_path::AbsPath,
    backoff::{Backoff, jitter},
    error_chain::chain,
    reason::Reason,
};
use machinist_cri::{
    CriError, Runtime,
    pull_secret::{PULL_SECRET_PATH, PullSecret},
};
use machinist_rootfs::Root;
use machinist_status::{readiness::MinFree, settings::PinnedImageSettings};

/// Attempts per image before its pull counts as failed, and the pauses between them.
const PULL_ATTEMPTS: u32 = 3;
const PULL_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// Bytes of the largest pull secret.
const MAX_PULL_SECRET_BYTES: u64 = 1 << 20;

/// What all pulls of one pass share.
#[derive(Clone)]
pub(super) struct ImagePull {
    root: Root,
    runtime: Runtime,
    secret: Arc<PullSecret>,
    /// Directories on the file systems of images.
    file_systems: Arc<BTreeSet<AbsPath>>,
    min_free: MinFree,
    timeout: Duration,
    parallel: usize,
}

impl ImagePull {
    /// Reads the pull secret, and asks where images are kept.
    pub(super) async fn prepare(
        root: &Root,
        runtime: &Runtime,
        settings: &PinnedImageSettings,
    ) -> Result<Self, CriError> {
        let (from, file_systems) = (root.clone(), runtime.image_file_systems().await?);
        let secret = tokio::task::spawn_blocking(move || pull_secret(&from)).await;
        Ok(Self {
            root: root.clone(),
            runtime: runtime.clone(),
            // A lost task is a defect and is logged.
            secret: Arc::new(secret.unwrap_or_default()),
            file_systems: Arc::new(file_systems),
            min_free: settings.min_free,
            timeout: settings.pull_timeout,
            parallel: usize::try_from(settings.parallel).unwrap_or(1),
        })
    }

    /// Pulls the images, and reports each as soon as its pull has ended. A dropped call cancels all pulls.
    pub(super) async fn pull_all(
        &self,
        images: &BTreeSet<String>,
        ended: &mpsc::UnboundedSender<(String, Result<(), ImageFailure>)>,
    ) {
        let slots = Arc::new(Semaphore::new(self.parallel));
        let mut pulls = JoinSet::new();
        for image in images {
            let (this, image) = (self.clone(), image.clone());
            let (slots, ended) = (Arc::clone(&slots), ended.clone());
            pulls.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire().await;
                let pulled = this.pull(&image).await;
                // The receiver lives as long as this set.
                let _ = ended.send((image, pulled));
            });
        }
        while pulls.join_next().await.is_some() {}
    }

    async fn pull(&self, image: &str) -> Result<(), ImageFailure> {
        for attempt in 0.. {
            self.check_space(image).await?;
            let error = match self.try_pull(image).await {
                Ok(()) => {
                    tracing::info!("pulled image {image}");
                    return Ok(());
                }
                Err(error) => error,
            };
            let is_last = attempt + 1 == PULL_ATTEMPTS || error.is_connection_lost();
            if is_last || !error.is_retryable() || matches!(error, CriError::TimedOut { .. }) {
                return Err(ImageFailure::of(&error));
            }
            tracing::debug!("{}", chain(&error));
            sleep(PULL_BACKOFF.wait(attempt, jitter())).await;
        }
        Ok(())
    }

    /// Pulls with each credentials that match the image, and then without any: the runtime may have its own, such as for
    /// a mirror of the registry. Other failures are the same with other credentials.
    async fn try_pull(&self, image: &str) -> Result<(), CriError> {
        let mut first = None;
        let credentials = self.secret.credentials(image).into_iter();
        for auth in credentials.map(Some).chain([None]) {
            let Err(error) = self.runtime.pull(image, auth, self.timeout).await else {
                return Ok(());
            };
            let is_last = !error.may_depend_on_credentials();
            first.get_or_insert(error);
            if is_last {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// The size of an image is not known before it is pulled, so a reserve has to be free.
    async fn check_space(&self, image: &str) -> Result<(), ImageFailure> {
        let (root, places, min_free) = (
            self.root.clone(),
            Arc::clone(&self.file_systems),
            self.min_free,
        );
        let short = tokio::task::spawn_blocking(move || {
            let mut places = places.iter();
            places.find_map(|place| {
                let mount = root.mount(place).ok()?;
                let is_short = min_free.is_short(mount.free_bytes, mount.size_bytes);
                is_short.then(|| (place.clone(), mount.free_bytes))
            })
        });
        // A lost task is a defect and is logged.
        match short.await.unwrap_or_default() {
            None => Ok(()),
            Some((place, free)) => Err(ImageFailure::new(
                Reason::NoSpace,
                format!(
                    "image {image} is not pulled: {} MiB are free at {place}, less than pinnedImages.minFree",
                    free >> 20
                ),
            )),
        }
    }
}

/// The node's pull secret; empty if there is none, because images may be public.
fn pull_secret(root: &Root) -> PullSecret {
    let Ok(path) = AbsPath::new(PULL_SECRET_PATH) else {
        return PullSecret::default();
    };
    match root.read(&path, MAX_PULL_SECRET_BYTES) {
        Err(error) if error.is_not_found() => PullSecret::default(),
        Err(error) => {
            tracing::warn!(reason = %error.reason(), "pulling without credentials: {}", chain(&error));
            PullSecret::default()
        }
        Ok(text) => PullSecret::parse(&text).unwrap_or_else(|error| {
            tracing::warn!("pulling without credentials: {error}");
            PullSecret::default()
        }),
    }
}
