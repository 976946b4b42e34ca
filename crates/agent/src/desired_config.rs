//! Determines the desired config: from the source, or from an operator override that holds the
//! machine on a config.

mod node_requests;
mod source_config;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    grant_gate::GrantGate,
    mcd_detect::{McdDetector, McdStatus},
};
use crate::admin::{Accepted, ApplyRequest, ControlRequest};
use machinist_base::{clock::Clock, digest::Digest, error_chain::chain, reason::Reason};
use machinist_cluster::node::OwnNode;
use machinist_ignition::{MachineConfig, Refusal};
use machinist_rootfs::Root;
use machinist_status::PinStatus;
use machinist_update::{
    pinned_config::{PinError, PinnedConfig, ROLLBACK_COMMAND},
    reconciler::{BlockReason, DesiredConfig},
};
use node_requests::{cancel, cancels, grant, grant_changes};
use source_config::{of_source, read, still_rolled_back_to, wanted};

/// Interval at which another daemon is looked for again after it was detected.
const MCD_RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which a controller is looked for again while an update waits for its grant.
const GRANT_RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// How long handling an operator's request waits for each API request. A client that asks for a
/// rollback waits five seconds, and may ask because of the outage.
const OPERATOR_API_TIMEOUT: Duration = Duration::from_secs(2);

const SOURCE_NOT_READ_MESSAGE: &str =
    "the desired config was not read yet, or there is none; try again";

/// Inputs that can prevent an update from starting.
#[derive(Debug)]
pub(super) struct UpdateBlockers {
    /// Detects another daemon that manages this machine.
    pub(super) lookout: McdDetector,
    /// Notified when such a daemon may have started, to look for it immediately.
    pub(super) suspect: Arc<Notify>,
    /// Our Node, where an operator can cancel an update.
    pub(super) node: Option<OwnNode>,
    /// Whether a controller has to grant updates of our Node.
    pub(super) grants: Option<GrantGate>,
    /// Publishes where the other daemon was detected.
    pub(super) seen: watch::Sender<Option<String>>,
}

/// The task between the config source and the reconciler.
#[derive(Debug)]
pub(super) struct DesiredConfigTask {
    root: Root,
    /// The desired config of the source.
    source_config: watch::Receiver<DesiredConfig>,
    /// The desired config for the reconciler.
    to: watch::Sender<DesiredConfig>,
    /// Incremented by each operator request, while `to` is locked for the change.
    requests: watch::Sender<u64>,
    shown: watch::Sender<Option<PinStatus>>,
    held: Pin,
    /// None until the first check for another daemon; no desired config is passed on before that.
    bars: Option<UpdateBlockers>,
    /// The config whose update was cancelled and then requested again by an operator.
    without_cancellation: Option<String>,
    /// The source's config, if an operator has rolled back to it: its OS image may be lower than the running one.
    rolled_back_to: Option<Digest>,
}

#[derive(Debug)]
enum Pin {
    Nothing,
    Config(PinnedConfig),
    /// The stored hold cannot be read: no update starts until an operator sets or releases it.
    Unreadable(Arc<Vec<Refusal>>),
}

/// The receivers of the task's outputs.
#[derive(Debug)]
pub(super) struct DesiredConfigChannels {
    pub(super) desired: watch::Receiver<DesiredConfig>,
    pub(super) requests: watch::Receiver<u64>,
    pub(super) held: watch::Receiver<Option<PinStatus>>,
}

impl DesiredConfigTask {
    /// Loads the hold. Blocks.
    pub(super) fn new(
        root: &Root,
        source_config: watch::Receiver<DesiredConfig>,
    ) -> (Self, DesiredConfigChannels) {
        let held = match PinnedConfig::load(root) {
            Ok(None) => Pin::Nothing,
            Ok(Some(hold)) => {
                let (config, by) = (&hold.config.name, &hold.by);
                tracing::info!("machine pinned to {config} by {by} until the source changes");
                Pin::Config(hold)
            }
            Err(error) => Pin::Unreadable(Arc::new(vec![unreadable(&error)])),
        };
        let (to, desired) = watch::channel(DesiredConfig::Unknown);
        let (requests, request_count) = watch::channel(0);
        let (shown, seen) = watch::channel(None);
        let holding = Self {
            root: root.clone(),
            source_config,
            to,
            requests,
            shown,
            held,
            bars: None,
            without_cancellation: None,
            rolled_back_to: None,
        };
        holding.tell(false);
        let ends = DesiredConfigChannels {
            desired,
            requests: request_count,
            held: seen,
        };
        (holding, ends)
    }

    /// Forwards the source's desired config and handles operator requests, until `stop`.
    pub(super) async fn run(
        self,
        bars: UpdateBlockers,
        asks: mpsc::Receiver<ControlRequest>,
        stop: CancellationToken,
    ) {
        // Cancel-safe: a hold is on the disk before it takes effect, and a requester notices the
        // closed channel.
        stop.run_until_cancelled(self.forward_configs(bars, asks))
            .await;
    }

    async fn forward_configs(
        mut self,
        bars: UpdateBlockers,
        mut asks: mpsc::Receiver<ControlRequest>,
    ) {
        let suspect = Arc::clone(&bars.suspect);
        let mut snapshots = bars.node.as_ref().map(OwnNode::snapshots);
        let mut granted = bars.node.as_ref().map(OwnNode::snapshots);
        let mut cancelled = None;
        self.bars = Some(bars);
        self.check_blockers().await;
        self.tell(false);
        loop {
            let beside = self.other_daemon().is_some();
            let awaits_grant = self.awaits_grant();
            let known_grant = granted.as_ref().and_then(|snapshots| {
                let snapshot = snapshots.borrow();
                grant(snapshot.node.as_ref()?)
            });
            tokio::select! {
                // All of these are cancel-safe: a permit is kept, the timer restarts, and a change
                // stays marked as unseen.
                () = suspect.notified() => {
                    self.check_other_daemon().await;
                    self.tell(false);
                }
                () = tokio::time::sleep(MCD_RECHECK_INTERVAL), if beside => {
                    self.check_other_daemon().await;
                    self.tell(false);
                }
                () = tokio::time::sleep(GRANT_RECHECK_INTERVAL), if awaits_grant => {
                    self.check_grants().await;
                    self.tell(false);
                }
                () = grant_changes(&mut granted, known_grant) => self.tell(false),
                asked = cancels(&mut snapshots, &cancelled) => {
                    cancelled = asked;
                    if self.without_cancellation != cancelled {
                        self.without_cancellation = None;
                    }
                    self.tell(false);
                }
                // Cancel-safe: a missed change stays marked as unseen.
                changed = self.source_config.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.check_blockers().await;
                    self.follow().await;
                }
                // Cancel-safe: a request that was not received stays in the queue.
                Some(question) = asks.recv() => self.answer(question).await,
            }
        }
    }

    async fn answer(&mut self, question: ControlRequest) {
        // The requester may have stopped waiting.
        match question {
            ControlRequest::Take(ask) => {
                let ApplyRequest {
                    by,
                    name,
                    config,
                    reply,
                } = ask;
                let _ = reply.send(self.take(by, name, config).await);
            }
            ControlRequest::Wanted(reply) => {
                let source_config = self.source_config.borrow().clone();
                let wanted = tokio::task::spawn_blocking(move || wanted(&source_config)).await;
                let _ = reply.send(wanted.unwrap_or_else(|lost| Err(lost.to_string())));
            }
        }
    }

    /// Handles a change of the source: a hold against its previous config ends.
    async fn follow(&mut self) {
        self.rolled_back_to =
            still_rolled_back_to(&self.source_config.borrow(), self.rolled_back_to);
        let over = match &self.held {
            Pin::Config(hold) => hold.desired(&self.source_config.borrow()).is_none(),
            Pin::Nothing | Pin::Unreadable(_) => false,
        };
        if let (Pin::Config(hold), DesiredConfig::Refused(refusals)) =
            (&self.held, &*self.source_config.borrow())
        {
            for refusal in refusals.iter() {
                tracing::error!(reason = %refusal.reason, "{refusal}");
            }
            let held = &hold.config.name;
            tracing::warn!("machine stays pinned to {held} until the source's config is valid");
        }
        if over {
            tracing::info!("the source's config changed: following it again");
            if let Err(error) = self.keep(None).await {
                tracing::warn!("{}", chain(&error));
            }
        }
        self.tell(false);
    }

    async fn take(
        &mut self,
        by: String,
        name: String,
        config: Vec<u8>,
    ) -> Result<Accepted, String> {
        // If this times out, the check is repeated before the first change.
        let _ = timeout(OPERATOR_API_TIMEOUT, self.check_other_daemon()).await;
        if let Some(seen) = self.other_daemon() {
            return Err(format!(
                "{seen}: only one agent may manage this machine; remove it from this node first"
            ));
        }
        let (mut config, digest) = tokio::task::spawn_blocking(move || read(&name, &config))
            .await
            .map_err(|error| error.to_string())??;
        if by == ROLLBACK_COMMAND {
            config.allow_downgrade();
        }
        let over = match &*self.source_config.borrow() {
            DesiredConfig::Unknown | DesiredConfig::Nothing => {
                return Err(SOURCE_NOT_READ_MESSAGE.to_owned());
            }
            source => source.digest(),
        };
        let is_rollback = by == ROLLBACK_COMMAND;
        self.rolled_back_to = Some(digest).filter(|_| is_rollback && over == Some(digest));
        let hold = (over != Some(digest)).then(|| PinnedConfig {
            config: Arc::new(config),
            digest,
            over,
            by,
            since: Clock::system().now(),
        });
        match &hold {
            Some(hold) => {
                let (config, by) = (&hold.config.name, &hold.by);
                tracing::info!("machine pinned to {config} by {by} until the source changes");
            }
            None => tracing::info!("operator requested the source's config"),
        }
        if hold.is_none() {
            self.remove_cancellation().await?;
        }
        self.keep(hold).await.map_err(|error| chain(&error))?;
        self.tell(true);
        Ok(Accepted {
            requested: *self.requests.borrow(),
        })
    }

    async fn keep(&mut self, hold: Option<PinnedConfig>) -> Result<(), PinError> {
        let root = self.root.clone();
        let kept = hold.clone();
        let saved = tokio::task::spawn_blocking(move || match kept {
            Some(hold) => hold.save(&root),
            None => PinnedConfig::forget(&root),
        });
        // A lost task is a defect and is logged; the hold is in effect in memory nevertheless.
        saved.await.unwrap_or(Ok(()))?;
        self.held = hold.map_or(Pin::Nothing, Pin::Config);
        Ok(())
    }

    /// An operator requests the config whose update was cancelled. While the cancellation is on the
    /// Node, the final check before the first change would refuse the update, so it is removed.
    async fn remove_cancellation(&mut self) -> Result<(), String> {
        let node = self.bars.as_ref().and_then(|bars| bars.node.as_ref());
        let Some((node, config)) = node.and_then(|node| Some((node, cancel(&node.snapshots())?)))
        else {
            return Ok(());
        };
        let taken = match timeout(OPERATOR_API_TIMEOUT, node.answer_cancel(&config, None)).await {
            Ok(taken) => taken.map_err(|error| chain(&error)),
            Err(_) => Err("API server unreachable".to_owned()),
        };
        if let Err(why) = taken {
            return Err(format!(
                "failed to undo the cancellation of the update to {config}: {why}"
            ));
        }
        self.without_cancellation = Some(config);
        Ok(())
    }

    async fn check_blockers(&self) {
        self.check_other_daemon().await;
        self.check_grants().await;
    }

    async fn check_grants(&self) {
        let grants = self.bars.as_ref().and_then(|bars| bars.grants.as_ref());
        if let Some(grants) = grants {
            grants.try_refresh().await;
        }
    }

    /// Whether the desired config waits for its grant.
    fn awaits_grant(&self) -> bool {
        match &*self.to.borrow() {
            DesiredConfig::Blocked(_, _, block) => block.reason == Reason::AwaitingGrant,
            _ => false,
        }
    }

    async fn check_other_daemon(&self) {
        let Some(bars) = &self.bars else {
            return;
        };
        let seen = match bars.lookout.detect().await {
            McdStatus::Seen(seen) => Some(seen),
            McdStatus::Absent => None,
            // A daemon that was detected before may still be running.
            McdStatus::Unknown(error) => {
                tracing::debug!("{}", chain(&error));
                return;
            }
        };
        bars.seen.send_if_modified(|known| {
            let news = *known != seen;
            match (&seen, known.is_some()) {
                (Some(seen), false) => {
                    tracing::warn!("{seen}: machinist applies no config while it is present");
                }
                (None, true) => tracing::info!("machine-config-daemon is no longer present"),
                _ => {}
            }
            *known = seen;
            news
        });
    }

    fn other_daemon(&self) -> Option<String> {
        self.bars.as_ref()?.seen.borrow().clone()
    }

    /// Why an update to the desired config must not start.
    fn block_reason(&self, config: &MachineConfig) -> Option<BlockReason> {
        if let Some(seen) = self.other_daemon() {
            return Some(BlockReason {
                reason: Reason::OtherDaemon,
                message: format!("{seen}; no update is started while it is present"),
            });
        }
        // A config that an operator of this machine has pinned needs no grant and is not cancelled.
        if matches!(self.held, Pin::Config(_)) {
            return None;
        }
        let bars = self.bars.as_ref()?;
        let cancelled = cancel(&bars.node.as_ref()?.snapshots());
        let is_cancelled =
            cancelled.as_ref() == Some(&config.name) && self.without_cancellation != cancelled;
        if is_cancelled {
            return Some(BlockReason {
                reason: Reason::Cancelled,
                message: format!("the update to {} was cancelled by an operator", config.name),
            });
        }
        bars.grants.as_ref()?.block(&config.name)
    }

    /// Publishes the desired config to the reconciler and the status; `asked` means that an
    /// operator wants it now.
    fn tell(&self, asked: bool) {
        let source_config = self.source_config.borrow().clone();
        let desired = match &self.held {
            Pin::Nothing => of_source(source_config, self.rolled_back_to),
            Pin::Config(hold) => hold.desired(&source_config).unwrap_or(source_config),
            Pin::Unreadable(refusals) => DesiredConfig::Refused(Arc::clone(refusals)),
        };
        let desired = match desired {
            // The first check for another daemon has not finished.
            DesiredConfig::Config(..) if self.bars.is_none() => DesiredConfig::Unknown,
            DesiredConfig::Config(config, digest) => match self.block_reason(&config) {
                Some(reason) => DesiredConfig::Blocked(config, digest, Arc::new(reason)),
                None => DesiredConfig::Config(config, digest),
            },
            other => other,
        };
        self.to.send_if_modified(|known| {
            if asked {
                self.requests.send_modify(|word| *word += 1);
            }
            let tell = asked || !known.is_equal_for_readers(&desired);
            if tell {
                *known = desired;
            }
            tell
        });
        self.shown.send_replace(match &self.held {
            Pin::Config(hold) => Some(PinStatus {
                config: hold.config.name.clone(),
                digest: hold.digest.to_string(),
                by: hold.by.clone(),
                since: hold.since,
            }),
            Pin::Nothing | Pin::Unreadable(_) => None,
        });
    }
}

fn unreadable(error: &PinError) -> Refusal {
    let message = format!(
        "{}; to follow the source again, run `machinist apply`",
        chain(error)
    );
    Refusal::new(Reason::SourceUnreadable, &message)
}
