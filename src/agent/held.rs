//! What is desired: what the source says, or the config that a person holds the machine on.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{Ask, Taken},
    clock::Clock,
    machine_config::{self, MachineConfig, Refusal},
    reason::Reason,
    root::Root,
    status::HeldStatus,
    telemetry::chain,
    update::{
        hold::{Hold, HoldError},
        run::Desired,
    },
};

/// The task that stands between the source and the driver.
#[derive(Debug)]
pub(super) struct Holding {
    root: Root,
    /// What the source says.
    said: watch::Receiver<Desired>,
    /// What the driver is told.
    to: watch::Sender<Desired>,
    /// Raised with each word of a person, while `to` is changed.
    words: watch::Sender<u64>,
    shown: watch::Sender<Option<HeldStatus>>,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Nothing,
    Config(Hold),
    /// There is a hold that cannot be read: nothing is changed until a person speaks.
    Unreadable(Arc<Vec<Refusal>>),
}

/// The ends that others hold.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) desired: watch::Receiver<Desired>,
    pub(super) words: watch::Receiver<u64>,
    pub(super) held: watch::Receiver<Option<HeldStatus>>,
}

impl Holding {
    /// Reads what is held. Blocks.
    pub(super) fn new(root: &Root, said: watch::Receiver<Desired>) -> (Self, Ends) {
        let held = match Hold::load(root) {
            Ok(None) => Held::Nothing,
            Ok(Some(hold)) => {
                let (config, by) = (&hold.config.name, &hold.by);
                tracing::info!("the machine is held on {config} ({by}) until the source changes");
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
        };
        holding.tell(false);
        let ends = Ends {
            desired,
            words: heard,
            held: seen,
        };
        (holding, ends)
    }

    /// Passes on what the source says, and takes what persons ask for, until `stop`.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<Ask>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop: a change that is missed is still marked unseen.
                changed = self.said.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.follow().await;
                }
                // Safe to drop: a question that was not taken stays in the queue.
                Some(ask) = asks.recv() => {
                    let Ask { by, name, config, reply } = ask;
                    // Nobody may be waiting any more.
                    let _ = reply.send(self.take(by, name, config).await);
                }
            }
        }
    }

    /// The source says something else: a hold against what it said before is over.
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
            tracing::warn!("the machine stays held on {held} until the source is accepted");
        }
        if over {
            tracing::info!("the source says something new: the machine follows it again");
            if let Err(error) = self.keep(None).await {
                tracing::warn!("{}", chain(&error));
            }
        }
        self.tell(false);
    }

    async fn take(&mut self, by: String, name: String, config: Vec<u8>) -> Result<Taken, String> {
        let (config, digest) = tokio::task::spawn_blocking(move || read(&name, &config))
            .await
            .map_err(|error| error.to_string())??;
        let over = match &*self.said.borrow() {
            Desired::Unknown | Desired::Nothing => {
                return Err("the source is not read yet; ask again".to_owned());
            }
            Desired::Refused(_) => None,
            Desired::Config(_, digest) => Some(*digest),
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
                tracing::info!("held on {config} until the source changes, as asked for ({by})");
            }
            None => tracing::info!("a person asks for what the source says"),
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
        // A lost task is a defect that the log shows; what is held counts in memory all the same.
        saved.await.unwrap_or(Ok(()))?;
        self.held = hold.map_or(Held::Nothing, Held::Config);
        Ok(())
    }

    /// Tells the driver and the status what is desired; `asked` when a person wants it now.
    fn tell(&self, asked: bool) {
        let said = self.said.borrow().clone();
        let desired = match &self.held {
            Held::Nothing => said,
            Held::Config(hold) => hold.desired(&said).unwrap_or(said),
            Held::Unreadable(refusals) => Desired::Refused(Arc::clone(refusals)),
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

fn read(name: &str, config: &[u8]) -> Result<(MachineConfig, crate::digest::Digest), String> {
    let mut config = machine_config::from_portable_json(config).map_err(|error| chain(&error))?;
    name.clone_into(&mut config.name);
    let digest = machine_config::digest(&config);
    Ok((config, digest))
}

fn unreadable(error: &HoldError) -> Refusal {
    let message = format!(
        "{}; `machinist apply` follows the source again",
        chain(error)
    );
    Refusal::new(Reason::SourceUnreadable, &message)
}
