//! Lets an update wait for images that are pulled for the first time, but not for ever.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::pull_report::FirstPull;
use machinist_base::reason::Reason;
use machinist_status::settings::Settings;
use machinist_update::node_port::Blocker;

/// What determines how long an update waits.
#[derive(Clone, Debug)]
pub(crate) struct UpdateWait {
    pull: watch::Receiver<Option<FirstPull>>,
    settings: watch::Receiver<Arc<Settings>>,
}

impl UpdateWait {
    pub(crate) const fn new(
        pull: watch::Receiver<Option<FirstPull>>,
        settings: watch::Receiver<Arc<Settings>>,
    ) -> Self {
        Self { pull, settings }
    }

    /// Why an update has to wait now, if it has to.
    pub(crate) fn blocker(&self) -> Option<Blocker> {
        let limit = self.limit();
        let pull = self.pull.borrow().clone()?;
        let left = limit.checked_sub(pull.began.elapsed())?;
        let blocker = Blocker {
            kind: "PinnedImageSets".to_owned(),
            namespace: String::new(),
            name: "images".to_owned(),
            reason: Reason::PullingImages,
            message: format!(
                "{} of {} images present; waiting for at most {} s more (pinnedImages.updateWait)",
                pull.present,
                pull.images,
                left.as_secs()
            ),
            since: pull.since,
        };
        (!left.is_zero()).then_some(blocker)
    }

    /// Waits until the first pull has ended, well or not, or has taken too long.
    pub(crate) async fn ended(&self) {
        let mut pull = self.pull.clone();
        // Sets that change again and again do not prolong the wait.
        let start = Instant::now();
        loop {
            let began = pull.borrow_and_update().as_ref().map(|pull| pull.began);
            let Some(began) = began else {
                return;
            };
            tokio::select! {
                // Cancel-safe: a change stays marked as unseen.
                changed = pull.changed() => if changed.is_err() { return },
                // Cancel-safe: the deadline is absolute.
                () = sleep_until(began.min(start) + self.limit()) => return,
            }
        }
    }

    fn limit(&self) -> Duration {
        self.settings.borrow().pinned_images.update_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use jiff::Timestamp;
    use machinist_status::settings::Fragment;

    fn settings() -> watch::Receiver<Arc<Settings>> {
        let settings = Settings::from_fragments([Fragment::default()]).unwrap();
        watch::channel(Arc::new(settings)).1
    }

    fn pulling() -> Option<FirstPull> {
        Some(FirstPull {
            began: Instant::now(),
            since: Timestamp::UNIX_EPOCH,
            present: 1,
            images: 3,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_waits_until_the_first_pull_has_ended() {
        let (pulls, pulled) = watch::channel(pulling());
        let wait = UpdateWait::new(pulled, settings());
        let blocker = wait.blocker().unwrap();
        assert_eq!(blocker.reason, Reason::PullingImages);
        assert!(blocker.message.starts_with("1 of 3 images present"));
        let begun = Instant::now();
        let ending = tokio::spawn(async move { wait.ended().await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        pulls.send_replace(None);
        ending.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_that_does_not_end_delays_an_update_for_a_limited_time() {
        let (_pulls, pulled) = watch::channel(pulling());
        let wait = UpdateWait::new(pulled, settings());
        let begun = Instant::now();
        wait.ended().await;
        assert_eq!(begun.elapsed().as_secs(), 300);
        assert_eq!(wait.blocker(), None);
    }
}
