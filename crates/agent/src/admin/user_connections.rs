//! Counts the connections of one user and decides which of them makes way for another one.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use super::request_progress::{OpenConnection, RequestProgress, RequestStage, UnfinishedHeaders};

/// The connections of one user, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UserConnections {
    /// Includes ended connections until they are removed later.
    pub(super) connections: VecDeque<Weak<OpenConnection>>,
    unfinished: UnfinishedHeaders,
    /// Its reference count gives the number of open connections.
    alive: Arc<()>,
}

impl UserConnections {
    pub(super) fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    pub(super) fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }

    pub(super) fn admit(&mut self, most: usize, by_progress: bool) -> ConnectionPermit {
        if self.alive() >= most
            && let Some(one) = self.select_to_close()
        {
            one.token.cancel();
        }
        // Only from time to time: each pass scans all of them, and a flood would cause one for each
        // connection.
        if self.connections.len() > 4 * most {
            self.connections.retain(|one| one.strong_count() > 0);
        }
        self.unfinished.tidy(4 * most);
        let connection = Arc::new(OpenConnection::default());
        self.connections.push_back(Arc::downgrade(&connection));
        ConnectionPermit {
            connection,
            unfinished: self.unfinished.clone(),
            by_progress,
            _alive: Arc::clone(&self.alive),
        }
    }

    /// Returns the connection to close: the oldest with an unfinished header, else the oldest that does not wait for
    /// its answer, else the oldest.
    fn select_to_close(&mut self) -> Option<Arc<OpenConnection>> {
        if let Some(one) = self.unfinished.take_oldest() {
            return Some(one);
        }
        let mut answering = None;
        for _ in 0..self.connections.len() {
            let known = self.connections.pop_front()?;
            let Some(one) = known.upgrade().filter(|one| !one.token.is_cancelled()) else {
                continue;
            };
            if one.stage() != RequestStage::Answering {
                return Some(one);
            }
            self.connections.push_back(known);
            answering = answering.or(Some(one));
        }
        answering
    }
}

/// The place of a connection in the count; released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    pub(super) connection: Arc<OpenConnection>,
    unfinished: UnfinishedHeaders,
    /// The progress of the requests decides which connection makes way.
    by_progress: bool,
    _alive: Arc<()>,
}

impl ConnectionPermit {
    /// Notes how far the request of this connection has come. Where the kernel reports the user, each has few
    /// connections, and the oldest makes way.
    pub(super) fn note(&self, progress: &RequestProgress) {
        if self.by_progress {
            progress.note(&self.connection, &self.unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4;

    fn with(permit: ConnectionPermit, bytes: &[u8]) -> ConnectionPermit {
        let mut progress = RequestProgress::default();
        progress.read(bytes);
        permit.note(&progress);
        permit
    }

    fn closed(permit: &ConnectionPermit) -> bool {
        permit.connection.token.is_cancelled()
    }

    #[test]
    fn above_the_limit_unfinished_requests_are_closed_before_pending_ones() {
        let mut all = UserConnections::default();
        let mut admit = |bytes: &[u8]| with(all.admit(MOST, true), bytes);
        let answering = admit(b"GET / HTTP/1.1\r\n\r\n");
        let silent = admit(b"");
        let unfinished = [admit(b"GET /"), admit(b"GET /")];
        let mut more = vec![admit(b"")];
        assert!(closed(&unfinished[0]) && !closed(&unfinished[1]) && !closed(&silent));
        drop(unfinished);
        more.extend([admit(b""), admit(b"")]);
        assert!(closed(&silent) && !closed(&answering));
        drop(silent);
        let last = admit(b"GET / HTTP/1.1\r\n\r\n");
        assert!(closed(&more[0]) && !closed(&answering) && !closed(&last));
    }

    #[test]
    fn above_the_limit_the_oldest_of_the_pending_requests_is_closed() {
        let mut all = UserConnections::default();
        let whole = b"GET / HTTP/1.1\r\n\r\n";
        let open: Vec<_> = (0..=MOST)
            .map(|_| with(all.admit(MOST, true), whole))
            .collect();
        let closed: Vec<bool> = open.iter().map(closed).collect();
        assert_eq!(closed, [true, false, false, false, false]);
    }
}
