//! The actor task of the DRA driver: it handles the kubelet's calls one after the other and decides
//! which devices are published. Claims are prepared in tasks of their own, since a source may be
//! slow.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    DriverState,
    claim_preparation::ClaimPreparer,
    claim_store::ClaimStore,
    kubelet_call::{ClaimCommand, ClaimResult, KubeletCall},
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    shutdown::Tasks,
};
use machinist_device::{
    Inventory,
    dra::{
        claim::ClaimName,
        pool::Pool,
        traits::{DesiredPool, PublishedPool},
    },
};

/// Retry of a failed checkpoint write; a full disk has to be cleared by an operator.
const WRITE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

/// The task's inputs from the rest of the agent.
#[derive(Debug)]
pub(super) struct ClaimTaskInputs {
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) state: watch::Receiver<DriverState>,
    pub(super) published: watch::Receiver<PublishedPool>,
}

/// The task's outputs.
#[derive(Debug)]
pub(super) struct ClaimTaskOutputs {
    pub(super) wish: watch::Sender<DesiredPool>,
    pub(super) needed: watch::Sender<bool>,
}

pub(super) struct ClaimTask {
    shelf: ClaimStore,
    preparer: ClaimPreparer,
    ears: ClaimTaskInputs,
    outlets: ClaimTaskOutputs,
    /// The registration count at the last cleanup.
    registration: u64,
    /// Claims being prepared, by UID: one token for each request, in order of arrival.
    under_way: BTreeMap<String, Vec<CancellationToken>>,
    /// When the failed checkpoint write is retried, and how often it failed.
    again: (Option<Instant>, u32),
    tasks: Tasks,
}

impl ClaimTask {
    pub(super) fn new(
        preparer: ClaimPreparer,
        ears: ClaimTaskInputs,
        outlets: ClaimTaskOutputs,
        tasks: Tasks,
    ) -> Self {
        Self {
            shelf: preparer.shelf.clone(),
            preparer,
            ears,
            outlets,
            registration: 0,
            under_way: BTreeMap::new(),
            again: (None, 0),
            tasks,
        }
    }

    pub(super) async fn run(
        mut self,
        mut calls: mpsc::Receiver<KubeletCall>,
        stop: CancellationToken,
    ) {
        loop {
            self.look_around().await;
            let again_at = self.again.0;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Safe to drop: a call stays in the channel.
                Some(call) = calls.recv() => self.answer(call).await,
                // Safe to drop, all of them: a change stays marked as unseen, and the deadline is
                // stored.
                Ok(()) = self.ears.inventory.changed() => {}
                Ok(()) = self.ears.published.changed() => {}
                Ok(()) = self.ears.state.changed() => {}
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {}
            }
        }
    }

    /// Reacts to changes: the devices to publish, the pool in the cluster, a new registration with
    /// the kubelet.
    async fn look_around(&mut self) {
        let inventory = self.ears.inventory.borrow_and_update().clone();
        let published = self.ears.published.borrow_and_update().clone();
        let (registered, registrations) = {
            let state = self.ears.state.borrow_and_update();
            (state.registered, state.registrations)
        };
        let pool = Pool::of(&inventory);
        let is_written = self.note(&pool, &published).await;
        let has_claims = self.shelf.read(|book| !book.claims.is_empty()).await;
        let needed = !pool.devices.is_empty() || has_claims;
        self.outlets
            .needed
            .send_if_modified(|known| std::mem::replace(known, needed) != needed);
        // Until the kubelet has registered the driver, no pod should be scheduled for its devices;
        // devices that are published already stay.
        let wish = &self.outlets.wish;
        let there = wish
            .borrow()
            .as_ref()
            .is_some_and(|wish| !wish.devices.is_empty());
        if is_written && (registered || pool.devices.is_empty() || there) {
            wish.send_if_modified(|wish| {
                let news = wish.as_deref() != Some(&pool);
                if news {
                    *wish = Some(Arc::new(pool));
                }
                news
            });
        }
        if registrations != self.registration {
            self.registration = registrations;
            self.sweep().await;
        }
    }

    /// Stores the pool in the checkpoint before it is published; returns whether it is stored.
    async fn note(&mut self, pool: &Pool, published: &PublishedPool) -> bool {
        let (again_at, failures) = self.again;
        match self.shelf.offer(pool, published).await {
            Ok(()) => {
                self.again = (None, 0);
                true
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(
                        "failed to save the devices for claims, ResourceSlices are not updated: {}",
                        chain(&error)
                    );
                }
                let next = Instant::now() + WRITE_BACKOFF.wait(failures, jitter());
                self.again = match again_at.filter(|at| *at > Instant::now()) {
                    Some(at) => (Some(at), failures),
                    None => (Some(next), failures.saturating_add(1)),
                };
                false
            }
        }
    }

    /// Starts a search for claims that were never unprepared.
    async fn sweep(&self) {
        let prepared = self.shelf.claims().await;
        let (sweep, stop) = (self.preparer.sweep.clone(), self.tasks.token());
        self.tasks.spawn("claims that are gone", async move {
            tokio::select! {
                // Safe to drop: the next registration starts the search again.
                () = stop.cancelled() => {}
                () = sweep.run(prepared) => {}
            }
        });
    }

    async fn answer(&mut self, call: KubeletCall) {
        match call.task {
            ClaimCommand::Prepare(claim, reply, under_way) => {
                let (over, before) = self.begin(&claim);
                let preparer = self.preparer.clone();
                self.tasks.spawn("claim", async move {
                    let _under_way = (under_way, over.clone().drop_guard());
                    if let Some(before) = before {
                        tokio::select! {
                            // Safe to drop, all of them: `prepare` examines the claim's state
                            // anyway.
                            () = before.cancelled() => {}
                            () = over.cancelled() => {}
                            () = sleep_until(call.until) => {}
                        }
                    }
                    let answer = preparer.prepare(&claim, call.until, &over).await;
                    if let Err(why) = &answer {
                        tracing::warn!(claim = %claim, "failed to prepare claim {claim}: {why}");
                    }
                    // If the caller no longer waits, the kubelet retries and gets the same answer.
                    let _ = reply.send(answer);
                });
            }
            ClaimCommand::Unprepare(claim, reply) => {
                let answer = self.give_back(&claim).await;
                let _ = reply.send(answer);
            }
            ClaimCommand::Forget(claim) => {
                tracing::info!(claim = %claim, "claim {claim} was deleted and never unprepared: releasing its devices");
                if let Err(why) = self.give_back(&claim).await {
                    tracing::warn!("claim {claim}: {why}");
                }
            }
        }
    }

    /// Registers the preparation of a claim; returns its token and that of the previous request for
    /// the same claim. Pods that share a claim start together, and later requests return the result
    /// of the first.
    fn begin(&mut self, claim: &ClaimName) -> (CancellationToken, Option<CancellationToken>) {
        self.under_way.retain(|_, all| {
            all.retain(|over| !over.is_cancelled());
            !all.is_empty()
        });
        let over = self.tasks.token();
        let all = self.under_way.entry(claim.uid.clone()).or_default();
        let before = all.last().cloned();
        all.push(over.clone());
        (over, before)
    }

    async fn give_back(&mut self, claim: &ClaimName) -> ClaimResult<()> {
        for over in self.under_way.remove(&claim.uid).into_iter().flatten() {
            over.cancel();
        }
        self.shelf.unprepare(claim).await.map_err(|e| chain(&e))
    }
}
