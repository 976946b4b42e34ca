//! The book of prepared claims with what lies on disk of it: one change after the other, whoever makes it.

use std::sync::Arc;

use tokio::sync::{Mutex, Notify};

use super::{
    book::{BookError, Store},
    state::Board,
};
use crate::{
    device::dra::{
        claim::ClaimName,
        pool::Pool,
        ports::Published,
        prepared::{Book, Prepared},
    },
    telemetry::chain,
};

/// Cheap to clone; all clones are one. A change that was begun is to be waited for: half of it would stay on disk.
#[derive(Clone, Debug)]
pub(super) struct Shelf(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    store: Store,
    board: Board,
    book: Mutex<Book>,
    kept: Notify,
}

impl Shelf {
    /// Writes the specs of the book's claims. Those of another boot go: the kubelet asks for each claim again before
    /// its pod starts, and where its devices are then is looked up anew.
    pub(super) fn new(store: Store, book: Book, whole: bool, board: Board) -> Self {
        for prepared in book.claims.values() {
            let laid = match store.is_of_this_boot(prepared) {
                true => store.write_spec(prepared),
                false => store.remove_spec(&prepared.claim.uid),
            };
            if let Err(error) = laid {
                tracing::warn!("claim {}: {}", prepared.claim, chain(&error));
            }
        }
        // With a book that is lost nobody knows whose the files are.
        if whole && let Err(error) = store.sweep(&book) {
            tracing::warn!("specs of claims that are over stay: {}", chain(&error));
        }
        Self(Arc::new(Inside {
            store,
            board,
            book: Mutex::new(book),
            kept: Notify::new(),
        }))
    }

    /// Looks into the book.
    pub(super) async fn read<T>(&self, look: impl FnOnce(&Book) -> T) -> T {
        look(&*self.0.book.lock().await)
    }

    /// All claims that are prepared.
    pub(super) async fn claims(&self) -> Vec<Prepared> {
        self.read(|book| book.claims.values().cloned().collect())
            .await
    }

    /// One claim was kept since this was last waited for.
    pub(super) async fn kept(&self) {
        self.0.kept.notified().await;
    }

    /// A claim that was prepared in this boot; the runtime finds what it gives, also when somebody removed that.
    pub(super) async fn again(&self, uid: &str) -> Result<Option<Prepared>, BookError> {
        let book = self.0.book.lock().await;
        let known = book.claims.get(uid);
        let Some(known) = known
            .filter(|one| self.0.store.is_of_this_boot(one))
            .cloned()
        else {
            return Ok(None);
        };
        self.lay_out(&known).await?;
        Ok(Some(known))
    }

    async fn lay_out(&self, prepared: &Prepared) -> Result<(), BookError> {
        let (inside, of) = (Arc::clone(&self.0), prepared.clone());
        blocking(move || inside.store.write_spec(&of)).await
    }

    /// Keeps a claim that `judge` still has nothing against: first in the book, then for the runtime.
    pub(super) async fn keep<E: From<BookError>>(
        &self,
        prepared: &Prepared,
        judge: impl FnOnce(&Book) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut book = self.0.book.lock().await;
        judge(&book)?;
        let uid = prepared.claim.uid.clone();
        let before = book.claims.insert(uid.clone(), prepared.clone());
        if let Err(error) = self.save(&book).await {
            match before {
                Some(before) => book.claims.insert(uid, before),
                None => book.claims.remove(&uid),
            };
            return Err(error.into());
        }
        self.0.board.holding(&book);
        self.0.kept.notify_one();
        Ok(self.lay_out(prepared).await?)
    }

    /// Gives a claim back. The spec goes first: a book that still has the claim makes it again, and is asked again.
    pub(super) async fn give_back(&self, claim: &ClaimName) -> Result<(), BookError> {
        let mut book = self.0.book.lock().await;
        let (inside, uid) = (Arc::clone(&self.0), claim.uid.clone());
        blocking(move || inside.store.remove_spec(&uid)).await?;
        let Some(prepared) = book.claims.remove(&claim.uid) else {
            return Ok(());
        };
        if let Err(error) = self.save(&book).await {
            book.claims.insert(claim.uid.clone(), prepared);
            return Err(error);
        }
        self.0.board.holding(&book);
        tracing::info!(claim = %claim, "claim {claim} is given back");
        Ok(())
    }

    /// Writes down what may be claimed from now on, where that is news; nobody may be told before.
    pub(super) async fn offer(&self, pool: &Pool, published: &Published) -> Result<(), BookError> {
        let mut book = self.0.book.lock().await;
        let mut offered = pool.resources();
        match &published.resources {
            Some(known) => offered.extend(known.iter().cloned()),
            None => offered.extend(book.offered.iter().cloned()),
        }
        let generation = published.generation.max(book.generation);
        if offered != book.offered || generation != book.generation {
            let mut next = book.clone();
            (next.offered, next.generation) = (offered, generation);
            self.save(&next).await?;
            *book = next;
        }
        self.0.board.published(published);
        self.0.board.holding(&book);
        Ok(())
    }

    async fn save(&self, book: &Book) -> Result<(), BookError> {
        let (inside, book) = (Arc::clone(&self.0), book.clone());
        blocking(move || inside.store.save(&book)).await
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
