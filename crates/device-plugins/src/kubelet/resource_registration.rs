//! One resource towards the kubelet: serves it, registers it and monitors the registration.

use std::{error::Error as _, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    RegistrationMode,
    api::v1beta1 as api,
    device_plugin::options,
    plugin_deps::{KubeletRun, PluginDeps},
    plugin_server::{PluginServeError, PluginServer},
};
use machinist_base::{error_chain::chain, rate_limit::RateLimiter};
use machinist_device::{Inventory, ResourceName};

/// The kubelet opens the stream from a separate task right after its answer to `Register`.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);
/// `Register` returns only after the kubelet has dialled back, for which it takes ten seconds at
/// most.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// The first wait after a failure; doubled up to the longest.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// How long the kubelet has to read the emptied list before the stream ends.
const WITHDRAWAL_GRACE: Duration = Duration::from_secs(1);

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    #[error("cannot serve {resource}")]
    Serve {
        resource: ResourceName,
        #[source]
        source: PluginServeError,
    },
    #[error("the kubelet rejected {resource}: {message}")]
    Refused {
        resource: ResourceName,
        message: String,
    },
    #[error("the kubelet did not respond")]
    Away,
    #[error("the kubelet registered {resource} but did not call ListAndWatch")]
    NoStream { resource: ResourceName },
    #[error("the kubelet's plugin watcher did not find {resource}")]
    Unfound { resource: ResourceName },
}

/// The task of one resource.
pub(super) struct ResourceTask {
    pub(super) name: ResourceName,
    pub(super) shared: PluginDeps,
    pub(super) stop: CancellationToken,
    /// Registrations so far: each has a socket with its own name.
    number: u64,
    /// Limits re-registrations because of changed options: each one makes the kubelet count the resource as zero
    /// for a moment, so a source that flips its options must not cause many.
    changes: RateLimiter,
}

/// Why a session ended.
pub(super) enum ServerExit {
    /// There is another kubelet, or our socket was removed.
    NewKubelet,
    /// The stream ended: the kubelet, running or not, no longer listens to us.
    Unheard,
    /// The options changed: the kubelet reads only at registration whether it has to call PreStartContainer.
    Changed,
    /// The resource is no longer offered.
    Withdrawn,
    Stopped,
}

impl ResourceTask {
    pub(super) fn new(name: ResourceName, shared: PluginDeps, stop: CancellationToken) -> Self {
        Self {
            name,
            shared,
            stop,
            number: 0,
            changes: RateLimiter::per_interval(Duration::from_secs(1), 3),
        }
    }

    /// Runs until the resource is removed or the agent stops; returns the name.
    pub(super) async fn run(mut self) -> ResourceName {
        let stop = self.stop.clone();
        tokio::select! {
            // Sessions stop serving and remove their socket when they are dropped.
            () = stop.cancelled() => {}
            () = self.keep() => self.shared.board.forget(&self.name),
        }
        self.name
    }

    /// Registers repeatedly, until the resource is removed.
    async fn keep(&mut self) {
        let mut pause = MIN_BACKOFF;
        self.shared.board.record_start(&self.name);
        loop {
            let Some(kubelet) = self.kubelet().await.filter(|_| !self.is_gone()) else {
                return;
            };
            let began = Instant::now();
            let once = match self.shared.registering {
                RegistrationMode::BySocket => self.once(&kubelet).await,
                RegistrationMode::ByWatcher => self.serve_until_removed(kubelet.clone()).await,
            };
            let ended = match once {
                Ok(ended) => {
                    // A session that lasted was no failure, whatever ended it.
                    if began.elapsed() > MAX_BACKOFF {
                        pause = MIN_BACKOFF;
                    }
                    ended
                }
                Err(error) => {
                    self.failed(&error);
                    ServerExit::Unheard
                }
            };
            match ended {
                ServerExit::Withdrawn | ServerExit::Stopped => return,
                ServerExit::NewKubelet | ServerExit::Changed => pause = MIN_BACKOFF,
                ServerExit::Unheard => {
                    self.shared.doubt.notify_one();
                    pause = self.pause(&kubelet, pause).await;
                }
            }
        }
    }

    /// One registration on the kubelet's own socket, from its beginning to its end.
    async fn once(&mut self, kubelet: &KubeletRun) -> Result<ServerExit, RegisterError> {
        let session = self.register(kubelet).await?;
        self.record_registered(kubelet);
        let ended = self.monitor(&session, kubelet).await;
        self.finish(session, &ended).await;
        Ok(ended)
    }

    /// Waits after a failure, at most until there is a new kubelet; returns the next delay.
    async fn pause(&mut self, failed: &KubeletRun, pause: Duration) -> Duration {
        let mut kubelet = self.shared.kubelet.clone();
        let life = failed.life;
        let newer = kubelet.wait_for(|now| now.as_ref().is_some_and(|now| now.life != life));
        let name = &self.name;
        let gone = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        tokio::select! {
            // Safe to drop, all of them: they only read the latest values, and the other is a timer.
            _ = newer => MIN_BACKOFF,
            _ = self.shared.inventory.wait_for(gone) => pause,
            () = sleep(pause) => (pause * 2).min(MAX_BACKOFF),
        }
    }

    pub(super) fn record_registered(&self, kubelet: &KubeletRun) {
        let after = kubelet.noticed.elapsed();
        self.shared.board.registered(&self.name, after);
    }

    pub(super) fn failed(&self, error: &RegisterError) {
        let reason = chain(error);
        if self.shared.board.failed(&self.name, &reason) {
            let name = &self.name;
            tracing::warn!(resource = %name, "{name} is not registered: {reason}");
        }
    }

    /// Waits for a kubelet; `None` if the resource is removed first.
    pub(super) async fn kubelet(&mut self) -> Option<KubeletRun> {
        if self.shared.kubelet.borrow().is_none() {
            self.shared.board.record_waiting(&self.name);
        }
        let (name, shared) = (&self.name, &mut self.shared);
        let gone = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        tokio::select! {
            // Safe to drop: both only read the latest value.
            found = shared.kubelet.wait_for(Option::is_some) => found.ok()?.clone(),
            _ = shared.inventory.wait_for(gone) => None,
        }
    }

    fn is_gone(&self) -> bool {
        !self
            .shared
            .inventory
            .borrow()
            .resources
            .contains_key(&self.name)
    }

    /// Serves first, then registers, then waits for the kubelet to open the list stream.
    async fn register(&mut self, kubelet: &KubeletRun) -> Result<PluginServer, RegisterError> {
        let mut session = self.serve()?;
        let request = api::RegisterRequest {
            version: api::VERSION.to_owned(),
            endpoint: session.socket.file_name().to_owned(),
            resource_name: self.name.to_string(),
            options: Some(session.options),
        };
        let mut client = api::registration_client::RegistrationClient::new(kubelet.channel.clone());
        match timeout(REGISTER_TIMEOUT, client.register(request)).await {
            Ok(Ok(_)) => {}
            // The connection broke; the status was not sent by the kubelet.
            Ok(Err(status)) if status.code() == Code::Unavailable || status.source().is_some() => {
                return Err(RegisterError::Away);
            }
            Ok(Err(status)) => {
                let message = status.message().to_owned();
                return Err(RegisterError::Refused {
                    resource: self.name.clone(),
                    message,
                });
            }
            Err(_) => return Err(RegisterError::Away),
        }
        let asked = session.streams.wait_for(|streams| streams.opened > 0);
        let in_time = matches!(timeout(STREAM_TIMEOUT, asked).await, Ok(Ok(_)));
        let unasked = || RegisterError::NoStream {
            resource: self.name.clone(),
        };
        in_time.then_some(session).ok_or_else(unasked)
    }

    fn serve(&mut self) -> Result<PluginServer, RegisterError> {
        self.number += 1;
        let served = PluginServer::serve(&self.name, self.number, &self.shared, &self.stop);
        served.map_err(|source| RegisterError::Serve {
            resource: self.name.clone(),
            source,
        })
    }

    /// Monitors a working session and returns why it ended.
    pub(super) async fn monitor(
        &mut self,
        session: &PluginServer,
        kubelet: &KubeletRun,
    ) -> ServerExit {
        let mut streams = session.streams.clone();
        let (name, root) = (&self.name, &self.shared.root);
        let gone = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        let socket_there = || root.stat(&session.socket).is_ok_and(|stat| stat.is_some());
        // A socket that the watcher found stays valid for the next kubelet; the end of this one shows in the
        // stream.
        let by_socket = self.shared.registering == RegistrationMode::BySocket;
        let replaced = |now: &Option<KubeletRun>| {
            now.as_ref().filter(|_| by_socket).is_some_and(|now| {
                now.life != kubelet.life || now.repair != kubelet.repair && !socket_there()
            })
        };
        let mut inventory = self.shared.inventory.clone();
        let changed = |now: &Arc<Inventory>| !gone(now) && options(now, name) != session.options;
        // Safe to drop, all of them: they only read the latest values.
        tokio::select! {
            () = async {
                // An error means that the agent is stopping.
                let _ = inventory.wait_for(changed).await;
                self.changes.wait().await;
            } => ServerExit::Changed,
            _ = self.shared.kubelet.wait_for(replaced) => ServerExit::NewKubelet,
            ended = streams.wait_for(|streams| streams.open == 0) => match ended {
                Ok(_) => ServerExit::Unheard,
                Err(_) => ServerExit::Stopped,
            },
            _ = self.shared.inventory.wait_for(gone) => ServerExit::Withdrawn,
        }
    }

    /// Records and logs why the resource is no longer registered.
    pub(super) fn record_lost(&self, ended: &ServerExit) {
        let why = match ended {
            ServerExit::NewKubelet => "the kubelet was restarted",
            ServerExit::Unheard => "the kubelet closed the ListAndWatch stream",
            ServerExit::Changed => "it is about to be registered again",
            ServerExit::Withdrawn => "it is no longer offered",
            ServerExit::Stopped => "the agent is stopping",
        };
        self.shared.board.lost(&self.name, why);
    }

    /// Ends a session. A kubelet before 1.37 that sees the old stream end *after* the next registration disconnects
    /// the new one, so with a running kubelet the old one has to end first.
    pub(super) async fn finish(&self, session: PluginServer, ended: &ServerExit) {
        self.record_lost(ended);
        if matches!(ended, ServerExit::Withdrawn) {
            let mut streams = session.streams.clone();
            let read = streams.wait_for(|streams| streams.open == 0);
            // The feed has sent the empty list; the kubelet does not end the stream by itself.
            let _ = timeout(WITHDRAWAL_GRACE, read).await;
        }
        let mut streams = session.streams.clone();
        drop(session);
        let closed = streams.wait_for(|streams| streams.open == 0);
        // Streams to a kubelet that has ended close by themselves; nothing depends on it.
        let _ = timeout(Duration::from_millis(100), closed).await;
    }
}
