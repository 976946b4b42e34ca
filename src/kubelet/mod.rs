//! The kubelet's sockets: one device plugin for each resource, registered with whatever kubelet is
//! there, again whenever it starts anew.
//!
//! The kubelet removes the sockets it finds in its directory when it starts, then makes its own.
//! That socket's appearance is the only sign; `directory` watches for it, `plugin` has one task
//! for each resource that serves first, registers second and sees that it stays so. Where the kubelet's
//! plugin watcher is to find the resources instead, `found` has a socket for each in its directory.

pub mod api;
mod directory;
mod found;
pub mod guests;
mod list;
mod names;
mod news;
mod plugin;
mod podresources;
pub mod registrar;
pub mod relayed;
mod server;
mod session;
mod state;

use std::sync::Arc;

pub use self::{
    names::{DIRECTORY, KUBELET_SOCKET},
    podresources::{APART, POD_RESOURCES_SOCKET, PodResources, PodResourcesError},
    state::{Allocations, Given, Giving, KubeletState},
};
use crate::{
    device::{Inventory, answer::Answerers},
    root::Root,
    shutdown::Tasks,
};
use tokio::sync::watch;

/// How the kubelet learns of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registering {
    /// It is told on its own socket, at once whenever that is a new one.
    #[default]
    BySocket,
    /// Its plugin watcher finds a socket in its directory: within seconds, and without our doing after a restart.
    ByWatcher,
}

/// Starts to offer what `inventory` says, asks `answerers` where it says so, and tells how that goes. Ends with
/// `tasks`, and then says nothing about the devices: pods keep what they have, and the next agent goes on.
pub fn start(
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
    answerers: Answerers,
    registering: Registering,
    tasks: &Tasks,
) -> (watch::Receiver<KubeletState>, watch::Receiver<Allocations>) {
    let board = state::Board::new(tasks);
    let told = (board.subscribe(), board.allocations());
    let offered = (inventory, answerers, registering);
    let task = directory::Directory::new(root, offered, board, tasks.clone());
    let stop = tasks.token();
    tasks.spawn("device plugins", async move {
        tokio::select! {
            // Safe to drop: resource tasks have the same token and remove their own sockets.
            () = stop.cancelled() => {}
            () = task.run() => {}
        }
    });
    told
}
