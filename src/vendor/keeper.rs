//! The one task that keeps a vendor: its session, its offers, its open questions, its grace.
//!
//! It never waits for the vendor. What it is told is dealt with one by one, and a session reads on only
//! when that is done, so that nothing piles up here.

mod offering;
mod questions;
mod talking;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::questions::Questions;
use super::{
    api::v1::Reason,
    messages::{Ask, Event, ToVendor},
    offers::Offers,
    status::VendorStatus,
};
use crate::{
    device::{
        Inventory, Resource, ResourceName,
        inventory::Serve,
        registry::{Looks, Registry},
        source::Source,
        vendor::Vendor,
    },
    rate::{Complaints, Rate, until},
    root::Root,
};

/// How often a vendor that comes and goes causes a line in the log, over time.
const LINE_EACH: Duration = Duration::from_secs(10);

/// What the keeper works with.
pub(super) struct Surroundings {
    pub(super) root: Root,
    pub(super) looks: Looks,
    pub(super) registry: Registry,
    /// The vendor's file as it is now.
    pub(super) vendor: watch::Receiver<Arc<Vendor>>,
    pub(super) asks: mpsc::Receiver<Ask>,
    /// Why the hardware is to be let go of, while that is so.
    pub(super) quiesced: watch::Receiver<Option<String>>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) status: watch::Sender<VendorStatus>,
    /// Counts what is new in the status.
    pub(super) news: Arc<watch::Sender<u64>>,
    /// The vendor's file is gone.
    pub(super) gone: CancellationToken,
    /// The agent stops.
    pub(super) stop: CancellationToken,
}

/// The session that is open.
struct Live {
    number: u64,
    instance: String,
    user: u32,
    to: ToVendor,
    end: Option<oneshot::Sender<Status>>,
    /// Resources that Hello named.
    resources: Vec<String>,
}

/// Why and since when devices lapse.
struct Lapse {
    at: Instant,
    why: String,
}

pub(super) struct Keeper {
    root: Root,
    looks: Looks,
    registry: Registry,
    inventory: watch::Receiver<Arc<Inventory>>,
    vendor: watch::Receiver<Arc<Vendor>>,
    status: watch::Sender<VendorStatus>,
    news: Arc<watch::Sender<u64>>,
    live: Option<Live>,
    offers: Offers,
    questions: Questions,
    lapse: Option<Lapse>,
    quiesced: watch::Receiver<Option<String>>,
    /// The vendor's file is gone.
    gone: CancellationToken,
    /// It was told to let go of its hardware, or may have been by an earlier agent, and not yet that it may go on.
    owes_resume: bool,
    /// The question by which it was told last that it may: it has heard that when it has answered.
    resuming: Option<u64>,
    /// Sessions granted so far.
    sessions: u64,
    complaints: Complaints,
    /// Lines about the beginning and the end of sessions.
    lines: Rate,
    /// Sessions and messages that were refused.
    refused: u64,
    /// Why the last of them was, or why the last session ended.
    last: Option<String>,
    /// Why the last snapshot of a resource was refused, until one is accepted.
    vain: BTreeMap<ResourceName, String>,
    /// What this session was told that it may not offer any more.
    forbidden: BTreeSet<ResourceName>,
    /// How the file says that devices are served; what one contract cannot keep another may.
    serve: Serve,
    /// Why devices have lapsed, while some have.
    lapsed: Option<String>,
}

/// What woke the keeper.
enum Woken {
    Stop,
    Gone,
    Vendor,
    Asked(Ask),
    Quiesced,
    Event(Event),
    Inventory,
    Lapsed,
}

/// Runs until the vendor's file is gone or the agent stops. An agent that stops withdraws nothing.
pub(super) async fn keep(surroundings: Surroundings) {
    let Surroundings {
        root,
        looks,
        registry,
        vendor,
        mut asks,
        quiesced,
        mut events,
        status,
        news,
        gone,
        stop,
    } = surroundings;
    let mut keeper = Keeper::new((root, looks), registry, (vendor, quiesced), (status, news));
    keeper.gone = gone.clone();
    loop {
        let lapse = keeper.lapse.as_ref().map(|lapse| lapse.at);
        let woken = tokio::select! {
            biased;
            () = stop.cancelled() => Woken::Stop,
            () = gone.cancelled() => Woken::Gone,
            // Safe to drop: a change stays marked as unseen.
            Ok(()) = keeper.vendor.changed() => Woken::Vendor,
            // Safe to drop: what is not taken stays in its channel.
            Some(ask) = asks.recv() => Woken::Asked(ask),
            Ok(()) = keeper.quiesced.changed() => Woken::Quiesced,
            Some(event) = events.recv() => Woken::Event(event),
            Ok(()) = keeper.inventory.changed(), if keeper.is_waiting_for_a_name() => Woken::Inventory,
            // Safe to drop: the time is kept.
            () = until(lapse) => Woken::Lapsed,
        };
        match woken {
            Woken::Stop => return keeper.end(Status::unavailable("the agent stops")),
            Woken::Gone => {
                let name = keeper.name();
                let message =
                    format!("no file declares vendor {name} with a program of its own any more");
                keeper.end(Status::unavailable(message));
                keeper.withdraw(None).await;
                return;
            }
            woken => keeper.handle(woken).await,
        }
        keeper.publish();
    }
}

impl Keeper {
    fn new(
        (root, looks): (Root, Looks),
        registry: Registry,
        (vendor, quiesced): (
            watch::Receiver<Arc<Vendor>>,
            watch::Receiver<Option<String>>,
        ),
        (status, news): (watch::Sender<VendorStatus>, Arc<watch::Sender<u64>>),
    ) -> Self {
        let inventory = registry.inventory();
        let source = Source::Vendor(vendor.borrow().name.clone());
        let left: Vec<Arc<Resource>> = {
            let inventory = inventory.borrow();
            let all = inventory.resources.values();
            all.filter(|resource| resource.source == source)
                .cloned()
                .collect()
        };
        let owes_resume = quiesced.borrow().is_some();
        let serve = vendor.borrow().serve;
        let mut keeper = Self {
            root,
            looks,
            registry,
            inventory,
            vendor,
            status,
            news,
            live: None,
            lapse: None,
            offers: Offers::restored(left),
            questions: Questions::default(),
            gone: CancellationToken::new(),
            owes_resume,
            resuming: None,
            quiesced,
            sessions: 0,
            complaints: Complaints::default(),
            lines: Rate::every(LINE_EACH, 20),
            refused: 0,
            last: None,
            vain: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            serve,
            lapsed: None,
        };
        if keeper.offers.has_unconfirmed() {
            keeper.lapse_later("it has not connected since the agent started");
        }
        keeper.publish();
        keeper
    }

    fn name(&self) -> String {
        self.vendor.borrow().name.clone()
    }

    /// Says what the vendor does wrong; once for as long as it does the same.
    fn complain(&mut self, complaint: String) {
        self.refused += 1;
        if let Some(unsaid) = self.complaints.take(&complaint) {
            tracing::warn!(vendor = %self.name(), unsaid, "{complaint}");
        }
        self.last = Some(complaint);
    }

    fn source(&self) -> Source {
        Source::Vendor(self.name())
    }

    fn grace(&self) -> Duration {
        self.vendor.borrow().grace
    }

    /// What is offered lapses after the grace, unless the vendor says it again.
    fn lapse_later(&mut self, why: &str) {
        let at = Instant::now() + self.grace();
        self.lapse = Some(Lapse {
            at,
            why: why.to_owned(),
        });
    }

    async fn handle(&mut self, woken: Woken) {
        match woken {
            Woken::Vendor => self.vendor_changed().await,
            Woken::Asked(ask) => self.ask(ask),
            Woken::Event(Event::Opened(opening)) => self.open(opening).await,
            Woken::Event(Event::Said(number, said, done)) => {
                // A session that was taken over hears why by its own channel.
                if self.live.as_ref().is_some_and(|live| live.number == number) {
                    self.hear(said).await;
                }
                // The session may have ended meanwhile.
                let _ = done.send(());
            }
            Woken::Event(Event::Over(number, why)) => self.over(number, &why),
            Woken::Event(Event::Refused(why)) => self.complain(why),
            Woken::Inventory => self.names_may_be_free(),
            Woken::Lapsed => self.lapsed().await,
            // Whoever is connected is asked by whoever wants it so; who comes later, when he comes.
            Woken::Stop | Woken::Gone | Woken::Quiesced => {}
        }
    }

    /// Ends the session with this last word.
    fn end(&mut self, status: Status) {
        if let Some(mut live) = self.live.take()
            && let Some(end) = live.end.take()
        {
            // The session may have ended by itself.
            let _ = end.send(status);
        }
        self.questions.forget("its session is over");
    }

    /// A session is over by itself, or by what its vendor did.
    fn over(&mut self, number: u64, why: &str) {
        if self.live.as_ref().is_none_or(|live| live.number != number) {
            return;
        }
        let (name, grace) = (self.name(), self.grace());
        if self.lines.take() {
            tracing::warn!(vendor = %name, "the session of vendor {name} is over: {why}; its devices stay for {} s", grace.as_secs());
        }
        self.live = None;
        self.last = Some(format!("the session of vendor {name} is over: {why}"));
        self.questions.forget(why);
        self.lapse_later(why);
    }

    /// The file says something else now. What it no longer allows ends at once.
    async fn vendor_changed(&mut self) {
        let vendor = self.vendor.borrow_and_update().clone();
        let user = self.live.as_ref().map(|live| live.user);
        if user.is_some_and(|user| !vendor.may_connect(user)) {
            let message = format!("vendor {} no longer lets this user connect", vendor.name);
            self.end(Status::permission_denied(message.clone()));
            self.lapse_later(&message);
        }
        let forbidden = self.offers.drop_unless(|name| vendor.may_claim(name));
        for (name, generation) in forbidden {
            let message = format!("vendor {} may not offer {name} any more", vendor.name);
            self.forbidden.insert(name.clone());
            self.take_back(name, generation, (Reason::ResourceForbidden, message))
                .await;
        }
        self.begin_anew(&vendor);
        self.serve_otherwise(vendor.serve).await;
    }

    /// Ends a session whose Hello would be answered otherwise now: its vendor says again what it may offer.
    fn begin_anew(&mut self, vendor: &Vendor) {
        let (name, most) = (&vendor.name, vendor.limits.resources);
        let named = self.live.as_ref().map_or(0, |live| live.resources.len());
        let unfit = std::mem::replace(&mut self.serve, vendor.serve) != vendor.serve;
        let unfit = self.vain.keys().filter(|_| unfit);
        let mut again = self.forbidden.iter().chain(unfit);
        let again = again.find(|it| vendor.may_claim(it));
        let why = if named > most {
            format!("{named} resources are named; vendor {name} may offer 1 to {most}")
        } else if let Some(again) = again.filter(|_| self.live.is_some()) {
            format!("vendor {name} may offer {again} again")
        } else {
            return;
        };
        tracing::info!(vendor = %name, "the session of vendor {name} is ended: {why}");
        self.end(Status::aborted(why.clone()));
        self.lapse_later(&why);
    }

    fn publish(&self) {
        let lapsed = self.lapsed.as_deref();
        let lapsed = lapsed.filter(|_| self.offers.all.values().any(|offer| offer.lapsed));
        let lapsing = self.lapse.as_ref().map(|lapse| lapse.why.as_str());
        let vain = self.vain.iter();
        let status = VendorStatus {
            sessions: self.sessions,
            refused: self.refused,
            last_reason: self.last.clone(),
            vain: vain
                .map(|(name, why)| (name.to_string(), why.clone()))
                .collect(),
            ..VendorStatus::of(
                &self.vendor.borrow(),
                self.live.as_ref().map(|live| live.instance.as_str()),
                lapsing.or(lapsed),
                &self.offers,
                self.quiesced.borrow().is_some(),
            )
        };
        let news = self.status.send_if_modified(|known| {
            let news = *known != status;
            if news {
                *known = status;
            }
            news
        });
        if news {
            self.news.send_modify(|count| *count += 1);
        }
    }
}
