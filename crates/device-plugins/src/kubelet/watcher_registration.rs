//! Registers a resource through the kubelet's plugin watcher, which finds it by a socket in its
//! directory.
//!
//! The watcher dials a socket once. A running kubelet that dropped our plugin returns only to a
//! socket that was created again. A starting kubelet dials all existing sockets, so a restart needs
//! no handling here.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    plugin_deps::KubeletRun,
    plugin_server::PluginServer,
    resource_registration::{RegisterError, ResourceTask, ServerExit},
};

/// The watcher polls once a second, and a kubelet that has just begun to serve needs some seconds
/// before it starts polling.
const WATCHER_TIMEOUT: Duration = Duration::from_secs(10);
/// How much earlier a stream may end than the end of its kubelet is noticed.
const STREAM_END_TOLERANCE: Duration = Duration::from_millis(50);

/// The watcher's error text if it last refused us.
type WatcherErrorReceiver = watch::Receiver<Option<String>>;

impl ResourceTask {
    /// Serves one socket in the watcher's directory, from its creation to its removal.
    pub(super) async fn serve_until_removed(
        &mut self,
        mut kubelet: KubeletRun,
    ) -> Result<ServerExit, RegisterError> {
        let served = PluginServer::serve_for_watcher(&self.name, &self.deps, &self.stop);
        let (server, mut refused) = served.map_err(|source| RegisterError::Serve {
            resource: self.name.clone(),
            source,
        })?;
        let mut seen = 0;
        let ended = loop {
            if let Some(ended) = self.wait_for_stream(&server, seen, &mut refused).await? {
                break ended;
            }
            seen = server.streams.borrow().opened;
            // The kubelet's socket may have been noticed again meanwhile.
            let now = self.deps.kubelet.borrow().clone();
            kubelet = now.unwrap_or(kubelet);
            self.record_registered(&kubelet);
            let ended = self.monitor(&server, &kubelet).await;
            if !matches!(ended, ServerExit::StreamEnded) {
                break ended;
            }
            self.record_lost(&ended);
            self.deps.probe_request.notify_one();
            match self.next_kubelet(&kubelet).await {
                Some(next) => kubelet = next,
                None => break ServerExit::StreamEnded,
            }
        };
        self.finish(server, &ended).await;
        Ok(ended)
    }

    /// Waits until the kubelet has opened a list stream after the first `seen` ones and reads it.
    /// Returns the reason if something else ends the wait.
    async fn wait_for_stream(
        &self,
        server: &PluginServer,
        seen: u32,
        refused: &mut WatcherErrorReceiver,
    ) -> Result<Option<ServerExit>, RegisterError> {
        let mut streams = server.streams.clone();
        let mut inventory = self.deps.inventory.clone();
        let mut kubelet = self.deps.kubelet.clone();
        let name = &self.name;
        let deadline = Instant::now() + WATCHER_TIMEOUT;
        loop {
            // Safe to drop, all of them: they only read the latest values.
            tokio::select! {
                asked = streams.wait_for(|streams| streams.opened > seen && streams.open > 0) => {
                    return Ok(asked.is_err().then_some(ServerExit::Stopped));
                }
                _ = inventory.wait_for(|now| !now.resources.contains_key(name)) => {
                    return Ok(Some(ServerExit::Withdrawn));
                }
                _ = kubelet.wait_for(Option::is_none) => return Ok(Some(ServerExit::StreamEnded)),
                Ok(()) = refused.changed() => {
                    if let Some(error) = self.refusal(refused) {
                        self.failed(&error);
                    }
                }
                () = sleep_until(deadline) => {
                    let not_found = || RegisterError::NotFoundByWatcher { resource: name.clone() };
                    return Err(self.refusal(refused).unwrap_or_else(not_found));
                }
            }
        }
    }

    fn refusal(&self, refused: &mut WatcherErrorReceiver) -> Option<RegisterError> {
        let message = refused.borrow_and_update().clone()?;
        Some(RegisterError::Refused {
            resource: self.name.clone(),
            message,
        })
    }

    /// The kubelet that replaces `was`; `None` if `was` is still running or the wait is over.
    async fn next_kubelet(&mut self, was: &KubeletRun) -> Option<KubeletRun> {
        let mut kubelet = self.deps.kubelet.clone();
        let other = kubelet.wait_for(|now| {
            now.as_ref()
                .is_none_or(|now| now.generation != was.generation)
        });
        timeout(STREAM_END_TOLERANCE, other).await.ok()?.ok()?;
        self.kubelet().await
    }
}
