//! The actor task of one vendor: it owns the vendor's session, offers, open questions and grace
//! period.
//!
//! It never waits for the vendor. It handles events one by one, and a session reads its next
//! message only after the current one is handled, so no backlog builds up here.

mod pending_requests;
mod registry_updates;
mod session_state;

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

use self::pending_requests::PendingRequests;
use super::{
    api::v1::Reason,
    offered_resources::VendorResources,
    status::LiveVendorStatus,
    task_messages::{ToVendor, VendorEvent, VendorRequest},
};
use machinist_base::rate_limit::{LogOnce, RateLimiter, sleep_until_opt};
use machinist_device::{
    Inventory, Resource, ResourceName,
    inventory::ServeMode,
    registry::{PathChecker, Registry},
    source::ResourceSource,
    vendor_declaration::Vendor,
};
use machinist_rootfs::Root;

/// Average interval of log lines about a vendor that keeps connecting and disconnecting.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The channels and handles that the task works with.
pub(super) struct VendorTaskDeps {
    pub(super) root: Root,
    pub(super) looks: PathChecker,
    pub(super) registry: Registry,
    /// The vendor's file, as last read.
    pub(super) vendor: watch::Receiver<Arc<Vendor>>,
    pub(super) asks: mpsc::Receiver<VendorRequest>,
    /// Why vendors have to release their hardware; `None` when they need not.
    pub(super) quiesced: watch::Receiver<Option<String>>,
    pub(super) events: mpsc::Receiver<VendorEvent>,
    pub(super) status: watch::Sender<LiveVendorStatus>,
    /// Bumped on every change of the status.
    pub(super) news: Arc<watch::Sender<u64>>,
    /// Cancelled when the vendor's file is removed.
    pub(super) gone: CancellationToken,
    /// Cancelled when the agent stops.
    pub(super) stop: CancellationToken,
}

/// The open session.
struct LiveSession {
    number: u64,
    instance: String,
    user: u32,
    to: ToVendor,
    end: Option<oneshot::Sender<Status>>,
    /// The resources named in Hello.
    resources: Vec<String>,
}

/// When and why unconfirmed devices lapse.
struct LapseDeadline {
    at: Instant,
    why: String,
}

pub(super) struct VendorTask {
    root: Root,
    looks: PathChecker,
    registry: Registry,
    inventory: watch::Receiver<Arc<Inventory>>,
    vendor: watch::Receiver<Arc<Vendor>>,
    status: watch::Sender<LiveVendorStatus>,
    news: Arc<watch::Sender<u64>>,
    live: Option<LiveSession>,
    offers: VendorResources,
    questions: PendingRequests,
    lapse: Option<LapseDeadline>,
    quiesced: watch::Receiver<Option<String>>,
    /// Cancelled when the vendor's file is removed.
    gone: CancellationToken,
    /// The vendor was ordered to release its hardware, perhaps by an earlier agent, and has not
    /// confirmed a Resume since.
    owes_resume: bool,
    /// The id of the last Resume question; its answer confirms the Resume.
    resuming: Option<u64>,
    /// Number of sessions granted.
    sessions: u64,
    complaints: LogOnce,
    /// Limits log lines about the beginning and end of sessions.
    lines: RateLimiter,
    /// Number of sessions and messages refused.
    refused: u64,
    /// The reason of the last refusal, or of the last session's end.
    last: Option<String>,
    /// Why the last snapshot of a resource was refused; removed when one is accepted.
    vain: BTreeMap<ResourceName, String>,
    /// Resources that a Rejected in this session reported as no longer allowed.
    forbidden: BTreeSet<ResourceName>,
    /// The contract (device plugin or DRA) that the file chooses. A snapshot refused under one may
    /// be valid under the other.
    serve: ServeMode,
    /// Why devices have lapsed; `None` while none have.
    lapsed: Option<String>,
}

/// The event that woke the task.
enum VendorTaskEvent {
    Stop,
    Gone,
    Vendor,
    Asked(VendorRequest),
    Quiesced,
    Event(VendorEvent),
    Inventory,
    Lapsed,
}

/// Runs until the vendor's file is removed or the agent stops. On agent stop the offers stay in the
/// registry.
pub(super) async fn run_vendor_task(surroundings: VendorTaskDeps) {
    let VendorTaskDeps {
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
    let mut keeper = VendorTask::new((root, looks), registry, (vendor, quiesced), (status, news));
    keeper.gone = gone.clone();
    loop {
        let lapse = keeper.lapse.as_ref().map(|lapse| lapse.at);
        let woken = tokio::select! {
            biased;
            () = stop.cancelled() => VendorTaskEvent::Stop,
            () = gone.cancelled() => VendorTaskEvent::Gone,
            // Safe to drop: a change stays marked as unseen.
            Ok(()) = keeper.vendor.changed() => VendorTaskEvent::Vendor,
            // Safe to drop: messages that were not received stay in the channel.
            Some(ask) = asks.recv() => VendorTaskEvent::Asked(ask),
            Ok(()) = keeper.quiesced.changed() => VendorTaskEvent::Quiesced,
            Some(event) = events.recv() => VendorTaskEvent::Event(event),
            Ok(()) = keeper.inventory.changed(), if keeper.is_waiting_for_a_name() => VendorTaskEvent::Inventory,
            // Safe to drop: the deadline is stored.
            () = sleep_until_opt(lapse) => VendorTaskEvent::Lapsed,
        };
        match woken {
            VendorTaskEvent::Stop => {
                return keeper.end(Status::unavailable("the agent is stopping"));
            }
            VendorTaskEvent::Gone => {
                let name = keeper.name();
                let message =
                    format!("no file declares vendor {name} with connects: program any more");
                keeper.end(Status::unavailable(message));
                keeper.withdraw(None).await;
                return;
            }
            woken => keeper.handle(woken).await,
        }
        keeper.publish();
    }
}

impl VendorTask {
    fn new(
        (root, looks): (Root, PathChecker),
        registry: Registry,
        (vendor, quiesced): (
            watch::Receiver<Arc<Vendor>>,
            watch::Receiver<Option<String>>,
        ),
        (status, news): (watch::Sender<LiveVendorStatus>, Arc<watch::Sender<u64>>),
    ) -> Self {
        let inventory = registry.inventory();
        let source = ResourceSource::Vendor(vendor.borrow().name.clone());
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
            offers: VendorResources::restored(left),
            questions: PendingRequests::default(),
            gone: CancellationToken::new(),
            owes_resume,
            resuming: None,
            quiesced,
            sessions: 0,
            complaints: LogOnce::default(),
            lines: RateLimiter::per_interval(LOG_INTERVAL, 20),
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

    /// Counts and logs a mistake of the vendor; a repeated one is logged once.
    fn complain(&mut self, complaint: String) {
        self.refused += 1;
        if let Some(unsaid) = self.complaints.take(&complaint) {
            tracing::warn!(vendor = %self.name(), unsaid, "{complaint}");
        }
        self.last = Some(complaint);
    }

    fn source(&self) -> ResourceSource {
        ResourceSource::Vendor(self.name())
    }

    fn grace(&self) -> Duration {
        self.vendor.borrow().grace
    }

    /// Starts the grace period: offers that the vendor does not send again before its end lapse.
    fn lapse_later(&mut self, why: &str) {
        let at = Instant::now() + self.grace();
        self.lapse = Some(LapseDeadline {
            at,
            why: why.to_owned(),
        });
    }

    async fn handle(&mut self, woken: VendorTaskEvent) {
        match woken {
            VendorTaskEvent::Vendor => self.vendor_changed().await,
            VendorTaskEvent::Asked(ask) => self.send_request(ask),
            VendorTaskEvent::Event(VendorEvent::Opened(opening)) => {
                self.open_session(opening).await
            }
            VendorTaskEvent::Event(VendorEvent::Said(number, said, done)) => {
                // A session that was superseded receives the reason through its own channel.
                if self.live.as_ref().is_some_and(|live| live.number == number) {
                    self.handle_message(said).await;
                }
                // The session may have ended meanwhile.
                let _ = done.send(());
            }
            VendorTaskEvent::Event(VendorEvent::Over(number, why)) => self.over(number, &why),
            VendorTaskEvent::Event(VendorEvent::Refused(why)) => self.complain(why),
            VendorTaskEvent::Inventory => self.accept_freed_names(),
            VendorTaskEvent::Lapsed => self.lapsed().await,
            // Connected vendors get their order from [`VendorsHandle`]; one that connects later
            // gets it on connect.
            VendorTaskEvent::Stop | VendorTaskEvent::Gone | VendorTaskEvent::Quiesced => {}
        }
    }

    /// Ends the session with this status.
    fn end(&mut self, status: Status) {
        if let Some(mut live) = self.live.take()
            && let Some(end) = live.end.take()
        {
            // The session may have ended already.
            let _ = end.send(status);
        }
        self.questions.forget("its session ended");
    }

    /// Handles a session that ended by itself or because of the vendor.
    fn over(&mut self, number: u64, why: &str) {
        if self.live.as_ref().is_none_or(|live| live.number != number) {
            return;
        }
        let (name, grace) = (self.name(), self.grace());
        if self.lines.take() {
            tracing::warn!(vendor = %name, "the session of vendor {name} ended: {why}; its devices keep their health for {} s", grace.as_secs());
        }
        self.live = None;
        self.last = Some(format!("the session of vendor {name} ended: {why}"));
        self.questions.forget(why);
        self.lapse_later(why);
    }

    /// Applies a changed vendor file. Offers that it no longer allows are withdrawn at once.
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
            self.withdraw_disallowed(name, generation, (Reason::ResourceForbidden, message))
                .await;
        }
        self.begin_anew(&vendor);
        self.change_serve_mode(vendor.serve).await;
    }

    /// Ends the session if the new file would answer its Hello differently, so that the vendor
    /// reconnects and offers again what is now allowed.
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
        tracing::info!(vendor = %name, "ending the session of vendor {name}: {why}");
        self.end(Status::aborted(why.clone()));
        self.lapse_later(&why);
    }

    fn publish(&self) {
        let lapsed = self.lapsed.as_deref();
        let lapsed = lapsed.filter(|_| self.offers.all.values().any(|offer| offer.lapsed));
        let lapsing = self.lapse.as_ref().map(|lapse| lapse.why.as_str());
        let vain = self.vain.iter();
        let status = LiveVendorStatus {
            sessions: self.sessions,
            refused: self.refused,
            last_reason: self.last.clone(),
            vain: vain
                .map(|(name, why)| (name.to_string(), why.clone()))
                .collect(),
            ..LiveVendorStatus::of(
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
