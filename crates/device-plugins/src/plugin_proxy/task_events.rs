//! The events of a vendor's task.

use tokio::sync::oneshot;

use super::{device_list::PluginDeviceList, plugin_client::PluginConnection};
use machinist_device::ResourceName;
use machinist_rootfs::{Stat, UnixAddress};

/// The events of a vendor's task.
#[derive(Debug)]
pub(super) enum PluginTaskEvent {
    /// A plugin registered, and was reached for its options.
    Came {
        resource: ResourceName,
        connection: PluginConnection,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// A plugin that registered with an earlier agent was reached again.
    Returned {
        resource: ResourceName,
        connection: PluginConnection,
    },
    /// Such a plugin was not reached.
    Lost {
        resource: ResourceName,
        endpoint: String,
        /// The socket as it was before the dial; kept open, so that its inode number is not reused.
        was: Option<(UnixAddress, Stat)>,
        why: String,
    },
    /// A registration was refused.
    Refused { name: String, why: String },
    /// A plugin listed its devices.
    Heard {
        resource: ResourceName,
        number: u64,
        list: PluginDeviceList,
    },
    /// The registration server ended unexpectedly.
    Closed { why: String },
    /// A plugin's stream ended.
    Ended {
        resource: ResourceName,
        number: u64,
        why: String,
    },
}
