//! Publishes the inventory and logs what changed.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{inventory::Inventory, registry::change_log::ChangeLogger};

/// The sender of the inventory.
pub(super) struct InventoryPublisher {
    published: watch::Sender<Arc<Inventory>>,
    change_logger: ChangeLogger,
}

impl InventoryPublisher {
    pub(super) fn new(first: Inventory) -> Self {
        Self {
            published: watch::Sender::new(Arc::new(first)),
            change_logger: ChangeLogger::default(),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Inventory>> {
        self.published.subscribe()
    }

    /// The inventory that was published last.
    pub(super) fn current(&self) -> Arc<Inventory> {
        self.published.borrow().clone()
    }

    /// Publishes `now`; returns whether it differs from the inventory before.
    pub(super) fn publish(&mut self, now: Inventory) -> bool {
        let (before, now) = (self.current(), Arc::new(now));
        if before == now {
            return false;
        }
        // Subscribers are notified before the changes are logged.
        self.published.send_replace(Arc::clone(&now));
        self.change_logger.log_changes(&before, &now);
        true
    }
}
