//! The kubelet's sockets: one device plugin for each resource, registered with whatever kubelet is
//! there, again whenever it starts anew.
//!
//! The kubelet removes the sockets it finds in its directory when it starts, then makes its own.
//! That socket's appearance is the only sign; `directory` watches for it, `plugin` has one task
//! for each resource that serves first, registers second and sees that it stays so.

pub mod api;
mod authority;
mod directory;
pub mod guests;
mod list;
mod names;
mod plugin;
mod podresources;
pub mod relayed;
mod server;
mod session;
mod state;

use std::sync::Arc;

pub use self::{
    names::{DIRECTORY, KUBELET_SOCKET},
    podresources::{POD_RESOURCES_SOCKET, PodResources, PodResourcesError},
    state::{Allocations, KubeletState},
};
use crate::{
    device::{Inventory, answer::Answerers},
    root::Root,
    shutdown::Tasks,
};
use tokio::sync::watch;

/// Starts to offer what `inventory` says, asks `answerers` where it says so, and tells how that goes. Ends with `tasks`, and then says
/// nothing about the devices: pods keep what they have, and the next agent goes on.
pub fn start(
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
    answerers: Answerers,
    tasks: &Tasks,
) -> (watch::Receiver<KubeletState>, watch::Receiver<Allocations>) {
    let board = state::Board::new();
    let told = (board.subscribe(), board.allocations());
    let task = directory::Directory::new(root, (inventory, answerers), board, tasks.clone());
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
