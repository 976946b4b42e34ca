//! The events of a vendor's task.

use tokio::sync::oneshot;

use super::{device_list::PluginDeviceList, plugin_client::PluginConnection};
use machinist_device::ResourceName;
use machinist_rootfs::{Stat, UnixAddress};

/// The events of a vendor's task.
#[derive(Debug)]
pub(super) enum PluginTaskEvent {
    /// A plugin registered, and was reached for its options.
    Registered {
        resource: ResourceName,
        connection: PluginConnection,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// A plugin that registered with an earlier agent was reached again.
    Reconnected {
        resource: ResourceName,
        connection: PluginConnection,
    },
    /// Such a plugin was not reached.
    DialFailed {
        resource: ResourceName,
        endpoint: String,
        /// The socket as it was before the dial; kept open, so that its inode number is not reused.
        dialled_socket: Option<(UnixAddress, Stat)>,
        reason: String,
    },
    /// A registration was refused.
    RegistrationRefused { name: String, reason: String },
    /// A plugin listed its devices.
    ListReceived {
        resource: ResourceName,
        number: u64,
        list: PluginDeviceList,
    },
    /// The registration server ended unexpectedly.
    ServerEnded { reason: String },
    /// A plugin's stream ended.
    StreamEnded {
        resource: ResourceName,
        number: u64,
        reason: String,
    },
}
