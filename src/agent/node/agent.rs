//! The agent takes the pods away itself: cordon, eviction, a last look, uncordon.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Ours, telling::Told};
use crate::{
    clock::Clock,
    cluster::node::{Cordon, Sight, Uncordon},
    config::{self, Losing, Settings},
    crd::EventReason,
    drain::{
        Permit as Leave, PodId, Wait,
        evict::{Drain, DrainError, Drained, Force, Options, Pods, Progress},
    },
    reason::Reason,
    update::node::{
        Asked, Blocker, DrainOrder, DrainProgress, Emptied, Lending, Node, NodeError, Permit, Step,
    },
};

/// This machine as a node whose pods the agent evicts itself.
#[derive(Debug)]
pub(in crate::agent) struct ByAgent<P> {
    ours: Ours,
    pods: Arc<P>,
    /// How they are drained; read anew for each drain.
    settings: watch::Receiver<Arc<Settings>>,
    /// UID of the pod that this process runs in.
    own: Option<String>,
    clock: Clock,
    /// Which Node was cordoned: one that is registered anew is another.
    cordoned: Mutex<Option<String>>,
    /// Pods that have ended and that the last drain did not wait for any more.
    left_behind: Mutex<Vec<PodId>>,
}

impl<P: Pods> ByAgent<P> {
    pub(in crate::agent) fn new(
        ours: Ours,
        pods: P,
        settings: watch::Receiver<Arc<Settings>>,
        own: Option<String>,
    ) -> Self {
        Self {
            ours,
            pods: Arc::new(pods),
            settings,
            own,
            clock: Clock::system(),
            cordoned: Mutex::default(),
            left_behind: Mutex::default(),
        }
    }

    async fn cordon_now(&self, to: &str) -> Result<(), NodeError> {
        let what = "cordon node";
        match self
            .ours
            .node
            .cordon()
            .await
            .map_err(|e| self.ours.refused(what, e))?
        {
            cordon @ (Cordon::Ours | Cordon::Theirs) => {
                if cordon == Cordon::Ours {
                    self.ours
                        .tell(EventReason::Cordon, format!("cordoned for {to}"));
                }
                let sight = self.ours.node.sights().borrow().node.clone();
                let uid = sight.map(|node| node.uid.clone());
                *locked(&self.cordoned) = uid;
                Ok(())
            }
            Cordon::NoNode => Err(self.ours.other(what, Reason::NodeMissing, true)),
        }
    }

    async fn look_afresh(&self, step: Step, to: Option<String>) -> Result<Permit, NodeError> {
        let view = self.ours.still_wanted(to).await?;
        let drained = super::drained(step);
        if !drained {
            return Ok(Permit::Go);
        }
        let cordoned = locked(&self.cordoned).clone();
        let same = cordoned.is_none_or(|uid| uid == view.uid);
        if !same || !view.is_cordoned() {
            return Ok(Permit::Refilled);
        }
        let drain = self.as_configured();
        let rehearsal = drain
            .rehearse(false)
            .await
            .map_err(|e| self.not_drained(e))?;
        let left = locked(&self.left_behind);
        let stays = rehearsal.evict.iter().all(|pod| left.contains(&pod.pod));
        Ok(match stays && rehearsal.refuse.is_empty() {
            true => Permit::Go,
            false => Permit::Refilled,
        })
    }

    fn as_configured(&self) -> Drain<P> {
        let options = options(&self.settings.borrow().drain, self.own.clone());
        let (pods, clock) = (Arc::clone(&self.pods), self.clock.clone());
        Drain::new(pods, self.ours.name(), options, clock)
    }

    fn not_drained(&self, error: DrainError) -> NodeError {
        NodeError {
            what: format!("drain node {}", self.ours.name()),
            reason: error.reason(),
            // Whoever stands in the way of a drain may go.
            again: error.again() || matches!(error, DrainError::Refused(_)),
            unanswered: matches!(error, DrainError::Unreachable { .. }),
            source: Some(Box::new(error)),
        }
    }

    async fn drain_now(&self, order: DrainOrder) -> Result<Emptied, NodeError> {
        let drain = self.as_configured();
        let mut told = drain.progress();
        let (ordered, orders) = watch::channel(self.forced());
        let force = Force {
            spent: order.spent,
            ordered: orders,
        };
        let mut sights = self.ours.node.sights();
        self.ours.tell(
            EventReason::Drain,
            format!("pods are asked to leave for {}", order.to),
        );
        let mut told_of = Told::default();
        let mut running = std::pin::pin!(drain.run(force, order.stop.clone()));
        loop {
            tokio::select! {
                ended = &mut running => {
                    let end = told.borrow().clone();
                    order.progress.send_replace(progress(&end));
                    told_of.tell(&self.ours, &end);
                    *locked(&self.left_behind) = end.left_behind;
                    return self.after(ended);
                }
                // Safe to drop, both: a change stays marked as unseen.
                Ok(()) = told.changed() => {
                    let now = told.borrow_and_update().clone();
                    order.progress.send_replace(progress(&now));
                    told_of.tell(&self.ours, &now);
                }
                Ok(()) = sights.changed() => {
                    ordered.send_if_modified(|known| {
                        let now = forced(&sights.borrow_and_update());
                        let differs = *known != now;
                        *known = now;
                        differs
                    });
                }
            }
        }
    }

    fn after(&self, ended: Result<Drained, DrainError>) -> Result<Emptied, NodeError> {
        match ended {
            Ok(_) => {
                self.ours
                    .tell(EventReason::Drained, "every pod has left that must");
                Ok(Emptied::Wholly)
            }
            Err(DrainError::Stopped) => Ok(Emptied::Stopped),
            Err(error) => {
                self.ours
                    .tell(EventReason::FailedToDrain, crate::telemetry::chain(&error));
                Err(self.not_drained(error))
            }
        }
    }

    fn forced(&self) -> Option<String> {
        forced(&self.ours.node.sights().borrow())
    }
}

impl<P: Pods> Node for ByAgent<P> {
    fn cordon(&self, to: String) -> Asked<'_, ()> {
        Box::pin(async move { self.cordon_now(&to).await })
    }

    fn lend(&self, lending: Lending) -> Asked<'_, ()> {
        Box::pin(self.ours.lend(lending))
    }

    fn drain(&self, order: DrainOrder) -> Asked<'_, Emptied> {
        Box::pin(self.drain_now(order))
    }

    fn permit(&self, step: Step, to: Option<String>) -> Asked<'_, Permit> {
        Box::pin(self.look_afresh(step, to))
    }

    fn uncordon(&self, _: String) -> Asked<'_, ()> {
        Box::pin(async move {
            self.ours.fit().await;
            let what = "uncordon node";
            match self
                .ours
                .node
                .uncordon()
                .await
                .map_err(|e| self.ours.refused(what, e))?
            {
                Uncordon::NoNode => {}
                Uncordon::Lifted => self.ours.tell(EventReason::Uncordon, "pods may come again"),
                Uncordon::Kept => self.ours.tell(
                    EventReason::UncordonSkipped,
                    "a person wants the node to stay cordoned",
                ),
                Uncordon::NotOurs => self.ours.tell(
                    EventReason::UncordonSkipped,
                    "the cordon is somebody else's",
                ),
            }
            *locked(&self.cordoned) = None;
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.ours.is_control_plane()
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A person's word that this one drain be forced.
fn forced(sight: &Sight) -> Option<String> {
    let node = sight.node.as_ref()?;
    node.forced_drain().map(str::to_owned)
}

fn progress(told: &Progress) -> DrainProgress {
    let blockers = told.waits.iter().map(blocker).collect();
    DrainProgress {
        spent: told.spent,
        left: told.to_go + told.leaving,
        blockers,
    }
}

fn blocker(wait: &Wait) -> Blocker {
    Blocker {
        kind: "Pod".to_owned(),
        namespace: wait.pod.namespace.clone(),
        name: wait.pod.name.clone(),
        reason: wait.what.reason(),
        message: wait.sentence(),
        since: wait.since,
    }
}

/// How an update drains here.
fn options(settings: &config::Drain, own: Option<String>) -> Options {
    let permit = |losing| match losing {
        Losing::Evict => Leave::Evict,
        Losing::Block => Leave::Refuse,
    };
    let mut options = Options::unattended(own, settings.force_after);
    options.rules.unmanaged = permit(settings.unmanaged);
    options.rules.local_data = permit(settings.empty_dir);
    options.at_once = usize::try_from(settings.parallel).unwrap_or(1);
    options
}
