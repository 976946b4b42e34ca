//! One pass over the images: looks which ones are present, pulls the others, and protects them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};

use super::{
    desired_images::DesiredImages,
    image_pull::ImagePull,
    image_state::{ImageFailure, ImageState},
    protection::{Protection, ProtectionError},
    pull_report::ImageStates,
};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cri::{CriError, LocalImage, Runtime, RuntimeKind};
use machinist_status::settings::PinnedImageSettings;

/// How often and when a runtime is asked whether it protects the images: containerd learns of a label by an event.
const PROTECTION_CHECKS: u32 = 10;
const PROTECTION_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PassResult {
    pub(super) states: ImageStates,
    /// Why present images are not protected.
    pub(super) unprotected: Option<Unprotected>,
    /// Whether another pass soon may change the result.
    pub(super) is_retryable: bool,
}

/// Why present images are not protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unprotected {
    pub(super) message: String,
    is_retryable: bool,
}

impl Unprotected {
    const fn for_now(message: String) -> Self {
        Self {
            message,
            is_retryable: true,
        }
    }
}

/// One pass.
pub(super) struct PullPass<'p> {
    pub(super) protection: &'p Protection,
    pub(super) desired: &'p DesiredImages,
    pub(super) settings: &'p PinnedImageSettings,
}

impl PullPass<'_> {
    /// The states before the pass.
    pub(super) fn initial_states(desired: &DesiredImages) -> ImageStates {
        let refused = desired.refused().into_iter().map(|image| {
            let message = format!(
                "image {image:?} is not named by digest, as host[:port]/path@sha256:DIGEST with a path in lower case"
            );
            let failure = ImageFailure::new(Reason::ImageNotByDigest, message);
            (image, ImageState::Failed(failure))
        });
        let pending = desired.images().into_iter();
        let pending = pending.map(|image| (image, ImageState::Pending));
        pending.chain(refused).collect()
    }

    /// Runs it. `on_progress` receives the states after each change. May be dropped at any time.
    pub(super) async fn run(&self, on_progress: impl Fn(&ImageStates)) -> PassResult {
        let mut result = PassResult {
            states: Self::initial_states(self.desired),
            ..PassResult::default()
        };
        if self.desired.images().is_empty() {
            match self.protection.has_traces().await {
                Ok(false) => return result,
                Ok(true) => {}
                Err(error) => tracing::debug!("{}", chain(&error)),
            }
        }
        if let Err(error) = self.pull_and_protect(&mut result, &on_progress).await {
            // Nothing else can be known of the images that were not pulled yet.
            let failure = ImageFailure::of(&error);
            for state in result.states.values_mut() {
                if *state == ImageState::Pending {
                    *state = ImageState::Failed(failure.clone());
                }
            }
            result.is_retryable = true;
        }
        let failed = |state: &ImageState| match state {
            ImageState::Failed(failure) => failure.reason != Reason::ImageNotByDigest,
            _ => false,
        };
        result.is_retryable |= result.states.values().any(failed);
        let unprotected = result.unprotected.as_ref();
        result.is_retryable |= unprotected.is_some_and(|why| why.is_retryable);
        result
    }

    async fn pull_and_protect(
        &self,
        result: &mut PassResult,
        on_progress: &impl Fn(&ImageStates),
    ) -> Result<(), CriError> {
        let runtime = Runtime::connect(self.protection.root(), &self.settings.sockets()).await?;
        let images = self.desired.images();
        // One whose status is refused may be damaged, which a pull repairs.
        let (present, _) = look(&runtime, &images).await?;
        let names = |present: &[(String, LocalImage)]| -> BTreeSet<String> {
            present.iter().map(|(name, _)| name.clone()).collect()
        };
        for image in names(&present) {
            result.states.insert(image, ImageState::Present);
        }
        let missing: BTreeSet<String> = images.difference(&names(&present)).cloned().collect();
        if !missing.is_empty() {
            on_progress(&result.states);
        }
        // What is present is protected before the pulls need space, and what has left the sets gives way to them.
        result.unprotected = self.protect(&runtime, &images, &present).await;
        if missing.is_empty() {
            return Ok(());
        }
        self.pull(&runtime, [&images, &missing], result, on_progress)
            .await?;
        let (present, mut refused) = look(&runtime, &images).await?;
        let kept = names(&present);
        for (image, state) in &mut result.states {
            if *state == ImageState::Present && !kept.contains(image) {
                *state = ImageState::Failed(refused.remove(image).unwrap_or_else(|| {
                    let message = format!("image {image} was removed after it was pulled");
                    ImageFailure::new(Reason::ImagePullFailed, message)
                }));
            }
        }
        result.unprotected = self.protect(&runtime, &images, &present).await;
        Ok(())
    }

    async fn pull(
        &self,
        runtime: &Runtime,
        [images, missing]: [&BTreeSet<String>; 2],
        result: &mut PassResult,
        on_progress: &impl Fn(&ImageStates),
    ) -> Result<(), CriError> {
        tracing::info!("pulling {} images of PinnedImageSets", missing.len());
        let pull = ImagePull::prepare(self.protection.root(), runtime, self.settings).await?;
        let (ended, mut ends) = mpsc::unbounded_channel();
        let collect = async {
            let mut together: Vec<(String, _)> = Vec::new();
            while ends.recv_many(&mut together, missing.len()).await > 0 {
                let mut pulled = BTreeSet::new();
                for (image, end) in together.drain(..) {
                    let state = match end {
                        Ok(()) => {
                            pulled.insert(image.clone());
                            ImageState::Present
                        }
                        Err(failure) => ImageState::Failed(failure),
                    };
                    result.states.insert(image, state);
                }
                on_progress(&result.states);
                // It is repeated, and a failure reported, when all pulls have ended.
                if let Err(error) = self.protect_pulled(runtime, images, &pulled).await {
                    tracing::debug!("{}", chain(&error));
                }
            }
        };
        let pulling = async {
            pull.pull_all(missing, &ended).await;
            drop(ended);
        };
        tokio::join!(pulling, collect);
        Ok(())
    }

    /// Protects images while others are still pulled, which may take hours: the kubelet removes unused images meanwhile.
    /// CRI-O knows the names of all images before they are pulled.
    async fn protect_pulled(
        &self,
        runtime: &Runtime,
        images: &BTreeSet<String>,
        pulled: &BTreeSet<String>,
    ) -> Result<(), ProtectionError> {
        if runtime.kind() == RuntimeKind::Containerd && !pulled.is_empty() {
            let (present, _) = look(runtime, pulled).await?;
            self.protection.apply(runtime, images, &present).await?;
        }
        Ok(())
    }

    /// Protects images. Returns why one that is present is not protected.
    async fn protect(
        &self,
        runtime: &Runtime,
        images: &BTreeSet<String>,
        present: &[(String, LocalImage)],
    ) -> Option<Unprotected> {
        if let Err(error) = self.protection.apply(runtime, images, present).await {
            return Some(Unprotected {
                message: chain(&error),
                is_retryable: error.is_retryable(),
            });
        }
        for check in 0..PROTECTION_CHECKS {
            match unprotected(runtime, present).await {
                Ok(None) => return None,
                Ok(Some(image)) if check + 1 == PROTECTION_CHECKS => {
                    let name = runtime.name();
                    let message = format!("{name} does not report image {image} as pinned");
                    return Some(Unprotected::for_now(message));
                }
                Ok(Some(_)) => sleep(PROTECTION_CHECK_INTERVAL).await,
                Err(error) => return Some(Unprotected::for_now(chain(&error))),
            }
        }
        None
    }
}

/// The images that are present, and those whose status the runtime refuses: CRI-O does so for an image that it cannot
/// read.
async fn look(
    runtime: &Runtime,
    images: &BTreeSet<String>,
) -> Result<(Vec<(String, LocalImage)>, BTreeMap<String, ImageFailure>), CriError> {
    let (mut present, mut refused) = (Vec::new(), BTreeMap::new());
    for image in images {
        match runtime.image(image).await {
            Ok(found) => present.extend(found.map(|found| (image.clone(), found))),
            Err(error) if error.is_refusal() => {
                tracing::debug!("{}", chain(&error));
                refused.insert(image.clone(), ImageFailure::of(&error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((present, refused))
}

/// The first image that is present and not known to be protected.
async fn unprotected(
    runtime: &Runtime,
    present: &[(String, LocalImage)],
) -> Result<Option<String>, CriError> {
    for (image, _) in present {
        let is_unprotected = match runtime.image(image).await {
            Ok(found) => found.is_some_and(|found| !found.pinned),
            Err(error) if error.is_refusal() => true,
            Err(error) => return Err(error),
        };
        if is_unprotected {
            return Ok(Some(image.clone()));
        }
    }
    Ok(None)
}
