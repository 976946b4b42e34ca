//! Tracks how far the request of a connection has come, so that connections with an unfinished header make way first.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// The empty line that ends a header.
const HEADER_END: &[u8; 4] = b"\r\n\r\n";

/// The longest header of a request that is read on: a client sends a few hundred bytes, and parsing long ones over and
/// over again would take the time of probes.
const MAX_ADMIN_HEADER_BYTES: usize = 16 << 10;

/// A connection as its listener knows it.
#[derive(Debug, Default)]
pub(super) struct OpenConnection {
    pub(super) token: CancellationToken,
    stage: AtomicU8,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RequestStage {
    /// The next request; nothing of it has arrived.
    Silent = 0,
    /// The rest of a header.
    Unfinished = 1,
    /// The answer.
    Answering = 2,
}

impl OpenConnection {
    pub(super) fn stage(&self) -> RequestStage {
        match self.stage.load(Ordering::Relaxed) {
            1 => RequestStage::Unfinished,
            2 => RequestStage::Answering,
            _ => RequestStage::Silent,
        }
    }

    /// Returns whether the stage is a new one.
    fn enter(&self, stage: RequestStage) -> bool {
        self.stage.swap(stage as u8, Ordering::Relaxed) != stage as u8
    }
}

/// The connections with an unfinished header, the oldest first. Some of them may have ended or gone on since.
#[derive(Clone, Debug, Default)]
pub(super) struct UnfinishedHeaders(Arc<Mutex<VecDeque<Weak<OpenConnection>>>>);

impl UnfinishedHeaders {
    /// Takes the oldest connection that still has an unfinished header.
    pub(super) fn take_oldest(&self) -> Option<Arc<OpenConnection>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let one = all.pop_front()?.upgrade();
            let one = one.filter(|one| one.stage() == RequestStage::Unfinished);
            if let Some(one) = one.filter(|one| !one.token.is_cancelled()) {
                return Some(one);
            }
        }
    }

    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.is_empty()
    }

    /// Removes ended connections where there are more than `most` entries.
    pub(super) fn tidy(&self, most: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > most {
            all.retain(|one| one.strong_count() > 0);
        }
    }

    fn add(&self, one: &Arc<OpenConnection>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(Arc::downgrade(one));
    }
}

/// Follows the bytes of one connection.
#[derive(Debug, Default)]
pub(super) struct RequestProgress {
    /// How many bytes of [`HEADER_END`] were read last.
    matched: usize,
    begun: bool,
    ended: bool,
    header_bytes: usize,
}

impl RequestProgress {
    /// Bytes of a request were read.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        self.begun |= !bytes.is_empty();
        for byte in bytes {
            if self.ended {
                break;
            }
            self.matched = match *byte == HEADER_END[self.matched] {
                true => self.matched + 1,
                false => usize::from(*byte == HEADER_END[0]),
            };
            self.ended = self.matched == HEADER_END.len();
            self.matched %= HEADER_END.len();
            self.header_bytes += 1;
        }
    }

    /// Whether the header is longer than any client needs.
    pub(super) const fn has_long_header(&self) -> bool {
        self.header_bytes > MAX_ADMIN_HEADER_BYTES
    }

    /// Bytes of an answer were written: bytes that are read after them are the next request.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Notes on the connection what it waits for.
    pub(super) fn note(&self, connection: &Arc<OpenConnection>, unfinished: &UnfinishedHeaders) {
        let stage = match (self.begun, self.ended) {
            (_, true) => RequestStage::Answering,
            (true, false) => RequestStage::Unfinished,
            (false, false) => RequestStage::Silent,
        };
        if connection.enter(stage) && stage == RequestStage::Unfinished {
            unfinished.add(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(parts: &[&[u8]]) -> RequestStage {
        let (connection, unfinished) = (Arc::default(), UnfinishedHeaders::default());
        let mut progress = RequestProgress::default();
        for part in parts {
            progress.read(part);
        }
        progress.note(&connection, &unfinished);
        let listed = unfinished.take_oldest().is_some();
        assert_eq!(listed, connection.stage() == RequestStage::Unfinished);
        connection.stage()
    }

    #[test]
    fn request_header_end_is_found_wherever_the_bytes_are_split() {
        use RequestStage::{Answering, Silent, Unfinished};
        for (parts, expected) in [
            (&[][..], Silent),
            (&[&b"GET / HTTP/1.1\r\n"[..]], Unfinished),
            (&[b"GET / HTTP/1.1\r\n\r\n"], Answering),
            (&[b"GET / HTTP/1.1\r", b"\n\r", b"\n"], Answering),
            (&[b"GET / HTTP/1.1\r\n\r", b"\r\n"], Unfinished),
            (&[b"GET / HTTP/1.1\r\r\n\r\nbody\r"], Answering),
        ] {
            assert_eq!(stage(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn only_the_header_of_one_request_counts_as_its_length() {
        let mut progress = RequestProgress::default();
        progress.read(b"POST / HTTP/1.1\r\n\r\n");
        progress.read(&[b'a'; 1 << 20]);
        assert!(!progress.has_long_header(), "a body");
        progress.answered();
        progress.read(&[b'a'; MAX_ADMIN_HEADER_BYTES]);
        assert!(!progress.has_long_header());
        progress.read(b"a");
        assert!(progress.has_long_header());
    }

    #[test]
    fn bytes_after_a_response_start_a_new_request() {
        let mut progress = RequestProgress::default();
        progress.read(b"GET / HTTP/1.1\r\n\r\n");
        progress.answered();
        let (connection, unfinished) = (Arc::default(), UnfinishedHeaders::default());
        progress.note(&connection, &unfinished);
        assert_eq!(connection.stage(), RequestStage::Silent);
        progress.read(b"GET");
        progress.note(&connection, &unfinished);
        assert_eq!(connection.stage(), RequestStage::Unfinished);
    }
}
