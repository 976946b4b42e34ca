//! Examines the kubelet's socket: whether it belongs to a new kubelet, and whether a kubelet
//! answers on it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

use super::{DIRECTORY, Directory, KUBELET_SOCKET};
use crate::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    kubelet::plugin::Kubelet,
    root::{Identity, Kind},
};

/// Between `bind` and `listen` a socket refuses connections. The kubelet needs well below a
/// millisecond for it; two seconds allow for a machine that is busy starting.
const DIAL_WAIT: Duration = Duration::from_secs(2);
const DIAL_FIRST_PAUSE: Duration = Duration::from_millis(1);
const DIAL_LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Retry for a socket that does not answer; a socket that a new kubelet creates also causes an
/// event.
const REDIAL: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Identifies a socket file; each kubelet creates a new one.
pub(super) type SocketIdentity = (Identity, (i64, u32));

/// The removal of the old socket and the creation of the new one may be reported as two events, and
/// the first of them may already find the new socket. No kubelet ends and starts again within this
/// time.
const TOLD_TWICE: Duration = Duration::from_secs(1);

/// When to dial a socket again that did not answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Redial {
    pub(super) at: Option<Instant>,
    failures: u32,
}

/// The result of one attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knock {
    Answered,
    Nobody,
    /// The attempt failed for another reason, or the socket's queue is full.
    Unknown,
}

impl Directory {
    fn socket(&self) -> Option<SocketIdentity> {
        let stat = self.root.stat(&Self::path(KUBELET_SOCKET)?).ok()??;
        (stat.kind == Kind::Socket).then_some((stat.identity, stat.mtime))
    }

    /// Checks the kubelet's socket. Dials it when it is a different one, or when it was created
    /// again (`came`): file systems reuse inode numbers at once.
    pub(super) async fn look_anew(&mut self, came: bool) {
        let Some(now) = self.socket() else {
            self.seen = None;
            self.redial = Redial::default();
            self.kubelet.send_replace(None);
            self.absent(&format!(
                "kubelet not found: missing {DIRECTORY}/{KUBELET_SOCKET}"
            ));
            return;
        };
        let life = self.kubelet.borrow().as_ref().map(|known| known.noticed);
        if self.seen == Some(now) && !(came && is_another(life.map(|noticed| noticed.elapsed()))) {
            return;
        }
        let noticed = Instant::now();
        self.seen = Some(now);
        self.repair_at = None;
        match self.dial().await {
            Some(channel) => {
                self.life += 1;
                self.redial = Redial::default();
                self.board.presence(None);
                let (life, repair) = (self.life, 0);
                self.kubelet.send_replace(Some(Kubelet {
                    life,
                    repair,
                    channel,
                    noticed,
                }));
            }
            None => self.away(),
        }
    }

    /// Records that no kubelet answers, and schedules a retry: a later `listen` on the same socket
    /// causes no event.
    fn away(&mut self) {
        self.kubelet.send_replace(None);
        self.absent("kubelet not running: no server on its socket");
        let Redial { failures, .. } = self.redial;
        self.redial = Redial {
            at: Some(Instant::now() + REDIAL.wait(failures, jitter())),
            failures: failures.saturating_add(1),
        };
    }

    /// Retries a socket that did not answer.
    pub(super) async fn dial_again(&mut self) {
        self.redial.at = None;
        match self.knock() {
            Knock::Answered => self.look_anew(true).await,
            Knock::Nobody | Knock::Unknown => self.away(),
        }
    }

    fn knock(&self) -> Knock {
        let Some(path) = Self::path(KUBELET_SOCKET) else {
            return Knock::Nobody;
        };
        match self.root.connect_unix(&path) {
            Ok(_) => Knock::Answered,
            Err(error) if error.is_not_found() || error.is_refused() => Knock::Nobody,
            Err(error) => {
                tracing::debug!("the kubelet's socket: {}", chain(&error));
                Knock::Unknown
            }
        }
    }

    /// Connects, with retries up to [`DIAL_WAIT`].
    async fn dial(&self) -> Option<Channel> {
        // The connector resolves the address itself, so resolve links inside the root first.
        let path = self.root.canonical(&Self::path(KUBELET_SOCKET)?).ok()?;
        let address = format!("unix:{}", self.root.host_path(&path).display());
        let endpoint = Endpoint::from_shared(address).ok()?;
        let (deadline, mut pause) = (Instant::now() + DIAL_WAIT, DIAL_FIRST_PAUSE);
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Some(channel),
                Err(error) if Instant::now() >= deadline => {
                    tracing::debug!(%error, "the kubelet's socket does not respond");
                    return None;
                }
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(DIAL_LONGEST_PAUSE);
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
        if self.knock() == Knock::Nobody {
            self.away();
        }
    }
}

/// Whether a socket that was created, and looks like the previous one, belongs to another kubelet.
/// `ago` is how long ago the previous one was noticed; `None` if no kubelet answered on it.
fn is_another(ago: Option<Duration>) -> bool {
    ago.is_none_or(|ago| ago >= TOLD_TWICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_that_is_told_of_twice_is_one_kubelet() {
        assert!(!is_another(Some(Duration::from_millis(20))));
        // Inode numbers are reused at once.
        assert!(is_another(Some(Duration::from_secs(2))));
        assert!(is_another(None), "it was dialled too early");
    }
}
