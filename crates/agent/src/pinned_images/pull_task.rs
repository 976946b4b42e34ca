//! The task that keeps the images of the node's sets on this machine.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    desired_images::DesiredImages,
    image_state::ImageState,
    protection::Protection,
    pull_pass::{PassResult, PullPass},
    pull_report::{FirstPull, ImageStates, image_sets, is_complete, present},
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
    reason::Reason,
};
use machinist_cluster::pinned_image_sets::ImageSets;
use machinist_kube_api::NodeImageSets;
use machinist_pool::ImageSetSelection;
use machinist_status::{
    metrics::Metrics,
    settings::{PinnedImageSettings, Settings},
};

/// Backoff between passes while an image is missing.
const PASS_BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

/// How often images that are all present are looked for again: no event reports that one was removed.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1800);

/// Receivers of what determines the images.
#[derive(Clone, Debug)]
pub struct PullInputs {
    /// The sets of the cluster.
    pub sets: watch::Receiver<ImageSets>,
    /// Which of them the node's pool has; `None` while the pool is unknown, or the node is in none.
    pub pool: watch::Receiver<Option<ImageSetSelection>>,
    /// The settings.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// Where another daemon was detected, which pulls the images itself then.
    pub other_daemon: watch::Receiver<Option<String>>,
}

/// The images, and how they are pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assignment {
    desired: DesiredImages,
    settings: PinnedImageSettings,
}

impl PullInputs {
    /// `None` while nothing is known.
    fn assignment(&mut self) -> Option<Assignment> {
        let is_alone = self.other_daemon.borrow_and_update().is_none();
        let sets = self.sets.borrow_and_update();
        let pool = self.pool.borrow_and_update();
        let settings = self.settings.borrow_and_update();
        let desired = match is_alone {
            true => DesiredImages::of(&sets, pool.as_ref())?,
            // Its own protection of images must not be overridden.
            false => DesiredImages::default(),
        };
        Some(Assignment {
            desired,
            settings: settings.pinned_images.clone(),
        })
    }

    /// Waits until the assignment differs from `known`.
    async fn changed(&mut self, known: Option<&Assignment>) {
        loop {
            tokio::select! {
                // All of these are cancel-safe: a change stays marked as unseen.
                Ok(()) = self.sets.changed() => {}
                Ok(()) = self.pool.changed() => {}
                Ok(()) = self.settings.changed() => {}
                Ok(()) = self.other_daemon.changed() => {}
                else => std::future::pending().await,
            }
            if self.assignment().as_ref() != known {
                return;
            }
        }
    }
}

/// The task.
#[derive(Debug)]
pub(super) struct PullTask {
    pub(super) protection: Protection,
    pub(super) sets: watch::Sender<Option<NodeImageSets>>,
    pub(super) first_pull: watch::Sender<Option<FirstPull>>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// The last generation of each set whose images were all present.
    pub(super) complete: BTreeMap<String, i64>,
}

impl PullTask {
    /// Pulls and protects the images until `stop`.
    pub(super) async fn run(mut self, mut inputs: PullInputs, stop: CancellationToken) {
        // Cancel-safe: the runtime cancels pulls, and the next start looks at the images again.
        stop.run_until_cancelled(self.keep_images(&mut inputs))
            .await;
    }

    async fn keep_images(&mut self, inputs: &mut PullInputs) {
        loop {
            let assignment = inputs.assignment();
            match &assignment {
                None => {
                    send(&self.first_pull, None);
                    send(&self.sets, None);
                    inputs.changed(None).await;
                }
                Some(work) => {
                    tokio::select! {
                        // Cancel-safe: the assignment is read again.
                        () = inputs.changed(assignment.as_ref()) => {}
                        // Cancel-safe: see `run`.
                        () = self.repeat_passes(work) => {}
                    }
                }
            }
        }
    }

    /// Passes over the images of one assignment again and again.
    async fn repeat_passes(&mut self, work: &Assignment) {
        let since = (Instant::now(), self.clock.now());
        let (mut failures, mut logged) = (0, None);
        loop {
            let first = (failures == 0 && logged.is_none()).then_some(since);
            let result = self.pass(work, first).await;
            let problem = problem(&result);
            if logged.as_ref() != Some(&problem) {
                if let Some((reason, message)) = &problem {
                    tracing::warn!(%reason, "{message}");
                }
                logged = Some(problem);
            }
            let wait = match result.is_retryable {
                true => PASS_BACKOFF.wait(failures, jitter()),
                false => RECHECK_INTERVAL.mul_f64(0.25f64.mul_add(-jitter(), 1.0)),
            };
            failures = match result.is_retryable {
                true => failures.saturating_add(1),
                false => 0,
            };
            sleep(wait).await;
        }
    }

    async fn pass(&mut self, work: &Assignment, first: Option<(Instant, Timestamp)>) -> PassResult {
        let pass = PullPass {
            protection: &self.protection,
            desired: &work.desired,
            settings: &work.settings,
        };
        if first.is_some() {
            // Whether images are missing is reported when it is known.
            self.publish_first_pull(&PullPass::initial_states(&work.desired), first);
        }
        let this = &*self;
        let result = pass
            .run(|states| {
                // A later pass over images that were present shows only its result.
                if first.is_some() {
                    this.publish(work, states, None, first);
                }
            })
            .await;
        for set in work.desired.sets.values() {
            if is_complete(set, &result.states) {
                self.complete.insert(set.name.clone(), set.generation);
            }
        }
        self.complete
            .retain(|name, _| work.desired.sets.contains_key(name));
        let unprotected = result.unprotected.as_ref();
        let unprotected = unprotected.map(|why| why.message.as_str());
        self.publish(work, &result.states, unprotected, None);
        result
    }

    fn publish(
        &self,
        work: &Assignment,
        states: &ImageStates,
        unprotected: Option<&str>,
        first: Option<(Instant, Timestamp)>,
    ) {
        let (is_progressing, present) = (first.is_some(), present(states));
        self.metrics
            .set_pinned_images(present, states.len() - present);
        send(
            &self.sets,
            image_sets(
                &work.desired,
                states,
                &self.complete,
                unprotected,
                is_progressing,
            ),
        );
        self.publish_first_pull(states, first);
    }

    fn publish_first_pull(&self, states: &ImageStates, first: Option<(Instant, Timestamp)>) {
        let first = first.filter(|_| !states.is_empty());
        let first = first.map(|(began, since)| FirstPull {
            began,
            since,
            present: present(states),
            images: states.len(),
        });
        send(&self.first_pull, first);
    }
}

fn send<T: PartialEq>(to: &watch::Sender<T>, news: T) {
    to.send_if_modified(|known| {
        let differs = *known != news;
        *known = news;
        differs
    });
}

/// What an administrator has to know of a pass.
fn problem(result: &PassResult) -> Option<(Reason, String)> {
    let failed = result.states.values().find_map(|state| match state {
        ImageState::Failed(failure) => Some((failure.reason, failure.message.clone())),
        _ => None,
    });
    let unprotected = result.unprotected.clone();
    failed.or(unprotected.map(|why| (Reason::ImageNotProtected, why.message)))
}
