//! Limits that hold for every vendor.
//!
//! Together they bound the memory that one vendor can cause to 8 MiB: one message as it arrives
//! (0.5), of which one device at a time is decoded, small messages read ahead of it (0.4), the
//! first messages of three other connections (0.2), and accepted snapshots: 1 of text, about 150
//! bytes for each of 16,384 parts (2.4), and for each of 2,000 devices the data sent to the kubelet
//! and shown in the status (a kilobyte, 2). `tests/bench/run vendor` measures it.

use std::time::Duration;

/// Bytes of one encoded message.
pub(super) const MAX_VENDOR_MESSAGE_BYTES: usize = 512 * 1024;
/// Bytes of the first message.
pub(super) const MAX_HELLO_BYTES: usize = 64 * 1024;
/// Parts of one message; see `codec`.
pub(super) const MAX_MESSAGE_PARTS: usize = 8192;
/// Encoded bytes of all last accepted snapshots together.
pub(super) const MAX_SNAPSHOT_TOTAL_BYTES: usize = 1024 * 1024;
/// Parts of all last accepted snapshots together, counted as in one message.
pub(super) const MAX_SNAPSHOT_TOTAL_PARTS: usize = 2 * MAX_MESSAGE_PARTS;
/// Average messages per second; further ones wait to be read.
pub(super) const MESSAGES_PER_SECOND: u32 = 20;
/// The session ends when every message has had to wait for this long. A backlog that built up while
/// the machine was too busy to run the agent is worked off by then.
pub(super) const CONGESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of small messages read ahead of the one being handled: twenty seconds' worth at the
/// maximum rate, at most 0.4 MiB. HTTP/2 ends a connection with about 150 unread messages.
pub(super) const READ_AHEAD_MESSAGES: usize = 20 * MESSAGES_PER_SECOND as usize;
/// Bytes of a small message; nothing is read ahead of a larger one.
pub(super) const SMALL_MESSAGE_BYTES: usize = 256;
/// Maximum number of devices in a small snapshot.
pub(super) const SMALL_SNAPSHOT_DEVICES: usize = 16;
/// Average connections per second; further ones wait in the socket's queue. Stale connections of an
/// ended program wait there, too, ahead of the next one: a hundred of them must not use up the
/// grace period.
pub(super) const CONNECTIONS_PER_SECOND: u32 = 50;
/// Concurrent connections.
pub(super) const MAX_CONNECTIONS: usize = 4;
/// Additional concurrent connections of users who may not connect.
pub(super) const REFUSED_CONNECTIONS: usize = 1;
/// How long a connection may be without a session, and a session without a Hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a vendor has to send something.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The session ends after this long without a message.
pub(super) const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to read messages that had already arrived when [`SESSION_IDLE_TIMEOUT`] passed.
pub(super) const LATE_MESSAGE_GRACE: Duration = Duration::from_secs(1);
/// Concurrent open questions.
pub(super) const MAX_PENDING_REQUESTS: usize = 32;
/// Additional places for orders, so that a vendor busy with containers still receives a reboot's
/// quiesce.
pub(super) const RESERVED_ORDER_SLOTS: usize = 4;
/// Messages queued for a vendor that does not read: an answer to each message that it may send at
/// once, and all questions.
pub(super) const SEND_QUEUE_MESSAGES: usize =
    2 * MESSAGES_PER_SECOND as usize + MAX_PENDING_REQUESTS + RESERVED_ORDER_SLOTS;
/// The kubelet gives up on PreStartContainer after 30 s and retries.
pub(super) const PRE_START_TIMEOUT: Duration = Duration::from_secs(25);
/// A preferred allocation is only advice and not worth more of the kubelet's time.
pub(super) const PREFERRED_TIMEOUT: Duration = Duration::from_secs(2);
