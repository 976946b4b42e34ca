//! The session of a vendor: who gets it, and how messages are sent and handled.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tonic::Status;

use super::{LiveSession, VendorTask};
use crate::vendor_api::{
    api::v1::{self as api, FromAgent, answer, from_agent, question},
    handshake,
    limits::HEARTBEAT,
    task_messages::{
        AcceptedSession, PendingHello, RequestDropped, SessionMessage, VendorRequest, message,
        millis,
    },
};

impl VendorTask {
    /// Grants a session or refuses it with a reason.
    pub(super) async fn open_session(&mut self, opening: PendingHello) {
        if let Err(status) = self.may_open(&opening.hello) {
            let (name, why) = (self.name(), status.message());
            self.complain(format!("session of vendor {name} rejected: {why}"));
            // The caller may have stopped waiting.
            let _ = opening.reply.send(Err(status));
            return;
        }
        let instance = opening.hello.instance.clone();
        if self.live.is_some() {
            self.end(Status::aborted("the vendor has reconnected"));
        }
        let resumed = self.offers.is_of(&instance);
        (self.vain, self.forbidden) = (BTreeMap::new(), BTreeSet::new());
        self.offers.begin(&instance);
        self.sessions += 1;
        let (end, ended) = oneshot::channel();
        self.live = Some(LiveSession {
            number: self.sessions,
            instance,
            user: opening.user,
            to: opening.to,
            end: Some(end),
            resources: opening.hello.resources.clone(),
        });
        let granted = AcceptedSession {
            number: self.sessions,
            end: ended,
        };
        if opening.reply.send(Ok(granted)).is_err() {
            return self.over(
                self.sessions,
                "it disconnected before its session was established",
            );
        }
        let (name, process) = (self.name(), opening.process);
        let word = if resumed { "resumes" } else { "begins" };
        if self.lines.take() {
            tracing::info!(vendor = %name, session = self.sessions, process, "vendor {name} {word} its session");
        }
        self.send(self.welcome());
        self.retain_named(&opening.hello.resources).await;
        if self.live.is_none() {
            // The session has ended already, and the grace period runs.
            return;
        }
        self.revive().await;
        if !self.offers.has_unconfirmed() {
            self.lapse = None;
        } else if self.lapse.is_none() {
            self.lapse_later("it reconnected and has not offered all resources again yet");
        }
        self.catch_up();
    }

    /// Sends the order that was given while the vendor was disconnected. The reply is discarded:
    /// the caller of the order has long had its result.
    fn catch_up(&mut self) {
        let quiesced = self.quiesced.borrow().clone();
        let asked = match quiesced {
            Some(why) => question::Asked::Quiesce(api::Quiesce { why }),
            None if self.owes_resume => question::Asked::Resume(api::Resume {}),
            None => return,
        };
        let (reply, _) = oneshot::channel();
        let deadline_ms = millis(self.vendor.borrow().deadline);
        self.send_request(VendorRequest {
            asked,
            deadline_ms,
            reply,
        });
    }

    fn may_open(&self, hello: &api::Hello) -> Result<(), Status> {
        let vendor = self.vendor.borrow().clone();
        handshake::check(&vendor, hello)?;
        match &self.live {
            // Its stream has ended; the event for that is under way.
            Some(live) if live.to.is_closed() => Ok(()),
            Some(live) if live.instance != hello.instance => Err(Status::already_exists(format!(
                "instance {:?} of vendor {} already has a session",
                live.instance, vendor.name
            ))),
            _ => Ok(()),
        }
    }

    fn welcome(&self) -> FromAgent {
        let vendor = self.vendor.borrow().clone();
        handshake::welcome(
            &vendor,
            self.sessions,
            HEARTBEAT,
            self.offers.confirmed_offers(),
        )
    }

    /// Sends a message. A vendor that does not read its messages loses the session.
    pub(super) fn send(&mut self, message: FromAgent) {
        let full = self
            .live
            .as_ref()
            .is_some_and(|live| live.to.try_send(Ok(message)).is_err());
        if full {
            self.does_not_read();
        }
    }

    fn does_not_read(&mut self) {
        if let Some(live) = self.live.as_ref().filter(|live| live.to.is_closed()) {
            return self.over(live.number, "it disconnected");
        }
        let why = "it does not read its messages";
        self.end(Status::resource_exhausted(why));
        self.lapse_later(why);
        let name = self.name();
        if self.lines.take() {
            tracing::warn!(vendor = %name, "ending the session of vendor {name}: {why}");
        }
    }

    /// Handles one message.
    pub(super) async fn handle_message(&mut self, said: SessionMessage) {
        match said {
            SessionMessage::Snapshot(snapshot, bytes) => {
                let resource = snapshot.resource.clone();
                if let Some(answer) = self.snapshot(snapshot, bytes).await {
                    self.send(answer);
                }
                self.still_lapsed(&resource).await;
                // If sending the answer showed that the vendor has left, its session is gone and
                // the grace period runs.
                if self.live.is_some() && !self.offers.has_unconfirmed() {
                    self.lapse = None;
                }
            }
            SessionMessage::Heartbeat(beat) => {
                self.send(message(from_agent::Said::Heartbeat(beat)))
            }
            SessionMessage::Answer(api::Answer { id, answer }) => {
                if self.resuming == Some(id) && matches!(answer, Some(answer::Answer::Done(_))) {
                    (self.owes_resume, self.resuming) = (false, None);
                }
                let nothing = || RequestDropped::Away("its answer is empty".to_owned());
                self.questions.answer(id, answer.ok_or_else(nothing));
            }
        }
    }

    /// Sends a question to the vendor.
    pub(super) fn send_request(&mut self, ask: VendorRequest) {
        let is_order = ask.is_order();
        let why = match &self.live {
            None => self.why_away(),
            Some(live) if live.to.is_closed() => "its session ended".to_owned(),
            Some(_) => match self.questions.open(ask.reply, is_order) {
                Ok(id) => {
                    match ask.asked {
                        question::Asked::Quiesce(_) => {
                            (self.owes_resume, self.resuming) = (true, None);
                        }
                        question::Asked::Resume(_) => self.resuming = Some(id),
                        _ => {}
                    }
                    return self.send(message(from_agent::Said::Question(api::Question {
                        id,
                        deadline_ms: ask.deadline_ms,
                        asked: Some(ask.asked),
                    })));
                }
                Err(reply) => {
                    let _ = reply.send(Err(RequestDropped::Busy));
                    return;
                }
            },
        };
        // The caller may have stopped waiting.
        let _ = ask.reply.send(Err(RequestDropped::Away(why)));
    }

    fn why_away(&self) -> String {
        let lapse = self.lapse.as_ref();
        lapse.map_or_else(
            || "it is not connected".to_owned(),
            |lapse| lapse.why.clone(),
        )
    }
}
