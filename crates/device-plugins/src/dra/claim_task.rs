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
    pub(super) desired_pool: watch::Sender<DesiredPool>,
    pub(super) needed: watch::Sender<bool>,
}

pub(super) struct ClaimTask {
    claim_store: ClaimStore,
    preparer: ClaimPreparer,
    inputs: ClaimTaskInputs,
    outputs: ClaimTaskOutputs,
    /// The registration count at the last cleanup.
    last_registration: u64,
    /// Claims being prepared, by UID: one token for each request, in order of arrival.
    in_progress: BTreeMap<String, Vec<CancellationToken>>,
    /// When the failed checkpoint write is retried, and how often it failed.
    write_retry: (Option<Instant>, u32),
    tasks: Tasks,
}

impl ClaimTask {
    pub(super) fn new(
        preparer: ClaimPreparer,
        inputs: ClaimTaskInputs,
        outputs: ClaimTaskOutputs,
        tasks: Tasks,
    ) -> Self {
        Self {
            claim_store: preparer.claim_store.clone(),
            preparer,
            inputs,
            outputs,
            last_registration: 0,
            in_progress: BTreeMap::new(),
            write_retry: (None, 0),
            tasks,
        }
    }

    pub(super) async fn run(
        mut self,
        mut calls: mpsc::Receiver<KubeletCall>,
        stop: CancellationToken,
    ) {
        loop {
            self.apply_changes().await;
            let retry_at = self.write_retry.0;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Safe to drop: a call stays in the channel.
                Some(call) = calls.recv() => self.handle_call(call).await,
                // Safe to drop, all of them: a change stays marked as unseen, and the deadline is
                // stored.
                Ok(()) = self.inputs.inventory.changed() => {}
                Ok(()) = self.inputs.published.changed() => {}
                Ok(()) = self.inputs.state.changed() => {}
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
            }
        }
    }

    /// Reacts to changes: the devices to publish, the pool in the cluster, a new registration with
    /// the kubelet.
    async fn apply_changes(&mut self) {
        let inventory = self.inputs.inventory.borrow_and_update().clone();
        let published = self.inputs.published.borrow_and_update().clone();
        let (registered, registrations) = {
            let state = self.inputs.state.borrow_and_update();
            (state.registered, state.registrations)
        };
        let pool = Pool::of(&inventory);
        let is_saved = self.save_pool(&pool, &published).await;
        let has_claims = self
            .claim_store
            .read(|checkpoint| !checkpoint.claims.is_empty())
            .await;
        let needed = !pool.devices.is_empty() || has_claims;
        self.outputs
            .needed
            .send_if_modified(|known| std::mem::replace(known, needed) != needed);
        // Until the kubelet has registered the driver, no pod should be scheduled for its devices;
        // devices that are published already stay.
        let desired_pool = &self.outputs.desired_pool;
        let is_published = desired_pool
            .borrow()
            .as_ref()
            .is_some_and(|desired_pool| !desired_pool.devices.is_empty());
        if is_saved && (registered || pool.devices.is_empty() || is_published) {
            desired_pool.send_if_modified(|desired_pool| {
                let is_changed = desired_pool.as_deref() != Some(&pool);
                if is_changed {
                    *desired_pool = Some(Arc::new(pool));
                }
                is_changed
            });
        }
        if registrations != self.last_registration {
            self.last_registration = registrations;
            self.start_gc().await;
        }
    }

    /// Stores the pool in the checkpoint before it is published; returns whether it is stored.
    async fn save_pool(&mut self, pool: &Pool, published: &PublishedPool) -> bool {
        let (retry_at, failures) = self.write_retry;
        match self.claim_store.offer(pool, published).await {
            Ok(()) => {
                self.write_retry = (None, 0);
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
                self.write_retry = match retry_at.filter(|at| *at > Instant::now()) {
                    Some(at) => (Some(at), failures),
                    None => (Some(next), failures.saturating_add(1)),
                };
                false
            }
        }
    }

    /// Starts a search for claims that were never unprepared.
    async fn start_gc(&self) {
        let prepared = self.claim_store.claims().await;
        let (gc, stop) = (self.preparer.gc.clone(), self.tasks.token());
        self.tasks.spawn("claims that are gone", async move {
            tokio::select! {
                // Safe to drop: the next registration starts the search again.
                () = stop.cancelled() => {}
                () = gc.run(prepared) => {}
            }
        });
    }

    async fn handle_call(&mut self, call: KubeletCall) {
        match call.task {
            ClaimCommand::Prepare(claim, reply, in_progress) => {
                let (cancelled, previous) = self.register_preparation(&claim);
                let preparer = self.preparer.clone();
                self.tasks.spawn("claim", async move {
                    let _in_progress = (in_progress, cancelled.clone().drop_guard());
                    if let Some(previous) = previous {
                        tokio::select! {
                            // Safe to drop, all of them: `prepare` examines the claim's state
                            // anyway.
                            () = previous.cancelled() => {}
                            () = cancelled.cancelled() => {}
                            () = sleep_until(call.until) => {}
                        }
                    }
                    let answer = preparer.prepare(&claim, call.until, &cancelled).await;
                    if let Err(why) = &answer
                        && let Some(suppressed) = preparer.log_rates.take("preparation")
                    {
                        tracing::warn!(claim = %claim, suppressed, "failed to prepare claim {claim}: {why}");
                    }
                    // If the caller no longer waits, the kubelet retries and gets the same answer.
                    let _ = reply.send(answer);
                });
            }
            ClaimCommand::Unprepare(claim, reply) => {
                let answer = self.unprepare(&claim).await;
                let _ = reply.send(answer);
            }
            ClaimCommand::Forget(claim) => {
                tracing::info!(claim = %claim, "claim {claim} was deleted and never unprepared: releasing its devices");
                if let Err(why) = self.unprepare(&claim).await {
                    tracing::warn!("claim {claim}: {why}");
                }
            }
        }
    }

    /// Registers the preparation of a claim; returns its token and that of the previous request for
    /// the same claim. Pods that share a claim start together, and later requests return the result
    /// of the first.
    fn register_preparation(
        &mut self,
        claim: &ClaimName,
    ) -> (CancellationToken, Option<CancellationToken>) {
        self.in_progress.retain(|_, all| {
            all.retain(|cancelled| !cancelled.is_cancelled());
            !all.is_empty()
        });
        let cancelled = self.tasks.token();
        let all = self.in_progress.entry(claim.uid.clone()).or_default();
        let previous = all.last().cloned();
        all.push(cancelled.clone());
        (cancelled, previous)
    }

    async fn unprepare(&mut self, claim: &ClaimName) -> ClaimResult<()> {
        for cancelled in self.in_progress.remove(&claim.uid).into_iter().flatten() {
            cancelled.cancel();
        }
        self.claim_store
            .unprepare(claim)
            .await
            .map_err(|e| chain(&e))
    }
}
