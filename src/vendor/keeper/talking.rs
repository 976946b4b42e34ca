//! The session: who gets it, what is said in it, what is asked.

use tokio::sync::oneshot;
use tonic::Status;

use super::{Keeper, Live};
use crate::{
    device::ResourceName,
    vendor::{
        api::v1::{self as api, FromAgent, VERSION, from_agent, question},
        limits::{HEARTBEAT, KEPT_BYTES, MESSAGE_BYTES, MESSAGE_PARTS, MESSAGES_PER_SECOND},
        messages::{Ask, Granted, Opening, Said, message, millis},
    },
};

const MOST_VERSIONS: usize = 16;
const LONGEST_INSTANCE: usize = 128;

impl Keeper {
    /// Grants the session, or says why not.
    pub(super) async fn open(&mut self, opening: Opening) {
        if let Err(status) = self.may_open(&opening.hello) {
            let name = self.name();
            tracing::warn!(vendor = %name, "a session of vendor {name} is refused: {}", status.message());
            // Whoever asked may have gone.
            let _ = opening.reply.send(Err(status));
            return;
        }
        let instance = opening.hello.instance.clone();
        if self.live.is_some() {
            self.end(Status::aborted("the same instance has connected again"));
        }
        let resumed = self.offers.is_of(&instance);
        self.offers.begin(&instance);
        self.sessions += 1;
        let (end, ended) = oneshot::channel();
        self.live = Some(Live {
            number: self.sessions,
            instance,
            user: opening.user,
            to: opening.to,
            end: Some(end),
            resources: opening.hello.resources.clone(),
        });
        let granted = Granted {
            number: self.sessions,
            end: ended,
        };
        if opening.reply.send(Ok(granted)).is_err() {
            return self.over(self.sessions, "it left before its session was granted");
        }
        let (name, process) = (self.name(), opening.process);
        let word = if resumed { "resumes" } else { "begins" };
        tracing::info!(vendor = %name, session = self.sessions, process, "vendor {name} {word} its session");
        self.tell(self.welcome());
        self.only(&opening.hello.resources).await;
        self.revive().await;
        if !self.offers.has_unconfirmed() {
            self.lapse = None;
        } else if self.lapse.is_none() {
            self.lapse_later("it came back");
        }
        if let Some(why) = self.quiesced.clone() {
            // Nobody waits for this one: whoever wanted it has been answered already.
            let (reply, _) = oneshot::channel();
            let deadline_ms = millis(self.vendor.borrow().deadline);
            self.ask(Ask {
                asked: question::Asked::Quiesce(api::Quiesce { why }),
                deadline_ms,
                reply,
            });
        }
    }

    fn may_open(&self, hello: &api::Hello) -> Result<(), Status> {
        let vendor = self.vendor.borrow().clone();
        let name = &vendor.name;
        if hello.vendor != *name {
            return Err(Status::permission_denied(format!(
                "this is the socket of vendor {name}"
            )));
        }
        let versions = &hello.api_versions;
        if versions.len() > MOST_VERSIONS || !versions.iter().any(|version| version == VERSION) {
            return Err(Status::invalid_argument(format!(
                "none of the api versions is {VERSION}, the only one that is spoken here"
            )));
        }
        let (instance, printable) = (&hello.instance, |byte: u8| (0x20..0x7f).contains(&byte));
        if instance.is_empty()
            || instance.len() > LONGEST_INSTANCE
            || !instance.bytes().all(printable)
        {
            return Err(Status::invalid_argument(format!(
                "the instance is not named by 1 to {LONGEST_INSTANCE} printable ASCII characters"
            )));
        }
        let most = vendor.limits.resources;
        if hello.resources.is_empty() || hello.resources.len() > most {
            let count = hello.resources.len();
            return Err(Status::resource_exhausted(format!(
                "{count} resources are named; vendor {name} may offer 1 to {most}"
            )));
        }
        for given in &hello.resources {
            let resource = ResourceName::new(given.as_str())
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            if !vendor.may_claim(&resource) {
                return Err(Status::permission_denied(format!(
                    "vendor {name} may not offer {resource}"
                )));
            }
        }
        match &self.live {
            Some(live) if live.instance != *instance => Err(Status::already_exists(format!(
                "instance {:?} of vendor {name} has the session",
                live.instance
            ))),
            _ => Ok(()),
        }
    }

    fn welcome(&self) -> FromAgent {
        let vendor = self.vendor.borrow().clone();
        message(from_agent::Said::Welcome(api::Welcome {
            api_version: VERSION.to_owned(),
            session: self.sessions,
            limits: Some(api::Limits {
                devices: small(vendor.limits.devices),
                resources: small(vendor.limits.resources),
                message_bytes: small(MESSAGE_BYTES),
                kept_bytes: small(KEPT_BYTES),
                message_parts: small(MESSAGE_PARTS),
                messages_per_second: MESSAGES_PER_SECOND,
            }),
            heartbeat_ms: millis(HEARTBEAT),
            grace_ms: millis(vendor.grace),
            kept: self.offers.kept(),
        }))
    }

    /// Says something. Who does not read what he is sent loses the session.
    pub(super) fn tell(&mut self, message: FromAgent) {
        let full = self
            .live
            .as_ref()
            .is_some_and(|live| live.to.try_send(Ok(message)).is_err());
        if full {
            self.does_not_read();
        }
    }

    fn does_not_read(&mut self) {
        let why = "it does not read what it is sent";
        self.end(Status::resource_exhausted(why));
        self.lapse_later(why);
        let name = self.name();
        tracing::warn!(vendor = %name, "the session of vendor {name} is ended: {why}");
    }

    /// Deals with one message.
    pub(super) async fn hear(&mut self, said: Said) {
        match said {
            Said::Snapshot(snapshot, bytes) => {
                if let Some(answer) = self.snapshot(snapshot, bytes).await {
                    self.tell(answer);
                }
                if !self.offers.has_unconfirmed() {
                    self.lapse = None;
                }
            }
            Said::Answer(api::Answer { id, answer }) => {
                let nothing = || "its answer says nothing".to_owned();
                self.questions.answer(id, answer.ok_or_else(nothing));
            }
        }
    }

    /// Asks the vendor.
    pub(super) fn ask(&mut self, ask: Ask) {
        let why = match &self.live {
            None => self.why_away(),
            Some(live) if live.to.is_closed() => "its session is over".to_owned(),
            Some(_) => match self.questions.open(ask.reply) {
                Ok(id) => {
                    return self.tell(message(from_agent::Said::Question(api::Question {
                        id,
                        deadline_ms: ask.deadline_ms,
                        asked: Some(ask.asked),
                    })));
                }
                Err(reply) => {
                    let _ = reply.send(Err("too many questions are open already".to_owned()));
                    return;
                }
            },
        };
        // Whoever asked may have given up.
        let _ = ask.reply.send(Err(why));
    }

    fn why_away(&self) -> String {
        let lapse = self.lapse.as_ref();
        lapse.map_or_else(
            || "it is not connected".to_owned(),
            |lapse| lapse.why.clone(),
        )
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
