//! The device plugin side towards the kubelet: one device plugin for each resource, registered with
//! the running kubelet and again after each kubelet restart.
//!
//! A starting kubelet removes the sockets in its directory, then creates its own. The appearance of
//! that socket is the only sign of a restart; `directory` watches for it. `plugin` has one task for
//! each resource, which serves first, then registers and monitors the registration. Where the
//! kubelet's plugin watcher is used instead, `found` creates a socket for each resource in the
//! watcher's directory.

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
    /// By a Register call on the kubelet's own socket, repeated whenever that socket is new.
    #[default]
    BySocket,
    /// By a socket in the plugin watcher's directory: within seconds, and without a new
    /// registration after a restart.
    ByWatcher,
}

/// Advertises the resources of `inventory` to the kubelet, forwards calls to `answerers` where a
/// resource requires it, and publishes the state. Ends with `tasks` without emptying the lists:
/// pods keep their devices, and the next agent continues.
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
