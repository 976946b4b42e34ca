//! The numbers that hold for every vendor.
//!
//! Together they bound what one vendor can make the agent hold to 8 MiB: one message as it arrives (0.5), of which
//! one device at a time is decoded, small ones read ahead of it (0.4), the first messages of three other connections
//! (0.2), and what is kept of accepted snapshots: 1 of text, some 150 bytes for each of 16,384 parts (2.4), and of each
//! of 2,000 devices what the kubelet and people are told (a kilobyte, 2). `tests/bench/run vendor` measures it.

use std::time::Duration;

/// Bytes of one message as it is encoded.
pub(super) const MESSAGE_BYTES: usize = 512 * 1024;
/// Bytes of the first message.
pub(super) const HELLO_BYTES: usize = 64 * 1024;
/// Parts of one message; see `codec`.
pub(super) const MESSAGE_PARTS: usize = 8192;
/// Bytes of the last accepted snapshots together, as they were encoded.
pub(super) const KEPT_BYTES: usize = 1024 * 1024;
/// Parts of those, counted as those of a message are.
pub(super) const KEPT_PARTS: usize = 2 * MESSAGE_PARTS;
/// Messages in a second, over time; more wait to be read.
pub(super) const MESSAGES_PER_SECOND: u32 = 20;
/// How long each message may have to wait before that is the vendor's doing: what gathered while a busy machine had
/// no time for us is dealt with by then.
pub(super) const CROWD: Duration = Duration::from_secs(5);
/// Small messages that are read ahead of the one that is dealt with: what a vendor says in twenty seconds at its
/// measure. HTTP/2 has room for some 150 that nobody reads, and ends the connection then. Together 0.4 MiB at most.
pub(super) const BACKLOG: usize = 20 * MESSAGES_PER_SECOND as usize;
/// Bytes of a small message; beside a larger one nothing is read.
pub(super) const SMALL: usize = 256;
/// Devices of a small snapshot.
pub(super) const FEW: usize = 16;
/// Connections in a second, over time; more wait in the socket's queue. Those that a program left wait there, too,
/// before the next one: a hundred of them are not to cost it the grace.
pub(super) const CONNECTIONS_PER_SECOND: u32 = 50;
/// Connections at a time.
pub(super) const CONNECTIONS: usize = 4;
/// Connections at a time of users who may not connect, besides.
pub(super) const REFUSED_CONNECTIONS: usize = 1;
/// How long a connection may be without a session, and a session without a Hello.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(10);
/// How often a vendor says something.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);
/// After this long without a word the session ends.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// How long something may take to be seen that has come already.
pub(super) const LAST_LOOK: Duration = Duration::from_secs(1);
/// Questions that may be open at a time.
pub(super) const QUESTIONS: usize = 32;
/// Places that orders have besides: a vendor that is busy with containers hears of a reboot all the same.
pub(super) const ORDERS: usize = 4;
/// Messages that may wait for a vendor that does not read: an answer to each that it may send at once,
/// and all questions.
pub(super) const UNREAD: usize = 2 * MESSAGES_PER_SECOND as usize + QUESTIONS + ORDERS;
/// The kubelet waits 30 s for the hook before a start, then begins again.
pub(super) const PRE_START: Duration = Duration::from_secs(25);
/// Advice is not worth more of the kubelet's time.
pub(super) const PREFERRED: Duration = Duration::from_secs(2);
