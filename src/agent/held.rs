//! Determines the desired config: from the source, or from an operator override that holds the
//! machine on a config.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::other_daemon::{Look, Lookout};
use crate::{
    admin::{Ask, Question, Taken, WantedConfig},
    clock::Clock,
    cluster::node::{OwnNode, Sight},
    error_chain::chain,
    machine_config::{self, MachineConfig, Refusal},
    reason::Reason,
    root::Root,
    status::HeldStatus,
    update::{
        hold::{Hold, HoldError},
        run::{Bar, Desired},
    },
};

/// Interval at which another daemon is looked for again after it was detected.
const LOOKED_AGAIN: Duration = Duration::from_secs(60);

/// How long handling an operator's request waits for each API request. A client that asks for a
/// rollback waits five seconds, and may ask because of the outage.
const PATIENCE: Duration = Duration::from_secs(2);

const NOT_READ: &str = "the desired config was not read yet, or there is none; try again";

/// Inputs that can prevent an update from starting.
#[derive(Debug)]
pub(super) struct Bars {
    /// Detects another daemon that manages this machine.
    pub(super) lookout: Lookout,
    /// Notified when such a daemon may have started, to look for it immediately.
    pub(super) suspect: Arc<Notify>,
    /// Our Node, where an operator can cancel an update.
    pub(super) node: Option<OwnNode>,
    /// Publishes where the other daemon was detected.
    pub(super) seen: watch::Sender<Option<String>>,
}

/// The task between the config source and the reconciler.
#[derive(Debug)]
pub(super) struct Holding {
    root: Root,
    /// The desired config of the source.
    said: watch::Receiver<Desired>,
    /// The desired config for the reconciler.
    to: watch::Sender<Desired>,
    /// Incremented by each operator request, while `to` is locked for the change.
    words: watch::Sender<u64>,
    shown: watch::Sender<Option<HeldStatus>>,
    held: Held,
    /// None until the first check for another daemon; no desired config is passed on before that.
    bars: Option<Bars>,
    /// The config whose update was cancelled and then requested again by an operator.
    overruled: Option<String>,
}

#[derive(Debug)]
enum Held {
    Nothing,
    Config(Hold),
    /// The stored hold cannot be read: no update starts until an operator sets or releases it.
    Unreadable(Arc<Vec<Refusal>>),
}

/// The receivers of the task's outputs.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) desired: watch::Receiver<Desired>,
    pub(super) words: watch::Receiver<u64>,
    pub(super) held: watch::Receiver<Option<HeldStatus>>,
}

impl Holding {
    /// Loads the hold. Blocks.
    pub(super) fn new(root: &Root, said: watch::Receiver<Desired>) -> (Self, Ends) {
        let held = match Hold::load(root) {
            Ok(None) => Held::Nothing,
            Ok(Some(hold)) => {
                let (config, by) = (&hold.config.name, &hold.by);
                tracing::info!("machine pinned to {config} by {by} until the source changes");
                Held::Config(hold)
            }
            Err(error) => Held::Unreadable(Arc::new(vec![unreadable(&error)])),
        };
        let (to, desired) = watch::channel(Desired::Unknown);
        let (words, heard) = watch::channel(0);
        let (shown, seen) = watch::channel(None);
        let holding = Self {
            root: root.clone(),
            said,
            to,
            words,
            shown,
            held,
            bars: None,
            overruled: None,
        };
        holding.tell(false);
        let ends = Ends {
            desired,
            words: heard,
            held: seen,
        };
        (holding, ends)
    }

    /// Forwards the source's desired config and handles operator requests, until `stop`.
    pub(super) async fn run(
        self,
        bars: Bars,
        asks: mpsc::Receiver<Question>,
        stop: CancellationToken,
    ) {
        // Cancel-safe: a hold is on the disk before it takes effect, and a requester notices the
        // closed channel.
        stop.run_until_cancelled(self.stand_between(bars, asks))
            .await;
    }

    async fn stand_between(mut self, bars: Bars, mut asks: mpsc::Receiver<Question>) {
        let suspect = Arc::clone(&bars.suspect);
        let mut sights = bars.node.as_ref().map(OwnNode::sights);
        let mut cancelled = None;
        self.bars = Some(bars);
        self.look().await;
        self.tell(false);
        loop {
            let beside = self.other_daemon().is_some();
            tokio::select! {
                // All of these are cancel-safe: a permit is kept, the timer restarts, and a change
                // stays marked as unseen.
                () = suspect.notified() => {
                    self.look().await;
                    self.tell(false);
                }
                () = tokio::time::sleep(LOOKED_AGAIN), if beside => {
                    self.look().await;
                    self.tell(false);
                }
                asked = cancels(&mut sights, &cancelled) => {
                    cancelled = asked;
                    if self.overruled != cancelled {
                        self.overruled = None;
                    }
                    self.tell(false);
                }
                // Cancel-safe: a missed change stays marked as unseen.
                changed = self.said.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.look().await;
                    self.follow().await;
                }
                // Cancel-safe: a request that was not received stays in the queue.
                Some(question) = asks.recv() => self.answer(question).await,
            }
        }
    }

    async fn answer(&mut self, question: Question) {
        // The requester may have stopped waiting.
        match question {
            Question::Take(ask) => {
                let Ask {
                    by,
                    name,
                    config,
                    reply,
                } = ask;
                let _ = reply.send(self.take(by, name, config).await);
            }
            Question::Wanted(reply) => {
                let said = self.said.borrow().clone();
                let wanted = tokio::task::spawn_blocking(move || wanted(&said)).await;
                let _ = reply.send(wanted.unwrap_or_else(|lost| Err(lost.to_string())));
            }
        }
    }

    /// Handles a change of the source: a hold against its previous config ends.
    async fn follow(&mut self) {
        let over = match &self.held {
            Held::Config(hold) => hold.desired(&self.said.borrow()).is_none(),
            Held::Nothing | Held::Unreadable(_) => false,
        };
        if let (Held::Config(hold), Desired::Refused(refusals)) = (&self.held, &*self.said.borrow())
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

    async fn take(&mut self, by: String, name: String, config: Vec<u8>) -> Result<Taken, String> {
        // If this times out, the check is repeated before the first change.
        let _ = timeout(PATIENCE, self.look()).await;
        if let Some(seen) = self.other_daemon() {
            return Err(format!(
                "{seen}: only one agent may manage this machine; remove it from this node first"
            ));
        }
        let (config, digest) = tokio::task::spawn_blocking(move || read(&name, &config))
            .await
            .map_err(|error| error.to_string())??;
        let over = match &*self.said.borrow() {
            Desired::Unknown | Desired::Nothing => {
                return Err(NOT_READ.to_owned());
            }
            Desired::Refused(_) => None,
            Desired::Config(_, digest) | Desired::Barred(_, digest, _) => Some(*digest),
        };
        let hold = (over != Some(digest)).then(|| Hold {
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
            self.overrule().await?;
        }
        self.keep(hold).await.map_err(|error| chain(&error))?;
        self.tell(true);
        Ok(Taken {
            asked: *self.words.borrow(),
        })
    }

    async fn keep(&mut self, hold: Option<Hold>) -> Result<(), HoldError> {
        let root = self.root.clone();
        let kept = hold.clone();
        let saved = tokio::task::spawn_blocking(move || match kept {
            Some(hold) => hold.save(&root),
            None => Hold::forget(&root),
        });
        // A lost task is a defect and is logged; the hold is in effect in memory nevertheless.
        saved.await.unwrap_or(Ok(()))?;
        self.held = hold.map_or(Held::Nothing, Held::Config);
        Ok(())
    }

    /// An operator requests the config whose update was cancelled. While the cancellation is on the
    /// Node, the final check before the first change would refuse the update, so it is removed.
    async fn overrule(&mut self) -> Result<(), String> {
        let node = self.bars.as_ref().and_then(|bars| bars.node.as_ref());
        let Some((node, config)) = node.and_then(|node| Some((node, cancel(&node.sights())?)))
        else {
            return Ok(());
        };
        let taken = match timeout(PATIENCE, node.answer_cancel(&config, None)).await {
            Ok(taken) => taken.map_err(|error| chain(&error)),
            Err(_) => Err("API server unreachable".to_owned()),
        };
        if let Err(why) = taken {
            return Err(format!(
                "failed to undo the cancellation of the update to {config}: {why}"
            ));
        }
        self.overruled = Some(config);
        Ok(())
    }

    async fn look(&self) {
        let Some(bars) = &self.bars else {
            return;
        };
        let seen = match bars.lookout.look().await {
            Look::Seen(seen) => Some(seen),
            Look::Absent => None,
            // A daemon that was detected before may still be running.
            Look::Unknown(error) => {
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
    fn bar(&self, config: &MachineConfig) -> Option<Bar> {
        if let Some(seen) = self.other_daemon() {
            return Some(Bar {
                reason: Reason::OtherDaemon,
                message: format!("{seen}; no update is started while it is present"),
            });
        }
        let held = matches!(self.held, Held::Config(_));
        let node = self.bars.as_ref()?.node.as_ref()?;
        let cancelled = cancel(&node.sights()).filter(|_| !held)?;
        let meant = cancelled == config.name && self.overruled.as_ref() != Some(&cancelled);
        meant.then(|| Bar {
            reason: Reason::Cancelled,
            message: format!("the update to {cancelled} was cancelled by an operator"),
        })
    }

    /// Publishes the desired config to the reconciler and the status; `asked` means that an
    /// operator wants it now.
    fn tell(&self, asked: bool) {
        let said = self.said.borrow().clone();
        let desired = match &self.held {
            Held::Nothing => said,
            Held::Config(hold) => hold.desired(&said).unwrap_or(said),
            Held::Unreadable(refusals) => Desired::Refused(Arc::clone(refusals)),
        };
        let desired = match desired {
            // The first check for another daemon has not finished.
            Desired::Config(..) if self.bars.is_none() => Desired::Unknown,
            Desired::Config(config, digest) => match self.bar(&config) {
                Some(bar) => Desired::Barred(config, digest, Arc::new(bar)),
                None => Desired::Config(config, digest),
            },
            other => other,
        };
        self.to.send_if_modified(|known| {
            if asked {
                self.words.send_modify(|word| *word += 1);
            }
            let tell = asked || !known.says_the_same(&desired);
            if tell {
                *known = desired;
            }
            tell
        });
        self.shown.send_replace(match &self.held {
            Held::Config(hold) => Some(HeldStatus {
                config: hold.config.name.clone(),
                digest: hold.digest.to_string(),
                by: hold.by.clone(),
                since: hold.since,
            }),
            Held::Nothing | Held::Unreadable(_) => None,
        });
    }
}

/// The config whose update an operator cancels, according to the Node.
fn cancel(sights: &watch::Receiver<Sight>) -> Option<String> {
    let sight = sights.borrow();
    sight.node.as_ref()?.cancel().map(str::to_owned)
}

/// Waits until the cancellation on the Node differs from `known`.
async fn cancels(
    sights: &mut Option<watch::Receiver<Sight>>,
    known: &Option<String>,
) -> Option<String> {
    let Some(sights) = sights else {
        return std::future::pending().await;
    };
    let other = sights.wait_for(|sight| {
        let node = sight.node.as_ref();
        // While the Node is unknown, nothing changes.
        node.is_some_and(|node| node.cancel() != known.as_deref())
    });
    if other.await.is_err() {
        std::future::pending().await
    }
    cancel(sights)
}

/// The desired config of the source, in its external representation.
fn wanted(said: &Desired) -> Result<WantedConfig, String> {
    match said {
        Desired::Unknown | Desired::Nothing => Err(NOT_READ.to_owned()),
        Desired::Refused(refusals) => {
            let all: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(format!(
                "the source's config is rejected: {}",
                all.join("; ")
            ))
        }
        Desired::Config(config, _) | Desired::Barred(config, ..) => Ok(WantedConfig {
            name: config.name.clone(),
            config: machine_config::to_portable_json(config).map_err(|error| chain(&error))?,
        }),
    }
}

fn read(name: &str, config: &[u8]) -> Result<(MachineConfig, crate::digest::Digest), String> {
    let mut config = machine_config::from_portable_json(config).map_err(|error| chain(&error))?;
    name.clone_into(&mut config.name);
    let digest = machine_config::digest(&config);
    Ok((config, digest))
}

fn unreadable(error: &HoldError) -> Refusal {
    let message = format!(
        "{}; to follow the source again, run `machinist apply`",
        chain(error)
    );
    Refusal::new(Reason::SourceUnreadable, &message)
}
