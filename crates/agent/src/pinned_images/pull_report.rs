//! Reports the images of a machine for the MachineConfigNode, and to the update that waits for them.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};

use super::{desired_images::DesiredImages, image_state::ImageState};
use machinist_base::reason::Reason;
use machinist_kube_api::{
    MAX_REASON_BYTES, MAX_STATUS_IMAGE_SETS, NodeImageSetStatus, NodeImageSets, PinnedImageSetView,
    truncate_at_char,
};

/// Failures that are named in one message.
const MAX_NAMED_FAILURES: usize = 5;

/// Receivers of the state of the images.
#[derive(Clone, Debug)]
pub struct PullReports {
    /// The sets with their conditions; `None` if there are none to report.
    pub sets: watch::Receiver<Option<NodeImageSets>>,
    /// Whether the images of these sets are being pulled for the first time.
    pub first_pull: watch::Receiver<Option<FirstPull>>,
}

impl PullReports {
    /// Of an agent that pulls no images.
    pub fn none() -> Self {
        Self {
            sets: watch::channel(None).1,
            first_pull: watch::channel(None).1,
        }
    }
}

/// A first pull of the images of sets.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstPull {
    /// When it began.
    pub began: Instant,
    /// The same for people.
    pub since: Timestamp,
    /// Images that are present.
    pub present: usize,
    /// All images.
    pub images: usize,
}

/// The states of all images, by name.
pub(super) type ImageStates = BTreeMap<String, ImageState>;

/// The report of `desired` in these states, while a first pull `is_progressing` or after it. `complete` is the last
/// generation of each set whose images were all present, `unprotected` why present images are not protected.
pub(super) fn image_sets(
    desired: &DesiredImages,
    states: &ImageStates,
    complete: &BTreeMap<String, i64>,
    unprotected: Option<&str>,
    is_progressing: bool,
) -> Option<NodeImageSets> {
    if !desired.is_served {
        return None;
    }
    let sets = desired.sets.values().take(MAX_STATUS_IMAGE_SETS);
    let sets = sets.map(|set| status_of(set, states, complete)).collect();
    let (present, all) = (present(states), states.len());
    let mut progress = match (is_progressing, all) {
        (_, 0) => "no images".to_owned(),
        (true, _) => format!("pulling images: {present} of {all} present"),
        (false, _) => format!("{present} of {all} images present"),
    };
    if let Some(why) = unprotected {
        // Writing to a String cannot fail.
        let _ = write!(progress, "; {}: {why}", Reason::ImageNotProtected);
    }
    Some(NodeImageSets {
        sets,
        is_progressing,
        progress,
        failure: failures(states.iter()),
    })
}

/// Number of images that are present.
pub(super) fn present(states: &ImageStates) -> usize {
    let present = states
        .values()
        .filter(|state| **state == ImageState::Present);
    present.count()
}

/// Whether all images of a set are present.
pub(super) fn is_complete(set: &PinnedImageSetView, states: &ImageStates) -> bool {
    let is_present = |image| states.get(image) == Some(&ImageState::Present);
    set.images.iter().all(is_present)
}

fn status_of(
    set: &PinnedImageSetView,
    states: &ImageStates,
    complete: &BTreeMap<String, i64>,
) -> NodeImageSetStatus {
    let ours = states
        .iter()
        .filter(|(image, _)| set.images.contains(image));
    let error = failures(ours);
    let current = complete.get(&set.name).copied();
    NodeImageSetStatus {
        name: set.name.clone(),
        // A set that was created again begins with generation 1.
        current_generation: current.filter(|current| *current <= set.generation),
        desired_generation: Some(set.generation),
        last_failed_generation: error.as_ref().map(|_| set.generation),
        last_failed_generation_error: error.unwrap_or_default(),
    }
}

/// The failures in one line, the first ones with their messages.
fn failures<'s>(states: impl Iterator<Item = (&'s String, &'s ImageState)>) -> Option<String> {
    let failed: Vec<_> = states
        .filter_map(|(_, state)| match state {
            ImageState::Failed(failure) => Some(failure),
            _ => None,
        })
        .collect();
    let named = failed.iter().take(MAX_NAMED_FAILURES);
    let named: Vec<_> = named
        .map(|failure| format!("{}: {}", failure.reason, failure.message))
        .collect();
    let rest = failed.len().saturating_sub(MAX_NAMED_FAILURES);
    let text = match rest {
        0 => named.join("; "),
        rest => format!(
            "{} images; {}; and {rest} more",
            failed.len(),
            named.join("; ")
        ),
    };
    (!failed.is_empty()).then(|| truncate_at_char(&text, MAX_REASON_BYTES).to_owned())
}
