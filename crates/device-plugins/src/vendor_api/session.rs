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
        CONGESTION_TIMEOUT, HELLO_TIMEOUT, LATE_MESSAGE_GRACE, MAX_MESSAGE_BYTES,
        MESSAGES_PER_SECOND, READ_AHEAD_MESSAGES, SESSION_IDLE_TIMEOUT, SMALL_MESSAGE_BYTES,
        SMALL_SNAPSHOT_DEVICES,
    },
    task_messages::{AcceptedSession, PendingHello, SessionMessage, ToVendor, VendorEvent},
};
use machinist_base::rate_limit::RateLimiter;

/// One stream. It reads the next message after the current one was handled.
pub(super) struct VendorSession {
    pub(super) peer: VendorPeer,
    pub(super) said: Streaming<LazyFromVendor>,
    pub(super) to: ToVendor,
    pub(super) events: mpsc::Sender<VendorEvent>,
    pub(super) stop: CancellationToken,
}

/// Marks the connection's session as ended, however it ends.
struct SessionEndGuard(Arc<SessionTracker>);

impl Drop for SessionEndGuard {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

impl VendorSession {
    /// Runs the session to its end and sends the final status.
    pub(super) async fn run(mut self) {
        let _over = SessionEndGuard(Arc::clone(&self.peer.stage));
        let stop = self.stop.clone();
        let last = tokio::select! {
            // When a vendor is removed, its session ends before its socket: report the first
            // reason.
            biased;
            // Safe to drop: the vendor sends messages that were not handled again after it
            // reconnects.
            last = self.talk() => last,
            () = stop.cancelled() => Status::unavailable("the agent is stopping"),
        };
        // A full queue means a vendor that does not read, so the status may be dropped.
        let _ = self.to.try_send(Err(last));
    }

    async fn talk(&mut self) -> Status {
        let AcceptedSession { number, mut end } = match self.hello().await {
            Ok(granted) => granted,
            Err(refused) => return refused,
        };
        self.peer.stage.open.cancel();
        let last = tokio::select! {
            // Safe to drop: the session is over, and further messages are not needed.
            Ok(last) = &mut end => return last,
            last = self.listen(number) => last,
        };
        let why = last.message().to_owned();
        // If the vendor's task has ended, the event is not needed.
        let _ = self.events.send(VendorEvent::Over(number, why)).await;
        last
    }

    /// Reads the first message, which has to be Hello.
    async fn first(&mut self) -> Result<Hello, Status> {
        let first = timeout(HELLO_TIMEOUT, self.next()).await;
        let late =
            |_| Status::deadline_exceeded(format!("no Hello within {} s", HELLO_TIMEOUT.as_secs()));
        match first.map_err(late)??.said {
            Some(lazy_messages::LazyPayload::Hello(hello)) => Ok(hello),
            _ => Err(Status::invalid_argument("the first message is not Hello")),
        }
    }

    async fn hello(&mut self) -> Result<AcceptedSession, Status> {
        let hello = self.first().await.inspect_err(|why| {
            // A client that disconnects before its Hello made no mistake; and if the task's queue
            // is full, the event may be dropped.
            if !matches!(why.code(), Code::Ok | Code::Cancelled) {
                let told = format!("session rejected: {}", why.message());
                let _ = self.events.try_send(VendorEvent::Refused(told));
            }
        })?;
        let (reply, answer) = oneshot::channel();
        let opening = PendingHello {
            hello,
            user: self.peer.user,
            process: self.peer.process,
            to: self.to.clone(),
            reply,
        };
        let gone = || Status::unavailable("this vendor is no longer declared");
        let asked = self.events.send(VendorEvent::Opened(opening)).await;
        asked.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Reads ahead while a message is being handled, as long as the messages are small: HTTP/2 ends
    /// a connection with many small unread frames, without an error message.
    async fn listen(&mut self, number: u64) -> Status {
        let (to, heard) = mpsc::channel(READ_AHEAD_MESSAGES);
        let hearing = MessagePump {
            number,
            events: self.events.clone(),
            heard,
        };
        let (reading, hearing) = (self.read(to), hearing.run());
        let mut hearing = pin!(hearing);
        let read = tokio::select! {
            // Safe to drop: the session is over.
            Some(last) = &mut hearing => return last,
            read = reading => read,
        };
        match read {
            // Messages that arrived before the break are still handled.
            Ok(broken) => hearing.await.unwrap_or(broken),
            Err(flood) => flood,
        }
    }

    /// Forwards messages until the stream ends; an error when too many arrive.
    async fn read(&mut self, to: mpsc::Sender<ReceivedMessage>) -> Result<Status, Status> {
        loop {
            let said = match self.speaks().await {
                Ok(said) => said,
                Err(broken) => return Ok(broken),
            };
            let (done, dealt_with) = oneshot::channel();
            let (small, heard) = (is_small(&said), ReceivedMessage { said, _done: done });
            to.try_send(heard).map_err(|_| flood())?;
            if !small {
                // Nothing is read meanwhile. The sender is dropped when the message is handled,
                // which shows as an error.
                let _ = dealt_with.await;
            }
        }
    }

    /// The next message, or an error after too long a silence.
    async fn speaks(&mut self) -> Result<LazyFromVendor, Status> {
        if let Ok(heard) = timeout(SESSION_IDLE_TIMEOUT, self.next()).await {
            return heard;
        }
        // If this process was suspended meanwhile, messages may have arrived that were not read
        // yet.
        let heard = timeout(LATE_MESSAGE_GRACE, self.next()).await;
        heard.unwrap_or_else(|_| {
            let silence = SESSION_IDLE_TIMEOUT.as_secs();
            Err(Status::deadline_exceeded(format!(
                "no message received for {silence} s"
            )))
        })
    }

    /// The next message. The end of the stream is an error, too.
    async fn next(&mut self) -> Result<LazyFromVendor, Status> {
        match self.said.message().await {
            Ok(Some(said)) => Ok(said),
            Ok(None) => Err(Status::ok("it closed its session")),
            Err(status) if status.code() == Code::OutOfRange => Err(Status::resource_exhausted(
                format!("a message is larger than {MAX_MESSAGE_BYTES} bytes"),
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
    heard: mpsc::Receiver<ReceivedMessage>,
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
        let mut crowded = None;
        while let Some(heard) = self.heard.recv().await {
            if rate.take() {
                crowded = None;
            } else if crowded.get_or_insert_with(Instant::now).elapsed() < CONGESTION_TIMEOUT {
                rate.wait().await;
            } else {
                return Some(flood());
            }
            if let Err(last) = self.hear(heard).await {
                return Some(last);
            }
        }
        None
    }

    async fn hear(&self, ReceivedMessage { said, _done }: ReceivedMessage) -> Result<(), Status> {
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
        let gone = || Status::unavailable("this vendor is no longer declared");
        let (done, dealt_with) = oneshot::channel();
        let told = self
            .events
            .send(VendorEvent::Said(self.number, said, done))
            .await;
        told.map_err(|_| gone())?;
        dealt_with.await.map_err(|_| gone())
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
