//! The vendor API: hardware vendors' own programs that connect to the agent and say which devices there
//! are.
//!
//! A vendor exists by a file of the machine's owner. `files` follows those; `room` has a keeper and a
//! socket for each; `server` and `connection` let its processes in, one `session` at a time; `keeper` owns
//! what the vendor said and brings it to the registry. A vendor is not trusted: `codec` counts before
//! anything is decoded, `heard` leaves devices encoded until they are looked at, `snapshot`, `recipe` and `paths` hold every word against the file, and `limits`
//! has the numbers that hold for all of them; those that a file may set are in `device/vendor/check`.

pub mod api;
mod asking;
pub mod check;
pub mod codec;
mod connection;
mod files;
pub mod heard;
mod hello;
mod keeper;
mod limits;
mod messages;
mod offers;
mod paths;
mod recipe;
mod room;
mod server;
mod session;
mod snapshot;
mod status;

use std::sync::Arc;

use tokio::sync::watch;

use self::room::{Desks, Room};
pub use self::{
    asking::Obeyed,
    files::follow,
    server::{DIRECTORY, SOCKET},
    status::{OfferStatus, VendorStatus},
};
use crate::{
    device::{registry::Registry, vendor::Vendors},
    root::Root,
    shutdown::Tasks,
};

/// Everyone else's view of the vendors. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VendorsHandle {
    root: Root,
    desks: watch::Receiver<Arc<Desks>>,
    quiesced: Arc<watch::Sender<Option<String>>>,
    news: Arc<watch::Sender<u64>>,
}

/// Looks after every vendor that `vendors` declares, and after what an earlier agent left of them. Ends with
/// `tasks`, and withdraws nothing then: the next agent goes on. `quiesced` says why they are to let go of
/// their hardware from the very start.
pub fn start(
    root: Root,
    registry: Registry,
    vendors: watch::Receiver<Arc<Vendors>>,
    quiesced: Option<String>,
    tasks: &Tasks,
) -> VendorsHandle {
    let quiesced = Arc::new(watch::Sender::new(quiesced));
    let news = Arc::new(watch::Sender::new(0));
    let (publish, desks) = watch::channel(Arc::new(Desks::new()));
    let room = Room::new(
        root.clone(),
        registry,
        tasks.clone(),
        publish,
        (quiesced.subscribe(), Arc::clone(&news)),
    );
    let stop = tasks.token();
    tasks.spawn("vendors", async move {
        tokio::select! {
            // Safe to drop: keepers and sockets end by the same token.
            () = stop.cancelled() => {}
            () = room.run(vendors) => {}
        }
    });
    VendorsHandle {
        root,
        desks,
        quiesced,
        news,
    }
}

impl VendorsHandle {
    fn desks(&self) -> Arc<Desks> {
        self.desks.borrow().clone()
    }

    /// Whether any vendor has a program here.
    pub fn any(&self) -> bool {
        !self.desks.borrow().is_empty()
    }

    /// Waits until one comes or goes; for ever once the agent ends. Safe to drop.
    pub async fn come_or_go(&mut self) {
        if self.desks.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Whenever something is new in [`VendorsHandle::status`].
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// All vendors as they are now.
    pub fn status(&self) -> Vec<VendorStatus> {
        let desks = self.desks();
        let each = desks.values().map(|desk| VendorStatus {
            problem: desk.problem.borrow().clone(),
            ..desk.status.borrow().clone()
        });
        each.collect()
    }
}
