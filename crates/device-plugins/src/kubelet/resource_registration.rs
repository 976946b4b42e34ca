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
const MIN_REGISTER_BACKOFF: Duration = Duration::from_millis(50);
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
    Unresponsive,
    #[error("the kubelet registered {resource} but did not call ListAndWatch")]
    NoStream { resource: ResourceName },
    #[error("the kubelet's plugin watcher did not find {resource}")]
    NotFoundByWatcher { resource: ResourceName },
}

/// The task of one resource.
pub(super) struct ResourceTask {
    pub(super) name: ResourceName,
    pub(super) deps: PluginDeps,
    pub(super) stop: CancellationToken,
    /// Registrations so far: each has a socket with its own name.
    registrations: u64,
    /// Limits re-registrations because of changed options: each one makes the kubelet count the resource as zero
    /// for a moment, so a source that flips its options must not cause many.
    option_changes: RateLimiter,
}

/// Why a session ended.
pub(super) enum ServerExit {
    /// There is another kubelet, or our socket was removed.
    NewKubelet,
    /// The stream ended: the kubelet, running or not, no longer listens to us.
    StreamEnded,
    /// The options changed: the kubelet reads only at registration whether it has to call PreStartContainer.
    OptionsChanged,
    /// The resource is no longer offered.
    Withdrawn,
    Stopped,
}

impl ResourceTask {
    pub(super) fn new(name: ResourceName, deps: PluginDeps, stop: CancellationToken) -> Self {
        Self {
            name,
            deps,
            stop,
            registrations: 0,
            option_changes: RateLimiter::per_interval(Duration::from_secs(1), 3),
        }
    }

    /// Runs until the resource is removed or the agent stops; returns the name.
    pub(super) async fn run(mut self) -> ResourceName {
        let stop = self.stop.clone();
        tokio::select! {
            // Sessions stop serving and remove their socket when they are dropped.
            () = stop.cancelled() => {}
            () = self.run_registrations() => self.deps.status_writer.forget(&self.name),
        }
        self.name
    }

    /// Registers repeatedly, until the resource is removed.
    async fn run_registrations(&mut self) {
        let mut delay = MIN_REGISTER_BACKOFF;
        self.deps.status_writer.record_start(&self.name);
        loop {
            let Some(kubelet) = self.kubelet().await.filter(|_| !self.is_withdrawn()) else {
                return;
            };
            let began = Instant::now();
            let result = match self.deps.registering {
                RegistrationMode::BySocket => self.serve_and_register(&kubelet).await,
                RegistrationMode::ByWatcher => self.serve_until_removed(kubelet.clone()).await,
            };
            let ended = match result {
                Ok(ended) => {
                    // A session that lasted was no failure, whatever ended it.
                    if began.elapsed() > MAX_BACKOFF {
                        delay = MIN_REGISTER_BACKOFF;
                    }
                    ended
                }
                Err(error) => {
                    self.failed(&error);
                    ServerExit::StreamEnded
                }
            };
            match ended {
                ServerExit::Withdrawn | ServerExit::Stopped => return,
                ServerExit::NewKubelet | ServerExit::OptionsChanged => delay = MIN_REGISTER_BACKOFF,
                ServerExit::StreamEnded => {
                    self.deps.probe_request.notify_one();
                    delay = self.wait_before_retry(&kubelet, delay).await;
                }
            }
        }
    }

    /// One registration on the kubelet's own socket, from its beginning to its end.
    async fn serve_and_register(
        &mut self,
        kubelet: &KubeletRun,
    ) -> Result<ServerExit, RegisterError> {
        let server = self.register(kubelet).await?;
        self.record_registered(kubelet);
        let ended = self.monitor(&server, kubelet).await;
        self.finish(server, &ended).await;
        Ok(ended)
    }

    /// Waits after a failure, at most until there is a new kubelet; returns the next delay.
    async fn wait_before_retry(&mut self, failed: &KubeletRun, delay: Duration) -> Duration {
        let mut kubelet = self.deps.kubelet.clone();
        let generation = failed.generation;
        let newer =
            kubelet.wait_for(|now| now.as_ref().is_some_and(|now| now.generation != generation));
        let name = &self.name;
        let withdrawn = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        tokio::select! {
            // Safe to drop, all of them: they only read the latest values, and the other is a timer.
            _ = newer => MIN_REGISTER_BACKOFF,
            _ = self.deps.inventory.wait_for(withdrawn) => delay,
            () = sleep(delay) => (delay * 2).min(MAX_BACKOFF),
        }
    }

    pub(super) fn record_registered(&self, kubelet: &KubeletRun) {
        let after = kubelet.noticed.elapsed();
        self.deps.status_writer.registered(&self.name, after);
    }

    pub(super) fn failed(&self, error: &RegisterError) {
        let reason = chain(error);
        let (name, writer) = (&self.name, &self.deps.status_writer);
        if writer.failed(name, &reason)
            && let Some(suppressed) = writer.log_rates.take(name.as_str())
        {
            tracing::warn!(resource = %name, suppressed, "{name} is not registered: {reason}");
        }
    }

    /// Waits for a kubelet; `None` if the resource is removed first.
    pub(super) async fn kubelet(&mut self) -> Option<KubeletRun> {
        if self.deps.kubelet.borrow().is_none() {
            self.deps.status_writer.record_waiting(&self.name);
        }
        let (name, deps) = (&self.name, &mut self.deps);
        let withdrawn = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        tokio::select! {
            // Safe to drop: both only read the latest value.
            found = deps.kubelet.wait_for(Option::is_some) => found.ok()?.clone(),
            _ = deps.inventory.wait_for(withdrawn) => None,
        }
    }

    fn is_withdrawn(&self) -> bool {
        !self
            .deps
            .inventory
            .borrow()
            .resources
            .contains_key(&self.name)
    }

    /// Serves first, then registers, then waits for the kubelet to open the list stream.
    async fn register(&mut self, kubelet: &KubeletRun) -> Result<PluginServer, RegisterError> {
        let mut server = self.serve()?;
        let request = api::RegisterRequest {
            version: api::VERSION.to_owned(),
            endpoint: server.socket.file_name().to_owned(),
            resource_name: self.name.to_string(),
            options: Some(server.options),
        };
        let mut client = api::registration_client::RegistrationClient::new(kubelet.channel.clone());
        match timeout(REGISTER_TIMEOUT, client.register(request)).await {
            Ok(Ok(_)) => {}
            // The connection broke; the status was not sent by the kubelet.
            Ok(Err(status)) if status.code() == Code::Unavailable || status.source().is_some() => {
                return Err(RegisterError::Unresponsive);
            }
            Ok(Err(status)) => {
                let message = status.message().to_owned();
                return Err(RegisterError::Refused {
                    resource: self.name.clone(),
                    message,
                });
            }
            Err(_) => return Err(RegisterError::Unresponsive),
        }
        let stream_opened = server.streams.wait_for(|streams| streams.opened > 0);
        let in_time = matches!(timeout(STREAM_TIMEOUT, stream_opened).await, Ok(Ok(_)));
        let no_stream = || RegisterError::NoStream {
            resource: self.name.clone(),
        };
        in_time.then_some(server).ok_or_else(no_stream)
    }

    fn serve(&mut self) -> Result<PluginServer, RegisterError> {
        self.registrations += 1;
        let served = PluginServer::serve(&self.name, self.registrations, &self.deps, &self.stop);
        served.map_err(|source| RegisterError::Serve {
            resource: self.name.clone(),
            source,
        })
    }

    /// Monitors a working session and returns why it ended.
    pub(super) async fn monitor(
        &mut self,
        server: &PluginServer,
        kubelet: &KubeletRun,
    ) -> ServerExit {
        let mut streams = server.streams.clone();
        let (name, root) = (&self.name, &self.deps.root);
        let withdrawn = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        let socket_there = || root.stat(&server.socket).is_ok_and(|stat| stat.is_some());
        // A socket that the watcher found stays valid for the next kubelet; the end of this one shows in the
        // stream.
        let by_socket = self.deps.registering == RegistrationMode::BySocket;
        let replaced = |now: &Option<KubeletRun>| {
            now.as_ref().filter(|_| by_socket).is_some_and(|now| {
                now.generation != kubelet.generation
                    || now.socket_losses != kubelet.socket_losses && !socket_there()
            })
        };
        let mut inventory = self.deps.inventory.clone();
        let changed =
            |now: &Arc<Inventory>| !withdrawn(now) && options(now, name) != server.options;
        // Safe to drop, all of them: they only read the latest values.
        tokio::select! {
            () = async {
                // An error means that the agent is stopping.
                let _ = inventory.wait_for(changed).await;
                self.option_changes.wait().await;
            } => ServerExit::OptionsChanged,
            _ = self.deps.kubelet.wait_for(replaced) => ServerExit::NewKubelet,
            ended = streams.wait_for(|streams| streams.open == 0) => match ended {
                Ok(_) => ServerExit::StreamEnded,
                Err(_) => ServerExit::Stopped,
            },
            _ = self.deps.inventory.wait_for(withdrawn) => ServerExit::Withdrawn,
        }
    }

    /// Records and logs why the resource is no longer registered.
    pub(super) fn record_lost(&self, ended: &ServerExit) {
        let why = match ended {
            ServerExit::NewKubelet => "the kubelet was restarted",
            ServerExit::StreamEnded => "the kubelet closed the ListAndWatch stream",
            ServerExit::OptionsChanged => "it is about to be registered again",
            ServerExit::Withdrawn => "it is no longer offered",
            ServerExit::Stopped => "the agent is stopping",
        };
        self.deps.status_writer.lost(&self.name, why);
    }

    /// Ends a session. A kubelet before 1.37 that sees the old stream end *after* the next registration disconnects
    /// the new one, so with a running kubelet the old one has to end first.
    pub(super) async fn finish(&self, server: PluginServer, ended: &ServerExit) {
        self.record_lost(ended);
        if matches!(ended, ServerExit::Withdrawn) {
            let mut streams = server.streams.clone();
            let read = streams.wait_for(|streams| streams.open == 0);
            // The feed has sent the empty list; the kubelet does not end the stream by itself.
            let _ = timeout(WITHDRAWAL_GRACE, read).await;
        }
        let mut streams = server.streams.clone();
        drop(server);
        let closed = streams.wait_for(|streams| streams.open == 0);
        // Streams to a kubelet that has ended close by themselves; nothing depends on it.
        let _ = timeout(Duration::from_millis(100), closed).await;
    }
}
