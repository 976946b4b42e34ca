//! The kubelet's socket: whether it is another one, and whether somebody answers on it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

use super::{DIRECTORY, Directory, KUBELET_SOCKET};
use crate::{
    backoff::{Backoff, jitter},
    kubelet::plugin::Kubelet,
    root::{Identity, Kind},
    telemetry::chain,
};

/// Between `bind` and `listen` a socket refuses connections. The kubelet needs well below a
/// millisecond for it; two seconds allow for a machine that is busy starting.
const DIAL_WAIT: Duration = Duration::from_secs(2);
const DIAL_FIRST_PAUSE: Duration = Duration::from_millis(1);
const DIAL_LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often a socket is tried on which nobody answers; one that a new kubelet makes is told of besides.
const REDIAL: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Which socket it is; another kubelet makes another one.
pub(super) type SocketIdentity = (Identity, (i64, u32));

/// The old socket's end and the new one's coming may be told one after the other; then the new one is found at
/// the first already. No kubelet ends and starts within this time.
const TOLD_TWICE: Duration = Duration::from_secs(1);

/// When a socket is dialled again on which nobody answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Redial {
    pub(super) at: Option<Instant>,
    failures: u32,
}

/// What comes of one attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knock {
    Answered,
    Nobody,
    /// It could not be tried, or its queue is full.
    Unknown,
}

impl Directory {
    fn socket(&self) -> Option<SocketIdentity> {
        let stat = self.root.stat(&Self::path(KUBELET_SOCKET)?).ok()??;
        (stat.kind == Kind::Socket).then_some((stat.identity, stat.mtime))
    }

    /// Looks at the kubelet's socket; dials it when it is another one, or when it `came`: file
    /// systems use inode numbers again at once.
    pub(super) async fn look_anew(&mut self, came: bool) {
        let Some(now) = self.socket() else {
            self.seen = None;
            self.redial = Redial::default();
            self.kubelet.send_replace(None);
            self.absent(&format!(
                "no kubelet here: there is no {DIRECTORY}/{KUBELET_SOCKET}"
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

    /// Nobody answers. Whoever does later on the same socket makes no event of the directory.
    fn away(&mut self) {
        self.kubelet.send_replace(None);
        self.absent("no kubelet here: nobody answers on its socket");
        let Redial { failures, .. } = self.redial;
        self.redial = Redial {
            at: Some(Instant::now() + REDIAL.wait(failures, jitter())),
            failures: failures.saturating_add(1),
        };
    }

    /// Somebody may answer by now.
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

    /// Connects, again and again for a while.
    async fn dial(&self) -> Option<Channel> {
        // The address is resolved by the connector; links on the way are resolved in the root.
        let path = self.root.canonical(&Self::path(KUBELET_SOCKET)?).ok()?;
        let address = format!("unix:{}", self.root.host_path(&path).display());
        let endpoint = Endpoint::from_shared(address).ok()?;
        let (deadline, mut pause) = (Instant::now() + DIAL_WAIT, DIAL_FIRST_PAUSE);
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Some(channel),
                Err(error) if Instant::now() >= deadline => {
                    tracing::debug!(%error, "the kubelet's socket does not answer");
                    return None;
                }
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(DIAL_LONGEST_PAUSE);
        }
    }

    /// A resource's stream ended: is the kubelet still there? Its death is no event of the
    /// directory, because the socket file stays.
    pub(super) fn probe(&mut self) {
        if self.kubelet.borrow().is_none() {
            return;
        }
        // A kubelet with too much to do, or an agent with too many files open, is no kubelet that is gone.
        if self.knock() == Knock::Nobody {
            self.away();
        }
    }
}

/// Whether a socket that came, and looks like the one before, is that of another kubelet; that one was noticed so
/// long `ago`, and is none where nobody answered on it.
fn is_another(ago: Option<Duration>) -> bool {
    ago.is_none_or(|ago| ago >= TOLD_TWICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_that_is_told_of_twice_is_one_kubelet() {
        assert!(!is_another(Some(Duration::from_millis(20))));
        // Inode numbers are used again at once.
        assert!(is_another(Some(Duration::from_secs(2))));
        assert!(is_another(None), "it was dialled too early");
    }
}
