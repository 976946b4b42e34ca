//! The session of a vendor: who gets it, and how messages are sent and handled.

use tokio::sync::oneshot;
use tonic::Status;

use super::{VendorTask, live_session::LiveSession};
use crate::vendor_api::{
    api::v1::{self as api, FromAgent, answer, from_agent, question},
    handshake,
    limits::HEARTBEAT_INTERVAL,
    task_messages::{
        AcceptedSession, PendingHello, RequestDropped, SessionMessage, VendorRequest, message,
        millis,
    },
};

impl VendorTask {
    /// Grants a session or refuses it with a reason.
    pub(super) async fn open_session(&mut self, pending: PendingHello) {
        if let Err(status) = self.check_hello(&pending.hello) {
            let (name, reason) = (self.name(), status.message());
            self.record_fault(format!("session of vendor {name} rejected: {reason}"));
            // The caller may have stopped waiting.
            let _ = pending.reply.send(Err(status));
            return;
        }
        let instance = pending.hello.instance.clone();
        if self.session.is_connected() {
            self.end_session(Status::aborted("the vendor has reconnected"));
        }
        let is_same_instance = self.resources.belongs_to(&instance);
        self.rejections.clear();
        self.resources.begin_session(&instance);
        let number = self.session.next_number();
        let (end, ended) = oneshot::channel();
        self.session.accept(LiveSession {
            number,
            instance,
            user: pending.user,
            to_vendor: pending.to,
            end,
            resources: pending.hello.resources.clone(),
        });
        let accepted = AcceptedSession { number, end: ended };
        if pending.reply.send(Ok(accepted)).is_err() {
            return self
                .record_session_end(number, "it disconnected before its session was established");
        }
        let (name, process) = (self.name(), pending.process);
        let verb = if is_same_instance {
            "resumes"
        } else {
            "begins"
        };
        if self.log.take_session_line() {
            tracing::info!(vendor = %name, session = number, process, "vendor {name} {verb} its session");
        }
        self.send(self.welcome());
        self.retain_named(&pending.hello.resources).await;
        if !self.session.is_connected() {
            // The session has ended already, and the grace period runs.
            return;
        }
        self.restore_lapsed().await;
        if !self.resources.has_unconfirmed() {
            self.grace.cancel();
        } else if !self.grace.is_running() {
            self.start_grace_period("it reconnected and has not offered all resources again yet");
        }
        self.send_pending_order();
    }

    /// Sends the order that was given while the vendor was disconnected. The reply is discarded:
    /// the caller of the order has long had its result.
    fn send_pending_order(&mut self) {
        let quiesced = self.inputs.quiesced.borrow().clone();
        let question = match quiesced {
            Some(why) => question::Asked::Quiesce(api::Quiesce { why }),
            None if self.resume.is_pending() => question::Asked::Resume(api::Resume {}),
            None => return,
        };
        let (reply, _) = oneshot::channel();
        let deadline_ms = millis(self.inputs.vendor.borrow().deadline);
        self.send_request(VendorRequest {
            question,
            deadline_ms,
            reply,
        });
    }

    fn check_hello(&self, hello: &api::Hello) -> Result<(), Status> {
        let vendor = self.vendor();
        handshake::check(&vendor, hello)?;
        match self.session.current() {
            Some(session) if session.is_disconnected() => Ok(()),
            Some(session) if session.instance != hello.instance => {
                Err(Status::already_exists(format!(
                    "instance {:?} of vendor {} already has a session",
                    session.instance, vendor.name
                )))
            }
            _ => Ok(()),
        }
    }

    fn welcome(&self) -> FromAgent {
        let vendor = self.vendor();
        handshake::welcome(
            &vendor,
            self.session.accepted(),
            HEARTBEAT_INTERVAL,
            self.resources.confirmed_offers(),
        )
    }

    /// Sends a message. A vendor that does not read its messages loses the session.
    pub(super) fn send(&mut self, message: FromAgent) {
        if !self.session.send(message) {
            self.end_unresponsive_session();
        }
    }

    fn end_unresponsive_session(&mut self) {
        let session = self.session.current();
        if let Some(session) = session.filter(|session| session.is_disconnected()) {
            return self.record_session_end(session.number, "it disconnected");
        }
        let reason = "it does not read its messages";
        self.end_session(Status::resource_exhausted(reason));
        self.start_grace_period(reason);
        let name = self.name();
        if self.log.take_session_line() {
            tracing::warn!(vendor = %name, "ending the session of vendor {name}: {reason}");
        }
    }

    /// Handles one message.
    pub(super) async fn handle_message(&mut self, received: SessionMessage) {
        match received {
            SessionMessage::Snapshot(snapshot, bytes) => {
                let resource = snapshot.resource.clone();
                if let Some(answer) = self.apply_snapshot(snapshot, bytes).await {
                    self.send(answer);
                }
                self.update_lapsed_reason(&resource).await;
                // If sending the answer showed that the vendor has left, its session is gone and
                // the grace period runs.
                if self.session.is_connected() && !self.resources.has_unconfirmed() {
                    self.grace.cancel();
                }
            }
            SessionMessage::Heartbeat(beat) => {
                self.send(message(from_agent::Said::Heartbeat(beat)))
            }
            SessionMessage::Answer(api::Answer { id, answer }) => {
                if matches!(answer, Some(answer::Answer::Done(_))) {
                    self.resume.record_done(id);
                }
                let empty = || RequestDropped::Disconnected("its answer is empty".to_owned());
                self.requests.complete(id, answer.ok_or_else(empty));
            }
        }
    }

    /// Sends a question to the vendor.
    pub(super) fn send_request(&mut self, request: VendorRequest) {
        let is_order = request.is_order();
        let reason = match self.session.current() {
            None => self.disconnect_reason(),
            Some(session) if session.is_disconnected() => "its session ended".to_owned(),
            Some(_) => match self.requests.register(request.reply, is_order) {
                Ok(id) => {
                    match request.question {
                        question::Asked::Quiesce(_) => self.resume.record_quiesce(),
                        question::Asked::Resume(_) => self.resume.record_resume(id),
                        _ => {}
                    }
                    return self.send(message(from_agent::Said::Question(api::Question {
                        id,
                        deadline_ms: request.deadline_ms,
                        asked: Some(request.question),
                    })));
                }
                Err(reply) => {
                    let _ = reply.send(Err(RequestDropped::Busy));
                    return;
                }
            },
        };
        // The caller may have stopped waiting.
        let _ = request
            .reply
            .send(Err(RequestDropped::Disconnected(reason)));
    }

    fn disconnect_reason(&self) -> String {
        let reason = self.grace.reason();
        reason.unwrap_or("it is not connected").to_owned()
    }
}
