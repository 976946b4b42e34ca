//! One session stream of a vendor, from its Hello to its final status.

use std::{pin::pin, sync::Arc};

use prost::Message as _;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    api::v1::Hello,
    connection::{SessionTracker, VendorPeer},
    lazy_messages::{self, LazyFromVendor},
    limits::{
        CONGESTION_TIMEOUT, HELLO_TIMEOUT, LATE_MESSAGE_GRACE, MAX_VENDOR_MESSAGE_BYTES,
        MESSAGES_PER_SECOND, READ_AHEAD_MESSAGES, SESSION_IDLE_TIMEOUT, SMALL_MESSAGE_BYTES,
        SMALL_SNAPSHOT_DEVICES,
    },
    task_messages::{AcceptedSession, PendingHello, SessionMessage, ToVendor, VendorEvent},
};
use machinist_base::rate_limit::RateLimiter;

/// One stream. It reads the next message after the current one was handled.
pub(super) struct VendorSession {
    pub(super) peer: VendorPeer,
    pub(super) messages: Streaming<LazyFromVendor>,
    pub(super) to_vendor: ToVendor,
    pub(super) events: mpsc::Sender<VendorEvent>,
    pub(super) stop: CancellationToken,
}

/// Marks the connection's session as ended, however it ends.
struct SessionEndGuard(Arc<SessionTracker>);

impl Drop for SessionEndGuard {
    fn drop(&mut self) {
        self.0.ended.cancel();
    }
}

impl VendorSession {
    /// Runs the session to its end and sends the final status.
    pub(super) async fn run(mut self) {
        let _over = SessionEndGuard(Arc::clone(&self.peer.session_state));
        let stop = self.stop.clone();
        let last = tokio::select! {
            // When a vendor is removed, its session ends before its socket: report the first
            // reason.
            biased;
            // Safe to drop: the vendor sends messages that were not handled again after it
            // reconnects.
            last = self.run_stream() => last,
            () = stop.cancelled() => Status::unavailable("the agent is stopping"),
        };
        // A full queue means a vendor that does not read, so the status may be dropped.
        let _ = self.to_vendor.try_send(Err(last));
    }

    async fn run_stream(&mut self) -> Status {
        let AcceptedSession { number, mut end } = match self.open().await {
            Ok(accepted) => accepted,
            Err(refused) => return refused,
        };
        self.peer.session_state.accepted.cancel();
        let last = tokio::select! {
            // Safe to drop: the session is over, and further messages are not needed.
            Ok(last) = &mut end => return last,
            last = self.handle_messages(number) => last,
        };
        let why = last.message().to_owned();
        // If the vendor's task has ended, the event is not needed.
        let _ = self
            .events
            .send(VendorEvent::SessionEnded(number, why))
            .await;
        last
    }

    /// Reads the first message, which has to be Hello.
    async fn read_hello(&mut self) -> Result<Hello, Status> {
        let message = timeout(HELLO_TIMEOUT, self.next()).await;
        let late =
            |_| Status::deadline_exceeded(format!("no Hello within {} s", HELLO_TIMEOUT.as_secs()));
        match message.map_err(late)??.said {
            Some(lazy_messages::LazyPayload::Hello(hello)) => Ok(hello),
            _ => Err(Status::invalid_argument("the first message is not Hello")),
        }
    }

    async fn open(&mut self) -> Result<AcceptedSession, Status> {
        let hello = self.read_hello().await.inspect_err(|why| {
            // A client that disconnects before its Hello made no mistake; and if the task's queue
            // is full, the event may be dropped.
            if !matches!(why.code(), Code::Ok | Code::Cancelled) {
                let reason = format!("session rejected: {}", why.message());
                let _ = self.events.try_send(VendorEvent::Refused(reason));
            }
        })?;
        let (reply, answer) = oneshot::channel();
        let pending = PendingHello {
            hello,
            user: self.peer.user,
            process: self.peer.process,
            to: self.to_vendor.clone(),
            reply,
        };
        let undeclared = || Status::unavailable("this vendor is no longer declared");
        let sent = self.events.send(VendorEvent::HelloReceived(pending)).await;
        sent.map_err(|_| undeclared())?;
        answer.await.map_err(|_| undeclared())?
    }

    /// Reads ahead while a message is being handled, as long as the messages are small: HTTP/2 ends
    /// a connection with many small unread frames, without an error message.
    async fn handle_messages(&mut self, number: u64) -> Status {
        let (pump, received) = mpsc::channel(READ_AHEAD_MESSAGES);
        let forwarding = MessagePump {
            number,
            events: self.events.clone(),
            received,
        };
        let (reading, forwarding) = (self.read_messages(pump), forwarding.run());
        let mut forwarding = pin!(forwarding);
        let read = tokio::select! {
            // Safe to drop: the session is over.
            Some(last) = &mut forwarding => return last,
            read = reading => read,
        };
        match read {
            // Messages that arrived before the break are still handled.
            Ok(stream_error) => forwarding.await.unwrap_or(stream_error),
            Err(flood) => flood,
        }
    }

    /// Forwards messages until the stream ends; an error when too many arrive.
    async fn read_messages(
        &mut self,
        pump: mpsc::Sender<ReceivedMessage>,
    ) -> Result<Status, Status> {
        loop {
            let said = match self.next_or_timeout().await {
                Ok(said) => said,
                Err(stream_error) => return Ok(stream_error),
            };
            let (done, handled) = oneshot::channel();
            let (small, received) = (is_small(&said), ReceivedMessage { said, _done: done });
            pump.try_send(received).map_err(|_| flood())?;
            if !small {
                // Nothing is read meanwhile. The sender is dropped when the message is handled,
                // which shows as an error.
                let _ = handled.await;
            }
        }
    }

    /// The next message, or an error after too long a silence.
    async fn next_or_timeout(&mut self) -> Result<LazyFromVendor, Status> {
        if let Ok(received) = timeout(SESSION_IDLE_TIMEOUT, self.next()).await {
            return received;
        }
        // If this process was suspended meanwhile, messages may have arrived that were not read
        // yet.
        let received = timeout(LATE_MESSAGE_GRACE, self.next()).await;
        received.unwrap_or_else(|_| {
            let silence = SESSION_IDLE_TIMEOUT.as_secs();
            Err(Status::deadline_exceeded(format!(
                "no message received for {silence} s"
            )))
        })
    }

    /// The next message. The end of the stream is an error, too.
    async fn next(&mut self) -> Result<LazyFromVendor, Status> {
        match self.messages.message().await {
            Ok(Some(said)) => Ok(said),
            Ok(None) => Err(Status::ok("it closed its session")),
            Err(status) if status.code() == Code::OutOfRange => Err(Status::resource_exhausted(
                format!("a message is larger than {MAX_VENDOR_MESSAGE_BYTES} bytes"),
            )),
            // The transport has several codes for this; only that the vendor disconnected matters.
            Err(status) if matches!(status.code(), Code::Cancelled | Code::Unknown) => {
                Err(Status::cancelled("its connection was lost"))
            }
            Err(status) => Err(Status::new(status.code(), status.message())),
        }
    }
}

/// Handles a vendor's messages at the allowed rate.
struct MessagePump {
    number: u64,
    events: mpsc::Sender<VendorEvent>,
    received: mpsc::Receiver<ReceivedMessage>,
}

/// One message; dropped when it is handled.
struct ReceivedMessage {
    said: LazyFromVendor,
    _done: oneshot::Sender<()>,
}

impl MessagePump {
    /// Runs until the stream ends; returns the status if the session has to end early.
    async fn run(mut self) -> Option<Status> {
        let mut rate = RateLimiter::new(MESSAGES_PER_SECOND);
        // Since when every message has had to wait.
        let mut congested_since = None;
        while let Some(received) = self.received.recv().await {
            if rate.take() {
                congested_since = None;
            } else if congested_since.get_or_insert_with(Instant::now).elapsed()
                < CONGESTION_TIMEOUT
            {
                rate.wait().await;
            } else {
                return Some(flood());
            }
            if let Err(last) = self.forward(received).await {
                return Some(last);
            }
        }
        None
    }

    async fn forward(
        &self,
        ReceivedMessage { said, _done }: ReceivedMessage,
    ) -> Result<(), Status> {
        let said = match said.said {
            Some(lazy_messages::LazyPayload::Snapshot(snapshot)) => {
                let bytes = snapshot.encoded_len();
                SessionMessage::Snapshot(snapshot, bytes)
            }
            Some(lazy_messages::LazyPayload::Answer(answer)) => SessionMessage::Answer(answer),
            Some(lazy_messages::LazyPayload::Heartbeat(beat)) => SessionMessage::Heartbeat(beat),
            Some(lazy_messages::LazyPayload::Hello(_)) => {
                return Err(Status::invalid_argument(
                    "Hello may be sent only once in a session",
                ));
            }
            None => {
                return Err(Status::invalid_argument("unknown message type"));
            }
        };
        let undeclared = || Status::unavailable("this vendor is no longer declared");
        let (done, handled) = oneshot::channel();
        let sent = self
            .events
            .send(VendorEvent::MessageReceived(self.number, said, done))
            .await;
        sent.map_err(|_| undeclared())?;
        handled.await.map_err(|_| undeclared())
    }
}

/// Whether a message is small both encoded and decoded; a few bytes of only empty parts would grow
/// when decoded.
fn is_small(said: &LazyFromVendor) -> bool {
    let plain = match &said.said {
        Some(lazy_messages::LazyPayload::Snapshot(snapshot)) => {
            snapshot.devices.len() <= SMALL_SNAPSHOT_DEVICES
        }
        Some(lazy_messages::LazyPayload::Heartbeat(_)) => true,
        _ => false,
    };
    plain && said.encoded_len() <= SMALL_MESSAGE_BYTES
}

fn flood() -> Status {
    Status::resource_exhausted(format!(
        "more than {MESSAGES_PER_SECOND} messages in a second"
    ))
}
