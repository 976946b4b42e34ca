//! One boot, two who could judge it: the guard, which holds the lock until its verdict, and the agent
//! beside it, which shows what the guard does and goes on afterwards.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    Audience, Conduct, Desired, RebootConduct, UpdateError, UpdateReport, Updater,
    trouble::{self, Opened, Regained},
    turn::sleep_until,
};
use crate::{
    path::AbsPath,
    root::Root,
    update::{
        guard,
        journal::{Direction, Journal},
        phase::{Effect, Phase},
        ports::Services,
        recover::RecoverError,
        store::{self, StoreError},
    },
};

/// How often the agent looks whether the lock is free. The guard's verdict takes seconds at least.
const LOOK: Duration = Duration::from_millis(500);

/// How long the lock may be held though there is nothing to judge: the end of a guard, or of a command. A
/// guard's end was seen to take eight seconds, on a machine that had a twentieth of a processor.
const ENDING: u32 = 20;

impl UpdateError {
    /// Somebody else holds the lock.
    pub fn is_locked(&self) -> bool {
        let (Self::Store(error) | Self::Recover(RecoverError::Store(error))) = self else {
            return false;
        };
        matches!(error, StoreError::Locked { .. })
    }
}

impl<S: Services, A: Audience> Updater<S, A> {
    /// As [`Updater::new`], for the agent: while the guard judges the boot, it shows what the guard
    /// does, and takes the lock when that is over.
    pub async fn beside_the_guard(
        root: &Root,
        services: Option<S>,
        audience: A,
        conduct: Conduct,
        desired: watch::Receiver<Desired>,
    ) -> Result<(Self, watch::Receiver<Arc<UpdateReport>>), UpdateError> {
        let mut ended = 0;
        let opened = loop {
            match look(root)? {
                Lock::Free(opened) => break *opened,
                Lock::Held { journal, due, .. } if due && conduct.capabilities.live => {
                    break Opened {
                        store: None,
                        journal: *journal,
                        trouble: None,
                    };
                }
                // Below a root that nobody has booted there is no guard.
                Lock::Held { lock, .. } if ended == ENDING || !conduct.capabilities.live => {
                    return Err(StoreError::Locked { lock }.into());
                }
                Lock::Held { .. } => ended += 1,
            }
            tokio::time::sleep(LOOK).await;
        };
        Ok(Self::of(root, opened, services, audience, conduct, desired))
    }

    /// Shows what the journal says until the lock is free. False: asked to stop.
    pub(super) async fn await_the_guard(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<bool, UpdateError> {
        if !self.is_beside_the_guard() {
            return Ok(true);
        }
        tracing::info!("machinist-guard judges this boot; nothing is changed until then");
        let mut idle = 0;
        while self.is_beside_the_guard() {
            let root = self.root.clone();
            let look = tokio::task::spawn_blocking(move || look(&root));
            match self
                .while_turning(look)
                .await
                .map_err(UpdateError::Lost)??
            {
                Lock::Free(opened) => {
                    self.store = opened.store;
                    self.journal = opened.journal;
                    self.trouble = opened.trouble;
                }
                Lock::Held { journal, due, lock } => {
                    idle = if due { 0 } else { idle + 1 };
                    if idle > ENDING {
                        return Err(StoreError::Locked { lock }.into());
                    }
                    self.show(*journal);
                    tokio::select! {
                        () = stop.cancelled() => return Ok(false),
                        // Safe to drop: the next look is due all the same.
                        () = self.while_turning(tokio::time::sleep(LOOK)) => {}
                    }
                }
            }
        }
        self.next = self.resume();
        self.publish();
        Ok(true)
    }

    /// Whether somebody else has the lock, to judge this boot.
    pub(super) fn is_beside_the_guard(&self) -> bool {
        self.store.is_none() && self.trouble.is_none()
    }

    fn show(&mut self, journal: Journal) {
        let phase = shown_phase(&journal);
        let wanted = self.desired.borrow().config().map(|(_, digest)| digest);
        let shown = self
            .report
            .borrow()
            .config
            .desired
            .as_ref()
            .map(|desired| desired.digest);
        if wanted != shown || self.journal != journal || self.phase != phase {
            self.journal = journal;
            self.enter(phase);
        }
    }

    /// Judges the running boot and does what follows: what the guard is for. Ends when nothing is open
    /// any more, when the rest is the agent's or a person's, with the machine, or with a stop. Nothing
    /// desired is looked at.
    pub async fn judge_boot(
        mut self,
        stop: CancellationToken,
    ) -> Result<Arc<UpdateReport>, UpdateError> {
        let mut next = self.next.take();
        loop {
            if !is_due(&self.root, &self.journal)? && self.trouble.is_none() {
                break;
            }
            let turned = match next.take() {
                _ if self.trouble.is_some() => match self.regain(&stop).await? {
                    Regained::Stopped => break,
                    Regained::At(effect) => {
                        next = effect;
                        continue;
                    }
                },
                Some(Effect::Reboot) if self.conduct.reboot != RebootConduct::Auto => {
                    tracing::warn!("a reboot is needed; it is left to a person (update.reboot)");
                    break;
                }
                Some(effect) => {
                    let span = self.span();
                    self.carry_out(effect, &stop).instrument(span).await
                }
                // An undo that got stuck is tried again; anything else is over.
                None => match self.retry_after() {
                    None => break,
                    Some(then) => tokio::select! {
                        () = stop.cancelled() => break,
                        // Safe to drop: the deadline is absolute.
                        () = sleep_until(Some(then)) => Ok(Some(self.again())),
                    },
                },
            };
            match turned {
                Ok(None) => break,
                Ok(Some(event)) => next = self.step(event),
                Err(error) => self.troubled(error)?,
            }
        }
        Ok(self.report.borrow().clone())
    }
}

/// The phase that the guard is in, as far as its journal tells.
pub(super) fn shown_phase(journal: &Journal) -> Phase {
    match journal.top() {
        Some(tx) if tx.direction == Direction::Undo => Phase::Undoing,
        Some(_) => Phase::Verifying,
        None => Phase::Idle,
    }
}

/// What a look at the lock found.
enum Lock {
    /// It is ours now, and what a crash left is settled as far as that is possible.
    Free(Box<Opened>),
    /// It is somebody else's.
    Held {
        journal: Box<Journal>,
        /// There is a boot to judge.
        due: bool,
        lock: AbsPath,
    },
}

fn look(root: &Root) -> Result<Lock, UpdateError> {
    match trouble::open(root, None) {
        Ok(opened) => Ok(Lock::Free(Box::new(opened))),
        Err(StoreError::Locked { lock }) => {
            let journal = Box::new(store::peek(root)?);
            let due = is_due(root, &journal)?;
            Ok(Lock::Held { journal, due, lock })
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the running boot of this root is to be judged.
fn is_due(root: &Root, journal: &Journal) -> Result<bool, StoreError> {
    let boot = store::boot_id(root)?;
    Ok(boot.is_some_and(|boot| guard::is_due(journal, &boot)))
}
