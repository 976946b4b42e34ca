//! Examines the kubelet's socket: whether it belongs to a new kubelet, and whether a kubelet
//! answers on it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

use super::{DEVICE_PLUGIN_DIR, KUBELET_SOCKET, PluginDirTask};
use crate::kubelet::plugin_deps::KubeletRun;
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};
use machinist_rootfs::{FileKind, ObjectIdentity};

/// Between `bind` and `listen` a socket refuses connections. The kubelet needs well below a
/// millisecond for it; two seconds allow for a machine that is busy starting.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_DIAL_BACKOFF: Duration = Duration::from_millis(1);
const MAX_DIAL_BACKOFF: Duration = Duration::from_millis(50);
/// Retry for a socket that does not answer; a socket that a new kubelet creates also causes an
/// event.
const REDIAL_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Identifies a socket file; each kubelet creates a new one.
pub(super) type SocketIdentity = (ObjectIdentity, (i64, u32));

/// The removal of the old socket and the creation of the new one may be reported as two events, and
/// the first of them may already find the new socket. No kubelet ends and starts again within this
/// time.
const DUPLICATE_EVENT_WINDOW: Duration = Duration::from_secs(1);

/// When to dial a socket again that did not answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedialSchedule {
    pub(super) at: Option<Instant>,
    failures: u32,
}

/// The result of one attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialOutcome {
    Answered,
    NoServer,
    /// The attempt failed for another reason, or the socket's queue is full.
    Unknown,
}

impl PluginDirTask {
    fn socket(&self) -> Option<SocketIdentity> {
        let stat = self.root.stat(&Self::path(KUBELET_SOCKET)?).ok()??;
        (stat.kind == FileKind::Socket).then_some((stat.identity, stat.mtime))
    }

    /// Checks the kubelet's socket. Dials it when it is a different one, or when it was created
    /// again (`came`): file systems reuse inode numbers at once.
    pub(super) async fn check_socket(&mut self, socket_created: bool) {
        let Some(now) = self.socket() else {
            self.last_socket = None;
            self.redial = RedialSchedule::default();
            self.kubelet.send_replace(None);
            self.record_absent(&format!(
                "kubelet not found: missing {DEVICE_PLUGIN_DIR}/{KUBELET_SOCKET}"
            ));
            return;
        };
        let generation = self.kubelet.borrow().as_ref().map(|known| known.noticed);
        if self.last_socket == Some(now)
            && !(socket_created && is_another(generation.map(|noticed| noticed.elapsed())))
        {
            return;
        }
        let noticed = Instant::now();
        self.last_socket = Some(now);
        self.repair_at = None;
        match self.dial().await {
            Some(channel) => {
                self.generation += 1;
                self.redial = RedialSchedule::default();
                self.status_writer.presence(None);
                let (generation, socket_losses) = (self.generation, 0);
                self.kubelet.send_replace(Some(KubeletRun {
                    generation,
                    socket_losses,
                    channel,
                    noticed,
                }));
            }
            None => self.record_unreachable(),
        }
    }

    /// Records that no kubelet answers, and schedules a retry: a later `listen` on the same socket
    /// causes no event.
    fn record_unreachable(&mut self) {
        self.kubelet.send_replace(None);
        self.record_absent("kubelet not running: no server on its socket");
        let RedialSchedule { failures, .. } = self.redial;
        self.redial = RedialSchedule {
            at: Some(Instant::now() + REDIAL_BACKOFF.wait(failures, jitter())),
            failures: failures.saturating_add(1),
        };
    }

    /// Retries a socket that did not answer.
    pub(super) async fn redial(&mut self) {
        self.redial.at = None;
        match self.test_connection() {
            DialOutcome::Answered => self.check_socket(true).await,
            DialOutcome::NoServer | DialOutcome::Unknown => self.record_unreachable(),
        }
    }

    fn test_connection(&self) -> DialOutcome {
        let Some(path) = Self::path(KUBELET_SOCKET) else {
            return DialOutcome::NoServer;
        };
        match self.root.connect_unix(&path) {
            Ok(_) => DialOutcome::Answered,
            Err(error) if error.is_not_found() || error.is_refused() => DialOutcome::NoServer,
            Err(error) => {
                tracing::debug!("the kubelet's socket: {}", chain(&error));
                DialOutcome::Unknown
            }
        }
    }

    /// Connects, with retries up to [`DIAL_TIMEOUT`].
    async fn dial(&self) -> Option<Channel> {
        // The connector resolves the address itself, so resolve links inside the root first.
        let path = self.root.canonical(&Self::path(KUBELET_SOCKET)?).ok()?;
        let address = format!("unix:{}", self.root.host_path(&path).display());
        let endpoint = Endpoint::from_shared(address).ok()?;
        let (deadline, mut pause) = (Instant::now() + DIAL_TIMEOUT, MIN_DIAL_BACKOFF);
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Some(channel),
                Err(error) if Instant::now() >= deadline => {
                    tracing::debug!(%error, "the kubelet's socket does not respond");
                    return None;
                }
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(MAX_DIAL_BACKOFF);
        }
    }

    /// Called when a resource's stream ended: checks whether the kubelet still runs. Its end causes
    /// no event in the directory, because the socket file stays.
    pub(super) fn probe(&mut self) {
        if self.kubelet.borrow().is_none() {
            return;
        }
        // An overloaded kubelet, or an agent with too many open files, does not mean that the
        // kubelet has ended.
        if self.test_connection() == DialOutcome::NoServer {
            self.record_unreachable();
        }
    }
}

/// Whether a socket that was created, and looks like the previous one, belongs to another kubelet.
/// `ago` is how long ago the previous one was noticed; `None` if no kubelet answered on it.
fn is_another(ago: Option<Duration>) -> bool {
    ago.is_none_or(|ago| ago >= DUPLICATE_EVENT_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_events_of_one_socket_are_one_kubelet() {
        assert!(!is_another(Some(Duration::from_millis(20))));
        // Inode numbers are reused at once.
        assert!(is_another(Some(Duration::from_secs(2))));
        assert!(is_another(None), "it was dialled too early");
    }
}
