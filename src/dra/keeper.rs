//! The one task that has the book of prepared claims: it does one call after the other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Driver, DriverState, Surroundings,
    book::{BookError, Store},
    state::Board,
    sweep::Sweep,
};
use crate::{
    device::{
        Inventory,
        answer::Answerers,
        dra::{
            claim::ClaimName,
            pool::Pool,
            ports::{Published, Wish},
            prepared::{Book, Held},
        },
    },
    kubelet::Given,
    root::Root,
    shutdown::Tasks,
    telemetry::chain,
};

/// The kubelet waits 45 s for an answer, and does not read what comes later.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// What became of each claim, by UID.
pub(super) type Answers<T> = BTreeMap<String, Result<T, String>>;

/// What is asked of the keeper.
#[derive(Debug)]
pub(super) enum Task {
    /// Make claims ready; under way for as long as the last one lives.
    Prepare(Vec<ClaimName>, oneshot::Sender<Answers<Vec<Held>>>, Given),
    /// Take them back.
    Unprepare(Vec<ClaimName>, oneshot::Sender<Answers<()>>),
    /// The cluster has no such claim any more, and no container has its devices.
    Forget(ClaimName),
}

/// A task and when nobody waits for it any more.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) task: Task,
    pub(super) until: Instant,
}

impl Call {
    pub(super) fn new(task: Task) -> Self {
        Self {
            task,
            until: Instant::now() + PATIENCE,
        }
    }
}

pub(super) struct Keeper {
    pub(super) root: Root,
    pub(super) node: String,
    pub(super) store: Store,
    pub(super) book: Book,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) answerers: Answerers,
    pub(super) sweep: Sweep,
    board: Board,
    state: watch::Receiver<DriverState>,
    published: watch::Receiver<Published>,
    wish: watch::Sender<Wish>,
    needed: watch::Sender<bool>,
    /// The registration that was dealt with last.
    registration: u64,
    tasks: Tasks,
}

impl Keeper {
    pub(super) fn new(
        driver: Driver,
        with: Surroundings,
        (wish, needed): (watch::Sender<Wish>, watch::Sender<bool>),
        sweep: Sweep,
        tasks: Tasks,
    ) -> Self {
        let keeper = Self {
            root: driver.root,
            node: with.node,
            store: driver.store,
            book: driver.book,
            inventory: with.inventory,
            answerers: with.answerers,
            sweep,
            state: driver.board.subscribe(),
            board: driver.board,
            published: with.published,
            wish,
            needed,
            registration: 0,
            tasks,
        };
        keeper.restore(driver.whole);
        keeper
    }

    /// Runtimes forget with a boot what the kubelet remembers: specs lie in memory.
    fn restore(&self, whole: bool) {
        for prepared in self.book.claims.values() {
            if let Err(error) = self.store.write_spec(prepared) {
                tracing::warn!("claim {}: {}", prepared.claim, chain(&error));
            }
        }
        // With a book that is lost nobody knows whose the files are.
        if whole && let Err(error) = self.store.sweep(&self.book) {
            tracing::warn!("specs of claims that are over stay: {}", chain(&error));
        }
    }

    pub(super) async fn run(mut self, mut calls: mpsc::Receiver<Call>, stop: CancellationToken) {
        loop {
            self.look_around().await;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Safe to drop: a call stays in the channel.
                Some(call) = calls.recv() => tokio::select! {
                    // What is half done is done again when the kubelet asks again.
                    () = stop.cancelled() => return,
                    () = self.answer(call) => {}
                },
                // Safe to drop, all of them: a change stays marked as unseen.
                Ok(()) = self.inventory.changed() => {}
                Ok(()) = self.published.changed() => {}
                Ok(()) = self.state.changed() => {}
            }
        }
    }

    /// Takes note of what changed: what is to be offered, what the cluster knows, another kubelet.
    async fn look_around(&mut self) {
        let inventory = self.inventory.borrow_and_update().clone();
        let published = self.published.borrow_and_update().clone();
        let (registered, registrations) = {
            let state = self.state.borrow_and_update();
            (state.registered, state.registrations)
        };
        let pool = Pool::of(&inventory);
        self.note(&pool, &published).await;
        let needed = !pool.devices.is_empty() || !self.book.claims.is_empty();
        self.needed
            .send_if_modified(|known| std::mem::replace(known, needed) != needed);
        // Before the kubelet knows the driver no pod should come for its devices; what is there stays.
        if registered || pool.devices.is_empty() || self.wish.borrow().is_some() {
            self.wish.send_if_modified(|wish| {
                let news = wish.as_deref() != Some(&pool);
                if news {
                    *wish = Some(Arc::new(pool));
                }
                news
            });
        }
        if registrations != self.registration {
            self.registration = registrations;
            let prepared = self.book.claims.values().cloned().collect();
            let (sweep, stop) = (self.sweep.clone(), self.tasks.token());
            self.tasks.spawn("claims that are gone", async move {
                tokio::select! {
                    // Safe to drop: the next registration begins anew.
                    () = stop.cancelled() => {}
                    () = sweep.run(prepared) => {}
                }
            });
        }
        self.refresh(&inventory).await;
    }

    /// What may be claimed from now on stands in the book before anybody is told.
    async fn note(&mut self, pool: &Pool, published: &Published) {
        let mut offered = pool.resources();
        match &published.resources {
            Some(known) => offered.extend(known.iter().cloned()),
            None => offered.extend(self.book.offered.iter().cloned()),
        }
        let generation = published.generation.max(self.book.generation);
        if offered != self.book.offered || generation != self.book.generation {
            (self.book.offered, self.book.generation) = (offered, generation);
            if let Err(error) = self.save().await {
                tracing::warn!("what may be claimed is not written down: {}", chain(&error));
            }
        }
        self.board.published(published);
        self.board.holding(&self.book);
    }

    async fn answer(&mut self, call: Call) {
        let until = call.until;
        match call.task {
            Task::Prepare(claims, reply, _under_way) => {
                let mut answers = Answers::new();
                for claim in claims {
                    let answer = self.prepare(&claim, until).await;
                    if let Err(why) = &answer {
                        tracing::warn!(claim = %claim, "claim {claim} is not prepared: {why}");
                    }
                    answers.insert(claim.uid, answer);
                }
                // Nobody waits any more; the kubelet asks again and gets the same.
                let _ = reply.send(answers);
            }
            Task::Unprepare(claims, reply) => {
                let mut answers = Answers::new();
                for claim in claims {
                    let answer = self.unprepare(&claim).await.map_err(|e| chain(&e));
                    answers.insert(claim.uid, answer);
                }
                let _ = reply.send(answers);
            }
            Task::Forget(claim) => {
                tracing::info!(claim = %claim, "claim {claim} is gone and nobody gave it back: its devices are free");
                if let Err(error) = self.unprepare(&claim).await {
                    tracing::warn!("claim {claim}: {}", chain(&error));
                }
            }
        }
        self.board.holding(&self.book);
    }

    /// The spec goes first: a book that still has the claim makes it again, and is asked again.
    pub(super) async fn unprepare(&mut self, claim: &ClaimName) -> Result<(), BookError> {
        let (store, uid) = (self.store.clone(), claim.uid.clone());
        blocking(move || store.remove_spec(&uid)).await?;
        let Some(prepared) = self.book.claims.remove(&claim.uid) else {
            return Ok(());
        };
        if let Err(error) = self.save().await {
            self.book.claims.insert(claim.uid.clone(), prepared);
            return Err(error);
        }
        tracing::info!(claim = %claim, "claim {claim} is given back");
        Ok(())
    }

    pub(super) async fn save(&self) -> Result<(), BookError> {
        let (store, book) = (self.store.clone(), self.book.clone());
        blocking(move || store.save(&book)).await
    }
}

/// Work on files, off the loop.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(lost) if lost.is_panic() => std::panic::resume_unwind(lost.into_panic()),
        // The runtime ends: so does whoever waits.
        Err(_) => std::future::pending().await,
    }
}
