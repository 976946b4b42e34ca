//! What the checked program has sent so far, and the means to answer it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until},
};
use tonic::Status;

use crate::vendor_api::{
    api::v1::{self as api, FromAgent, answer, from_agent, question},
    conformance::ProgramExit,
    handshake, lazy_messages,
    offered_resources::VendorResources,
    snapshot::{self, SnapshotRejection},
    task_messages::{
        AcceptedSession, PendingHello, SessionMessage, ToVendor, VendorEvent, message, millis,
        rejected,
    },
};
use machinist_device::{Resource, ResourceName, vendor_declaration::Vendor};

/// The heartbeat interval sent to the program; short, so that the check need not wait long.
pub(super) const CHECK_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// After the program has ended, its last message may take this long to arrive.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);

/// The open session.
#[derive(Debug)]
struct HarnessSession {
    to: ToVendor,
    end: Option<oneshot::Sender<Status>>,
}

/// Everything observed during the check.
#[derive(Debug)]
pub(super) struct ConformanceHarness {
    pub(super) vendor: Arc<Vendor>,
    events: mpsc::Receiver<VendorEvent>,
    session: Option<HarnessSession>,
    /// How the program has ended; `None` where that cannot be observed.
    pub(super) program: Option<watch::Receiver<Option<ProgramExit>>>,
    /// The Hello of each session.
    pub(super) hellos: Vec<api::Hello>,
    /// Why sessions were refused, or were ended because of the program's behaviour.
    pub(super) refused: Vec<String>,
    pub(super) ended: Vec<String>,
    /// Rejected snapshots.
    pub(super) rejected: Vec<SnapshotRejection>,
    pub(super) offers: VendorResources,
    /// Number of accepted snapshots.
    pub(super) accepted: usize,
    /// Number of accepted snapshots that replaced an earlier one of their resource.
    pub(super) replaced: usize,
    answers: BTreeMap<u64, Option<answer::Answer>>,
    questions: u64,
    /// When the last message arrived; `silence` is the longest pause since its last reset.
    last_message_at: Instant,
    pub(super) longest_silence: Duration,
}

impl ConformanceHarness {
    pub(super) fn new(vendor: Arc<Vendor>, events: mpsc::Receiver<VendorEvent>) -> Self {
        Self {
            vendor,
            events,
            session: None,
            program: None,
            hellos: Vec::new(),
            refused: Vec::new(),
            ended: Vec::new(),
            rejected: Vec::new(),
            offers: VendorResources::default(),
            accepted: 0,
            replaced: 0,
            answers: BTreeMap::new(),
            questions: 0,
            last_message_at: Instant::now(),
            longest_silence: Duration::ZERO,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// Resources that were named in Hello and have not been offered so far.
    pub(super) fn missing(&self) -> Vec<String> {
        let named = self.hellos.last().into_iter();
        let named = named.flat_map(|hello| hello.resources.iter());
        let missing =
            named.filter(|name| !self.offers.all.keys().any(|one| one.as_str() == **name));
        missing.cloned().collect()
    }

    /// Explains why the awaited event did not happen.
    pub(super) fn missed(&self, what: &str, waited: Duration) -> String {
        match self.program_ended() {
            Some(ProgramExit { how, well: false }) => format!("the program exited: {how}"),
            Some(ProgramExit { how, well: true }) => format!(
                "the program exited ({how}), and no background process of it connected within {} s",
                waited.as_secs()
            ),
            None => format!("{what} {} s", waited.as_secs()),
        }
    }

    fn program_ended(&self) -> Option<ProgramExit> {
        self.program.as_ref()?.borrow().clone()
    }

    /// Handles events until `enough` returns true; returns false when the time is over or the
    /// program has failed.
    pub(super) async fn until(&mut self, time: Duration, enough: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::now() + time;
        while !enough(self) {
            let is_disconnected = !self.is_open();
            let event = tokio::select! {
                biased;
                // Safe to drop, all of them: an event stays in the queue until it is received.
                event = self.events.recv() => event,
                () = sleep_until(end) => None,
                () = wait_for_exit(&mut self.program), if is_disconnected => None,
            };
            let Some(event) = event else {
                self.longest_silence = self.longest_silence.max(self.last_message_at.elapsed());
                return false;
            };
            self.take(event);
        }
        true
    }

    fn take(&mut self, event: VendorEvent) {
        self.longest_silence = self.longest_silence.max(self.last_message_at.elapsed());
        self.last_message_at = Instant::now();
        match event {
            VendorEvent::HelloReceived(pending) => self.open(pending),
            VendorEvent::MessageReceived(number, received, done) => {
                if number == self.number() {
                    self.record_message(received);
                }
                // The session may have ended meanwhile.
                let _ = done.send(());
            }
            VendorEvent::SessionEnded(number, why) if number == self.number() => {
                self.session = None;
                self.ended.push(why);
            }
            VendorEvent::Refused(why) => self.refused.push(why),
            VendorEvent::SessionEnded(..) => {}
        }
    }

    fn number(&self) -> u64 {
        self.hellos.len() as u64
    }

    fn open(&mut self, pending: PendingHello) {
        if let Err(status) = handshake::check(&self.vendor, &pending.hello) {
            self.refused.push(status.message().to_owned());
            // The caller may have stopped waiting.
            let _ = pending.reply.send(Err(status));
            return;
        }
        self.offers.begin_session(&pending.hello.instance);
        self.hellos.push(pending.hello);
        let number = self.number();
        let (end, ended) = oneshot::channel();
        let accepted_session = AcceptedSession { number, end: ended };
        let to = pending.to;
        let _ = pending.reply.send(Ok(accepted_session));
        let welcome = handshake::welcome(
            &self.vendor,
            number,
            CHECK_HEARTBEAT_INTERVAL,
            self.offers.confirmed_offers(),
        );
        let end = Some(end);
        self.session = Some(HarnessSession { to, end });
        self.send(welcome);
    }

    fn record_message(&mut self, received: SessionMessage) {
        match received {
            SessionMessage::Heartbeat(beat) => {
                self.send(message(from_agent::Said::Heartbeat(beat)))
            }
            SessionMessage::Answer(answer) => drop(self.answers.insert(answer.id, answer.answer)),
            SessionMessage::Snapshot(snapshot, bytes) => {
                let (resource, generation) = (snapshot.resource.clone(), snapshot.generation);
                let verdict = match self.read(snapshot, bytes) {
                    Ok(read) => {
                        let known = self.offers.all.get(&read.name);
                        let before = known.and_then(|offer| offer.generation);
                        self.replaced += usize::from(before.is_some_and(|it| it < generation));
                        self.accepted += 1;
                        self.offers.accept(read.into(), generation, bytes, None);
                        message(from_agent::Said::Accepted(api::Accepted {
                            resource,
                            generation,
                        }))
                    }
                    Err(why) => {
                        self.rejected.push(why.clone());
                        rejected(&resource, generation, why)
                    }
                };
                self.send(verdict);
            }
        }
    }

    fn read(
        &self,
        snapshot: lazy_messages::LazySnapshot,
        bytes: usize,
    ) -> Result<Resource, SnapshotRejection> {
        let generation = snapshot.generation;
        let named = self
            .hellos
            .last()
            .is_some_and(|hello| hello.resources.contains(&snapshot.resource));
        let name = ResourceName::new(snapshot.resource.as_str())
            .ok()
            .filter(|_| named);
        let Some(name) = name else {
            return Err(SnapshotRejection {
                reason: api::Reason::ResourceUnknown,
                message: format!("{:?} was not named in Hello", snapshot.resource),
                device: String::new(),
            });
        };
        let besides = self.offers.other_totals(&name);
        let read = snapshot::read(None, &self.vendor, &name, (snapshot, bytes), besides)?;
        self.offers.check_generation(&read, generation)?;
        Ok(read)
    }

    fn send(&self, message: FromAgent) {
        if let Some(live) = &self.session {
            // A vendor that does not read shows up as silent next.
            let _ = live.to.try_send(Ok(message));
        }
    }

    /// Sends a question and waits for the answer.
    pub(super) async fn send_request(
        &mut self,
        asked: question::Asked,
        time: Duration,
    ) -> Option<answer::Answer> {
        self.questions += 1;
        let id = self.questions;
        self.send(message(from_agent::Said::Question(api::Question {
            id,
            deadline_ms: millis(time),
            asked: Some(asked),
        })));
        self.until(time, |harness| {
            harness.answers.contains_key(&id) || !harness.is_open()
        })
        .await;
        self.answers.remove(&id).flatten()
    }

    /// Ends the session as a stopping agent does.
    pub(super) fn end_session(&mut self) {
        if let Some(end) = self.session.take().and_then(|live| live.end) {
            // The session may have ended already.
            let _ = end.send(Status::unavailable("the agent is stopping"));
        }
    }
}

/// Only an error exit counts: a program that exited successfully may serve in the background.
fn has_failed(ended: &Option<ProgramExit>) -> bool {
    ended.as_ref().is_some_and(|ended| !ended.well)
}

/// Waits until the program has failed and its last message had time to arrive; never returns where
/// the exit cannot be observed.
async fn wait_for_exit(program: &mut Option<watch::Receiver<Option<ProgramExit>>>) {
    if let Some(ended) = program
        && ended.wait_for(has_failed).await.is_ok()
    {
        return sleep(LAST_MESSAGE_TIMEOUT).await;
    }
    std::future::pending().await
}
