//! The kubelet's claims: one driver for dynamic resource allocation (DRA), on two sockets.
//!
//! The kubelet finds the registrar in the directory that its plugin watcher looks at (`serving`), and asks the
//! driver to prepare claims and to take them back (`server`). One task deals with the calls (`keeper`); claims are
//! prepared beside each other (`prepare`, `granting`), and what comes of it is written one after the other: first the
//! book of prepared claims, then what runtimes read (`shelf`, `book`), and again when a device has other nodes
//! (`refresh`). What the scheduler is to know goes out as a wish, which the cluster's room fulfils.

pub mod api;
mod book;
mod granting;
mod health;
mod keeper;
mod prepare;
mod refresh;
mod server;
mod serving;
mod shelf;
mod state;
mod sweep;

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{mpsc, watch};

pub use self::state::DriverState;
use self::{
    book::Store,
    granting::Granting,
    keeper::{Ears, Keeper, Outlets},
    prepare::Preparer,
    refresh::Refresh,
    shelf::Shelf,
    state::Board,
};
use crate::{
    device::{
        Inventory,
        answer::Answerers,
        dra::{
            ports::{Claims, Given, Published, Wish},
            prepared::Book,
        },
    },
    kubelet::{Allocations, Giving},
    root::Root,
    shutdown::Tasks,
};

/// Calls of the kubelet that may wait; it has one for each pod that starts or ends.
const CALLS: usize = 64;

/// The driver before it is started: what an earlier agent left.
#[derive(Debug)]
pub struct Driver {
    root: Root,
    store: Store,
    book: Book,
    /// Whether the book is known to be whole.
    whole: bool,
    board: Board,
    preparing: Giving,
}

/// What the driver needs of the rest.
#[derive(Debug)]
pub struct Surroundings {
    /// The Node's name, which is the pool's.
    pub node: String,
    /// The cluster's claims.
    pub claims: Arc<dyn Claims>,
    /// What the kubelet gave without claims.
    pub given: Arc<dyn Given>,
    /// Who answers for sources that want to be asked.
    pub answerers: Answerers,
    /// The resources that may be had by claim now, and no others.
    pub inventory: watch::Receiver<Arc<Inventory>>,
    /// What the cluster has been told.
    pub published: watch::Receiver<Published>,
}

impl Driver {
    /// Reads what an earlier agent left. Nothing is served yet.
    pub fn load(root: Root) -> Self {
        let store = Store::new(root.clone());
        let (book, whole) = store.load();
        let board = Board::new(&book);
        Self {
            root,
            store,
            book,
            whole,
            board,
            preparing: Giving::default(),
        }
    }

    /// The driver, now and whenever something changes.
    pub fn state(&self) -> watch::Receiver<DriverState> {
        self.board.subscribe()
    }

    /// The claims that the kubelet asked for.
    pub fn preparing(&self) -> watch::Receiver<Allocations> {
        self.preparing.told()
    }

    /// Nobody will be served here, for this reason: what the cluster may still offer is nobody's concern.
    pub fn give_up(mut self, why: &str) {
        self.book.offered.clear();
        self.board.holding(&self.book);
        self.board.registration(Some(why));
    }

    /// Serves claims until `tasks` end; tells what the cluster is to be told. An agent that ends takes its sockets
    /// away and nothing else: the kubelet waits for the next one for 30 s before it takes the node's slices away.
    pub fn start(self, with: Surroundings, tasks: &Tasks) -> watch::Receiver<Wish> {
        let (calls, called) = mpsc::channel(CALLS);
        let (wish, wished) = watch::channel(None);
        let (needed, needs) = watch::channel(false);
        let service = server::Service::new(
            calls.clone(),
            (with.inventory.clone(), with.node.clone()),
            self.preparing.clone(),
            tasks,
        );
        let serving = serving::Serving::new(self.root.clone(), service, self.board.clone(), needs);
        let stop = tasks.token();
        let tracked = tasks.clone();
        tasks.spawn("driver", async move {
            tokio::select! {
                // Safe to drop: sockets go with the sessions that have them.
                () = stop.cancelled() => {}
                () = serving.run(tracked) => {}
            }
        });
        let sweep = sweep::Sweep {
            claims: Arc::clone(&with.claims),
            given: Arc::clone(&with.given),
            calls,
        };
        let granting = Granting {
            root: self.root.clone(),
            answerers: with.answerers,
            boot: self.store.boot().map(Arc::from),
        };
        let shelf = Shelf::new(self.store, self.book, self.whole, self.board.clone());
        let refresh = Refresh {
            root: self.root,
            moved: BTreeSet::new(),
            granting: granting.clone(),
            shelf: shelf.clone(),
            inventory: with.inventory.clone(),
        };
        tasks.spawn("nodes of claims", refresh.run(tasks.token()));
        let preparer = Preparer {
            node: with.node.into(),
            shelf,
            inventory: with.inventory.clone(),
            granting,
            sweep,
        };
        let ears = Ears {
            inventory: with.inventory,
            state: self.board.subscribe(),
            published: with.published,
        };
        let outlets = Outlets { wish, needed };
        let keeper = Keeper::new(preparer, ears, outlets, tasks.clone());
        tasks.spawn("claims", keeper.run(called, tasks.token()));
        wished
    }
}
