//! What the tasks of all resources share.

use std::sync::Arc;

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tonic::transport::Channel;

use super::{RegistrationMode, status::KubeletStatusWriter};
use machinist_base::shutdown::Tasks;
use machinist_device::{Inventory, allocator::Allocators};
use machinist_rootfs::Root;

/// One run of the kubelet, as far as it can be observed.
#[derive(Clone, Debug)]
pub(super) struct KubeletRun {
    /// Incremented with every new socket.
    pub(super) generation: u64,
    /// Incremented when our sockets vanished although the kubelet still runs.
    pub(super) socket_losses: u64,
    /// Connected to the kubelet's socket; shared by all resources.
    pub(super) channel: Channel,
    /// When its socket was noticed.
    pub(super) noticed: Instant,
}

/// Shared by all resources.
#[derive(Clone, Debug)]
pub(super) struct PluginDeps {
    pub(super) root: Root,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) allocators: Allocators,
    pub(super) registering: RegistrationMode,
    pub(super) kubelet: watch::Receiver<Option<KubeletRun>>,
    /// Triggers a check whether the kubelet still answers.
    pub(super) probe_request: Arc<Notify>,
    pub(super) status_writer: KubeletStatusWriter,
    pub(super) tasks: Tasks,
}
