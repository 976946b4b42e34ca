//! The device plugin side towards the kubelet: one device plugin for each resource, registered with
//! the running kubelet and again after each kubelet restart.
//!
//! A starting kubelet removes the sockets in its directory, then creates its own. The appearance of
//! that socket is the only sign of a restart; `directory` watches for it. `plugin` has one task for
//! each resource, which serves first, then registers and monitors the registration. Where the
//! kubelet's plugin watcher is used instead, `found` creates a socket for each resource in the
//! watcher's directory.

pub mod api;
mod device_plugin;
pub mod limited_incoming;
mod list_and_watch;
mod plugin_deps;
mod plugin_dir;
mod plugin_server;
pub mod plugin_watcher_info;
mod podresources;
pub mod raw_message;
mod registration_log;
mod resource_registration;
mod socket_names;
mod status;
mod watcher_registration;

use std::sync::Arc;

pub use self::{
    podresources::{MIN_CALL_INTERVAL, POD_RESOURCES_SOCKET, PodResources, PodResourcesError},
    socket_names::{DEVICE_PLUGIN_DIR, KUBELET_SOCKET},
    status::{Allocations, InFlightAllocations, InFlightGuard, KubeletState},
};
use machinist_base::shutdown::Tasks;
use machinist_device::{Inventory, allocator::Allocators};
use machinist_rootfs::Root;
use tokio::sync::watch;

/// How the kubelet learns of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistrationMode {
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
    allocators: Allocators,
    registering: RegistrationMode,
    tasks: &Tasks,
) -> (watch::Receiver<KubeletState>, watch::Receiver<Allocations>) {
    let status_writer = status::KubeletStatusWriter::new(tasks);
    let receivers = (status_writer.subscribe(), status_writer.allocations());
    let offered = (inventory, allocators, registering);
    let task = plugin_dir::PluginDirTask::new(root, offered, status_writer, tasks.clone());
    let stop = tasks.token();
    tasks.spawn("device plugins", async move {
        tokio::select! {
            // Safe to drop: resource tasks have the same token and remove their own sockets.
            () = stop.cancelled() => {}
            () = task.run() => {}
        }
    });
    receivers
}
