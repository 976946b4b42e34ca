//! Limits that hold for every vendor.
//!
//! Together they bound the memory that one vendor can cause to 8 MiB: one message as it arrives
//! (0.5), of which one device at a time is decoded, small messages read ahead of it (0.4), the
//! first messages of three other connections (0.2), and accepted snapshots: 1 of text, about 150
//! bytes for each of 16,384 parts (2.4), and for each of 2,000 devices the data sent to the kubelet
//! and shown in the status (a kilobyte, 2). `tests/bench/run vendor` measures it.

use std::time::Duration;

/// Bytes of one encoded message.
pub(super) const MESSAGE_BYTES: usize = 512 * 1024;
/// Bytes of the first message.
pub(super) const HELLO_BYTES: usize = 64 * 1024;
/// Parts of one message; see `codec`.
pub(super) const MESSAGE_PARTS: usize = 8192;
/// Encoded bytes of all last accepted snapshots together.
pub(super) const KEPT_BYTES: usize = 1024 * 1024;
/// Parts of all last accepted snapshots together, counted as in one message.
pub(super) const KEPT_PARTS: usize = 2 * MESSAGE_PARTS;
/// Average messages per second; further ones wait to be read.
pub(super) const MESSAGES_PER_SECOND: u32 = 20;
/// The session ends when every message has had to wait for this long. A backlog that built up while
/// the machine was too busy to run the agent is worked off by then.
/// no time for us is dealt with by then.
pub(super) const CROWD: Duration = Duration::from_secs(5);
/// Number of small messages read ahead of the one being handled: twenty seconds' worth at the
/// maximum rate, at most 0.4 MiB. HTTP/2 ends a connection with about 150 unread messages.
pub(super) const BACKLOG: usize = 20 * MESSAGES_PER_SECOND as usize;
/// Bytes of a small message; nothing is read ahead of a larger one.
pub(super) const SMALL: usize = 256;
/// Maximum number of devices in a small snapshot.
pub(super) const FEW: usize = 16;
/// Average connections per second; further ones wait in the socket's queue. Stale connections of an
/// ended program wait there, too, ahead of the next one: a hundred of them must not use up the
/// grace period.
pub(super) const CONNECTIONS_PER_SECOND: u32 = 50;
/// Concurrent connections.
pub(super) const CONNECTIONS: usize = 4;
/// Additional concurrent connections of users who may not connect.
pub(super) const REFUSED_CONNECTIONS: usize = 1;
/// How long a connection may be without a session, and a session without a Hello.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(10);
/// The interval at which a vendor has to send something.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);
/// The session ends after this long without a message.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// Time to read messages that had already arrived when [`SILENCE`] passed.
pub(super) const LAST_LOOK: Duration = Duration::from_secs(1);
/// Concurrent open questions.
pub(super) const QUESTIONS: usize = 32;
/// Additional places for orders, so that a vendor busy with containers still receives a reboot's
/// quiesce.
pub(super) const ORDERS: usize = 4;
/// Messages queued for a vendor that does not read: an answer to each message that it may send at
/// once, and all questions.
pub(super) const UNREAD: usize = 2 * MESSAGES_PER_SECOND as usize + QUESTIONS + ORDERS;
/// The kubelet gives up on PreStartContainer after 30 s and retries.
pub(super) const PRE_START: Duration = Duration::from_secs(25);
/// A preferred allocation is only advice and not worth more of the kubelet's time.
pub(super) const PREFERRED: Duration = Duration::from_secs(2);
