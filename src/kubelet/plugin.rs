//! One resource towards the kubelet: serves it, registers it and monitors the registration.

use std::{error::Error as _, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};

use super::{
    Registering,
    api::v1beta1 as api,
    server::options,
    session::{ServeError, Session},
    state::Board,
};
use crate::{
    device::{Inventory, ResourceName, answer::Answerers},
    error_chain::chain,
    rate::Rate,
    root::Root,
    shutdown::Tasks,
};

/// The kubelet opens the stream from a separate task right after its answer to `Register`.
const STREAM_WAIT: Duration = Duration::from_secs(1);
/// `Register` returns only after the kubelet has dialled back, for which it takes ten seconds at
/// most.
const REGISTER_WAIT: Duration = Duration::from_secs(15);
/// The first wait after a failure; doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the kubelet has to read the emptied list before the stream ends.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// One run of the kubelet, as far as it can be observed.
#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    /// Incremented with every new socket.
    pub(super) life: u64,
    /// Incremented when our sockets vanished although the kubelet still runs.
    pub(super) repair: u64,
    /// Connected to the kubelet's socket; shared by all resources.
    pub(super) channel: Channel,
    /// When its socket was noticed.
    pub(super) noticed: Instant,
}

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    #[error("cannot serve {resource}")]
    Serve {
        resource: ResourceName,
        #[source]
        source: ServeError,
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

/// Shared by all resources.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) root: Root,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) answerers: Answerers,
    pub(super) registering: Registering,
    pub(super) kubelet: watch::Receiver<Option<Kubelet>>,
    /// Triggers a check whether the kubelet still answers.
    pub(super) doubt: Arc<Notify>,
    pub(super) board: Board,
    pub(super) tasks: Tasks,
}

/// The task of one resource.
pub(super) struct Resource {
    pub(super) name: ResourceName,
    pub(super) shared: Shared,
    pub(super) stop: CancellationToken,
    /// Registrations so far: each has a socket with its own name.
    number: u64,
    /// Limits re-registrations because of changed options: each one makes the kubelet count the
    /// resource as zero for a moment, so a source that flips its options must not cause many.
    changes: Rate,
}

/// Why a session ended.
pub(super) enum Ended {
    /// There is another kubelet, or our socket was removed.
    NewKubelet,
    /// The stream ended: the kubelet, running or not, no longer listens to us.
    Unheard,
    /// The options changed: the kubelet reads only at registration whether it has to call
    /// PreStartContainer.
    Changed,
    /// The resource is no longer offered.
    Withdrawn,
    Stopped,
}

impl Resource {
    pub(super) fn new(name: ResourceName, shared: Shared, stop: CancellationToken) -> Self {
        Self {
            name,
            shared,
            stop,
            number: 0,
            changes: Rate::every(Duration::from_secs(1), 3),
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
        let mut pause = FIRST_PAUSE;
        self.shared.board.begins(&self.name);
        loop {
            let Some(kubelet) = self.kubelet().await.filter(|_| !self.is_gone()) else {
                return;
            };
            let began = Instant::now();
            let once = match self.shared.registering {
                Registering::BySocket => self.once(&kubelet).await,
                Registering::ByWatcher => self.found_once(kubelet.clone()).await,
            };
            let ended = match once {
                Ok(ended) => {
                    // A session that lasted was no failure, whatever ended it.
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    ended
                }
                Err(error) => {
                    self.failed(&error);
                    Ended::Unheard
                }
            };
            match ended {
                Ended::Withdrawn | Ended::Stopped => return,
                Ended::NewKubelet | Ended::Changed => pause = FIRST_PAUSE,
                Ended::Unheard => {
                    self.shared.doubt.notify_one();
                    pause = self.pause(&kubelet, pause).await;
                }
            }
        }
    }

    /// One registration on the kubelet's own socket, from its beginning to its end.
    async fn once(&mut self, kubelet: &Kubelet) -> Result<Ended, RegisterError> {
        let session = self.register(kubelet).await?;
        self.taken(kubelet);
        let ended = self.stay(&session, kubelet).await;
        self.finish(session, &ended).await;
        Ok(ended)
    }

    /// Waits after a failure, at most until there is a new kubelet; returns the next delay.
    async fn pause(&mut self, failed: &Kubelet, pause: Duration) -> Duration {
        let mut kubelet = self.shared.kubelet.clone();
        let life = failed.life;
        let newer = kubelet.wait_for(|now| now.as_ref().is_some_and(|now| now.life != life));
        let name = &self.name;
        let gone = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        tokio::select! {
            // Safe to drop, all of them: they only read the latest values, and the other is a
            // timer.
            _ = newer => FIRST_PAUSE,
            _ = self.shared.inventory.wait_for(gone) => pause,
            () = sleep(pause) => (pause * 2).min(LONGEST_PAUSE),
        }
    }

    pub(super) fn taken(&self, kubelet: &Kubelet) {
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
    pub(super) async fn kubelet(&mut self) -> Option<Kubelet> {
        if self.shared.kubelet.borrow().is_none() {
            self.shared.board.waits(&self.name);
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
    async fn register(&mut self, kubelet: &Kubelet) -> Result<Session, RegisterError> {
        let mut session = self.serve()?;
        let request = api::RegisterRequest {
            version: api::VERSION.to_owned(),
            endpoint: session.socket.file_name().to_owned(),
            resource_name: self.name.to_string(),
            options: Some(session.options),
        };
        let mut client = api::registration_client::RegistrationClient::new(kubelet.channel.clone());
        match timeout(REGISTER_WAIT, client.register(request)).await {
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
        let in_time = matches!(timeout(STREAM_WAIT, asked).await, Ok(Ok(_)));
        let unasked = || RegisterError::NoStream {
            resource: self.name.clone(),
        };
        in_time.then_some(session).ok_or_else(unasked)
    }

    fn serve(&mut self) -> Result<Session, RegisterError> {
        self.number += 1;
        let served = Session::serve(&self.name, self.number, &self.shared, &self.stop);
        served.map_err(|source| RegisterError::Serve {
            resource: self.name.clone(),
            source,
        })
    }

    /// Monitors a working session and returns why it ended.
    pub(super) async fn stay(&mut self, session: &Session, kubelet: &Kubelet) -> Ended {
        let mut streams = session.streams.clone();
        let (name, root) = (&self.name, &self.shared.root);
        let gone = |inventory: &Arc<Inventory>| !inventory.resources.contains_key(name);
        let socket_there = || root.stat(&session.socket).is_ok_and(|stat| stat.is_some());
        // A socket that the watcher found stays valid for the next kubelet; the end of this one
        // shows in the stream.
        let by_socket = self.shared.registering == Registering::BySocket;
        let replaced = |now: &Option<Kubelet>| {
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
            } => Ended::Changed,
            _ = self.shared.kubelet.wait_for(replaced) => Ended::NewKubelet,
            ended = streams.wait_for(|streams| streams.open == 0) => match ended {
                Ok(_) => Ended::Unheard,
                Err(_) => Ended::Stopped,
            },
            _ = self.shared.inventory.wait_for(gone) => Ended::Withdrawn,
        }
    }

    /// Records and logs why the resource is no longer registered.
    pub(super) fn lost(&self, ended: &Ended) {
        let why = match ended {
            Ended::NewKubelet => "the kubelet was restarted",
            Ended::Unheard => "the kubelet closed the ListAndWatch stream",
            Ended::Changed => "it is about to be registered again",
            Ended::Withdrawn => "it is no longer offered",
            Ended::Stopped => "the agent is stopping",
        };
        self.shared.board.lost(&self.name, why);
    }

    /// Ends a session. A kubelet before 1.37 that sees the old stream end *after* the next
    /// registration disconnects the new one, so with a running kubelet the old one has to end
    /// first.
    pub(super) async fn finish(&self, session: Session, ended: &Ended) {
        self.lost(ended);
        if matches!(ended, Ended::Withdrawn) {
            let mut streams = session.streams.clone();
            let read = streams.wait_for(|streams| streams.open == 0);
            // The feed has sent the empty list; the kubelet does not end the stream by itself.
            let _ = timeout(WITHDRAWAL, read).await;
        }
        let mut streams = session.streams.clone();
        drop(session);
        let closed = streams.wait_for(|streams| streams.open == 0);
        // Streams to a kubelet that has ended close by themselves; nothing depends on it.
        let _ = timeout(Duration::from_millis(100), closed).await;
    }
}
