//! The agent takes the pods away itself: cordon, eviction, a last look, uncordon.

mod held;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{Ours, holders::Waiting, telling::Told};
use crate::{
    clock::Clock,
    cluster::node::{Cordon, Sight, Uncordon},
    config::{self, Losing, Settings},
    crd::{EventReason, names::annotation},
    drain::{
        Permit as Leave, PodId, Wait,
        evict::{Drain, DrainError, Drained, Force, Options, Pods, Progress},
    },
    reason::Reason,
    telemetry::chain,
    update::node::{
        Asked, Blocker, DrainOrder, DrainProgress, Emptied, Holders, Lending, Node, NodeError,
        Permit, Step,
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
    waiting: Waiting,
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
            waiting: Waiting::default(),
        }
    }

    async fn cordon_now(&self, to: &str) -> Result<(), NodeError> {
        let what = "cordon node";
        let stood = self.is_cordoned();
        let cordoned = self.ours.node.cordon().await;
        let cordoned = cordoned.map_err(|e| self.ours.refused(what, e))?;
        if cordoned == Cordon::NoNode {
            return Err(self.ours.other(what, Reason::NodeMissing, true));
        }
        let sight = self.ours.node.sights().borrow().node.clone();
        let uid = sight.map(|node| node.uid.clone());
        let before = std::mem::replace(&mut *locked(&self.cordoned), uid);
        if cordoned == Cordon::Ours && !stood {
            let reason = match before {
                Some(_) => EventReason::Recordoned,
                None => EventReason::Cordon,
            };
            self.ours.tell(reason, format!("cordoned for {to}"));
        }
        Ok(())
    }

    async fn look_afresh(&self, step: Step, to: Option<String>) -> Result<Permit, NodeError> {
        let view = self.ours.still_wanted(to).await?;
        self.ours.may_go_on(step, &view).await?;
        let drained = super::drained(step);
        if !drained {
            return Ok(Permit::Go);
        }
        let cordoned = locked(&self.cordoned).clone();
        let same = cordoned.is_none_or(|uid| uid == view.uid);
        if !same || !view.is_cordoned() {
            return Ok(Permit::Refilled);
        }
        let drain = self.as_configured(None);
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

    fn is_cordoned(&self) -> bool {
        let sight = self.ours.node.sights().borrow().node.clone();
        sight.is_some_and(|node| node.is_cordoned())
    }

    fn as_configured(&self, force_after: Option<Duration>) -> Drain<P> {
        let options = options(&self.settings.borrow().drain, force_after, self.own.clone());
        let (pods, clock) = (Arc::clone(&self.pods), self.clock.clone());
        Drain::new(pods, self.ours.name(), options, clock)
    }

    fn not_drained(&self, error: DrainError) -> NodeError {
        // What it says of itself begins with the drain.
        NodeError {
            what: format!("empty node {}", self.ours.name()),
            node: self.ours.name().to_owned(),
            reason: error.reason(),
            // Whoever stands in the way of a drain may go.
            again: error.again() || matches!(error, DrainError::Refused(_)),
            unanswered: matches!(&error, DrainError::Unreachable { source, .. } if source.is_outage()),
            source: Some(Box::new(error)),
        }
    }

    async fn drain_now(&self, order: DrainOrder) -> Result<Emptied, NodeError> {
        let settings = self.settings.borrow().drain.clone();
        let drain = self.as_configured(self.ours.force_after(&settings).await);
        let mut told = drain.progress();
        let mut sights = self.ours.node.sights();
        let (ordered, orders) = watch::channel(forced(&sights.borrow_and_update()));
        let force = Force {
            spent: order.spent,
            ordered: orders,
        };
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
                    order.progress.send_replace(progress(&end, self.ours.name()));
                    told_of.tell(&self.ours, &end);
                    if ended.is_ok() && end.ordered.is_some() {
                        self.word_is_kept().await;
                    }
                    *locked(&self.left_behind) = end.left_behind;
                    return self.after(ended);
                }
                // Safe to drop, both: a change stays marked as unseen.
                Ok(()) = told.changed() => {
                    let now = told.borrow_and_update().clone();
                    order.progress.send_replace(progress(&now, self.ours.name()));
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

    /// A person's word was for this one drain.
    async fn word_is_kept(&self) {
        if let Err(error) = self.ours.node.forget(annotation::FORCE_DRAIN).await {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
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
                self.ours.tell(EventReason::FailedToDrain, chain(&error));
                Err(self.not_drained(error))
            }
        }
    }
}

impl<P: Pods> Node for ByAgent<P> {
    fn cordon(&self, to: String) -> Asked<'_, ()> {
        Box::pin(async move { self.cordon_now(&to).await })
    }

    fn lend(&self, lending: Lending) -> Asked<'_, ()> {
        Box::pin(self.ours.lend(lending))
    }

    fn holders(&self) -> Asked<'_, Option<Holders>> {
        Box::pin(async { Ok(self.ours.holders().await) })
    }

    fn held(&self) -> Asked<'_, Vec<Blocker>> {
        Box::pin(self.held_now())
    }

    fn stop_units(&self) -> BTreeSet<String> {
        self.ours.stop_units()
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
                Uncordon::NotOurs if !self.is_cordoned() => {}
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

fn progress(told: &Progress, node: &str) -> DrainProgress {
    let away = told.away_since.map(|since| Blocker {
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: node.to_owned(),
        reason: Reason::ApiServerUnreachable,
        message: "the API server does not answer; the drain goes on when it does".to_owned(),
        since,
    });
    let blockers = away
        .into_iter()
        .chain(told.waits.iter().map(blocker))
        .collect();
    DrainProgress {
        spent: told.spent,
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
fn options(
    settings: &config::Drain,
    force_after: Option<Duration>,
    own: Option<String>,
) -> Options {
    let permit = |losing| match losing {
        Losing::Evict => Leave::Evict,
        Losing::Block => Leave::Refuse,
    };
    let mut options = Options::unattended(own, force_after);
    options.rules.unmanaged = permit(settings.unmanaged);
    options.rules.local_data = permit(settings.empty_dir);
    options.at_once = usize::try_from(settings.parallel).unwrap_or(1);
    options
}
