//! The life of one update as a total, pure transition function.
//!
//! ```text
//! Idle ── Desired ──→ Planned ── PlanReady ──→ Waiting ── Released ··→ Staging ── Staged ──→ Committing
//!  ↑                   │  ↑                                              │                       │
//!  ├── PlanEmpty ──────┘  └─────────────────── Replan ───────────────────┘                   Committed
//!  │   PlanRefused                                                                               ↓
//!  └── Verified ── Verifying ←─────────────── ActionsDone ←──────────────────────────────────  Acting
//!                      ↑    └── RebootDue, to RebootPending: the boot is not well                  │
//!                    Booted ←··· the next start, in a new boot ···· RebootPending ←── ActionsDone, reboot
//! ```
//!
//! A step that fails from Staging on leads to Undoing, and from there to Failed; Failed accepts a new
//! desired config at once. A reboot that does not happen leads to Failed with the disk as it is. The
//! way from RebootPending to Booted is no transition: the journal and the boot id tell the next start;
//! but for a start that could not be told which userspace runs, and learns it before it orders another.
//!
//! On a node whose pods must leave, more stands between Waiting and Staging, and before the end:
//!
//! ```text
//! Waiting ── Released ──→ Cordoned ── Cordoned ──→ Withholding ── Withheld ──→ Draining ── Drained ──┐
//!                            ↑                                                                       ↓
//!                            └──────────────────────────── Refilled ──────────────────────────── Drained ── Permitted ──→ Staging
//! … ──→ Uncordoning ── Uncordoned ──→ Idle, or Failed
//! ```
//!
//! Whatever leads to Idle or Failed leads to Uncordoning first while the node is ours and nothing is
//! left to be tried: pods come back to a machine that is wholly on one config.

use serde::{Deserialize, Serialize};

/// Where an update is. The names are those of `status`, metrics and logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing to do.
    #[default]
    Idle,
    /// The machine is looked at and the plan made.
    Planned,
    /// The plan stands; something outside says when it may begin.
    Waiting,
    /// New pods are kept away.
    Cordoned,
    /// Devices are lent to no new pod.
    Withholding,
    /// Pods are asked to leave.
    Draining,
    /// No pod is left that must go; vendors finish, and the cluster is looked at once more.
    Drained,
    /// New objects are built beside the old ones.
    Staging,
    /// Old and new objects change places.
    Committing,
    /// Units are reloaded and restarted.
    Acting,
    /// A reboot is needed and has not happened.
    RebootPending,
    /// The machine came back with the new config.
    Booted,
    /// The disk and the boot are checked.
    Verifying,
    /// The config before comes back.
    Undoing,
    /// The machine is to be fit for pods again, and they may come.
    Uncordoning,
    /// The last update did not succeed; see the failure's code.
    Failed,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A desired config was read that the machine is not on.
    Desired,
    /// The desired config is the verified one again: what is not in force yet goes back.
    Withdrawn,
    /// The machine already is what the config asks for.
    PlanEmpty,
    /// There is something to do.
    PlanReady,
    /// The config, or this machine, does not allow it.
    PlanRefused {
        /// An earlier config still waits for its reboot.
        reboot_pending: bool,
    },
    /// Nothing holds the update any more.
    Released {
        /// The pods must leave first.
        drain: bool,
    },
    /// New pods are kept away.
    Cordoned,
    /// Devices are lent to no new pod.
    Withheld,
    /// Every pod has left that must.
    Drained,
    /// Nobody has a device in hand, and the cluster still wants it so.
    Permitted,
    /// New pods may have come meanwhile.
    Refilled,
    /// The node is given back.
    Uncordoned {
        /// An update failed, and that stands.
        failed: bool,
    },
    /// The machine changed since it was looked at.
    Replan,
    /// Everything new is durable in staging.
    Staged,
    /// Everything is in place and durable.
    Committed,
    /// Every action short of a reboot is done.
    ActionsDone {
        /// Whether a reboot is still needed.
        reboot: bool,
    },
    /// Disk and boot are as asked.
    Verified,
    /// The effect of the current phase failed.
    StepFailed,
    /// The tree is back on the config before.
    Undone {
        /// The machine runs on the config that was undone: it must boot once more.
        reboot: bool,
        /// Nothing failed: the config was taken back.
        withdrawn: bool,
    },
    /// It could not be brought back.
    UndoFailed,
    /// The time to try again has come.
    Retry,
    /// The same, for a reboot that could not be ordered, or whose boot did not come up well: the
    /// config is in place already.
    RebootDue,
    /// The boot into the committed config, which was to be ordered, has happened already.
    BootSeen,
}

/// What the driver must do next; one executor file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Look at the machine and plan.
    Plan,
    /// Find out whether the plan may begin.
    AwaitRelease,
    /// Keep new pods away.
    Cordon,
    /// Lend devices to no new pod.
    Withhold,
    /// Have the pods leave.
    Drain,
    /// Have vendors finish; look at the cluster once more.
    Quiesce,
    /// Record the intent and stage.
    Stage,
    /// Exchange and sync.
    Commit,
    /// Carry out the actions.
    Act,
    /// Order the reboot and wait for it.
    Reboot,
    /// Check disk and boot, record the outcome, tidy up.
    Verify,
    /// Bring the config before back.
    Undo,
    /// Wait until the machine is fit for pods, and let them come.
    Uncordon,
}

impl Phase {
    /// The next phase and what to do there; the phase unchanged and nothing to do where the event
    /// does not concern it.
    ///
    /// `lift`: the node's pods were kept away for an update of which nothing is left, neither on the disk
    /// nor to be tried again.
    #[must_use]
    pub fn on(self, event: Event, lift: bool) -> (Self, Option<Effect>) {
        match self.step(event) {
            (Self::Idle | Self::Failed, None)
                if lift && !matches!(event, Event::Uncordoned { .. }) =>
            {
                (Self::Uncordoning, Some(Effect::Uncordon))
            }
            next => next,
        }
    }

    fn step(self, event: Event) -> (Self, Option<Effect>) {
        let next = self.on_the_node(event);
        let next = next.or_else(|| self.on_the_disk(event));
        next.unwrap_or((self, None))
    }

    /// The part of the table that is about the node's pods.
    fn on_the_node(self, event: Event) -> Option<(Self, Option<Effect>)> {
        use Phase::{
            Cordoned, Drained, Draining, Failed, Idle, Planned, Uncordoning, Waiting, Withholding,
        };
        Some(match (self, event) {
            (Waiting, Event::Released { drain: true }) | (Drained, Event::Refilled) => {
                (Cordoned, Some(Effect::Cordon))
            }
            (Cordoned, Event::Cordoned) => (Withholding, Some(Effect::Withhold)),
            (Withholding, Event::Withheld) => (Draining, Some(Effect::Drain)),
            (Draining, Event::Drained) => (Drained, Some(Effect::Quiesce)),
            (Drained, Event::Permitted) => (Self::Staging, Some(Effect::Stage)),
            (Cordoned | Withholding | Draining | Drained | Uncordoning, Event::Desired) => {
                (Planned, Some(Effect::Plan))
            }
            (Cordoned | Withholding | Draining | Drained, Event::Withdrawn)
            | (Uncordoning, Event::Uncordoned { failed: false }) => (Idle, None),
            (Cordoned | Withholding | Draining | Drained, Event::StepFailed)
            | (Uncordoning, Event::Uncordoned { failed: true }) => (Failed, None),
            _ => return None,
        })
    }

    /// The part of the table that is about the machine.
    fn on_the_disk(self, event: Event) -> Option<(Self, Option<Effect>)> {
        use Phase::{
            Acting, Booted, Committing, Failed, Idle, Planned, RebootPending, Staging, Undoing,
            Verifying, Waiting,
        };
        let pending = |reboot_pending| Event::PlanRefused { reboot_pending };
        Some(match (self, event) {
            (Idle | Planned | Waiting | Failed | RebootPending | Verifying, Event::Desired)
            | (Failed, Event::Retry)
            | (Staging, Event::Replan) => (Planned, Some(Effect::Plan)),
            (Planned, Event::PlanEmpty)
            | (Planned | Waiting, Event::Withdrawn)
            | (Verifying, Event::Verified) => (Idle, None),
            (Planned, event) if event == pending(false) => (Idle, None),
            (Planned, Event::PlanReady) => (Waiting, Some(Effect::AwaitRelease)),
            (Waiting, Event::Released { drain: false }) => (Staging, Some(Effect::Stage)),
            (Staging, Event::Staged) => (Committing, Some(Effect::Commit)),
            (Committing, Event::Committed) => (Acting, Some(Effect::Act)),
            (Acting, Event::ActionsDone { reboot: false })
            | (Booted, Event::ActionsDone { .. }) => (Verifying, Some(Effect::Verify)),
            (Acting, Event::ActionsDone { reboot: true })
            | (RebootPending, Event::Retry)
            | (Verifying | Failed, Event::RebootDue) => (RebootPending, Some(Effect::Reboot)),
            (Planned, event) if event == pending(true) => (RebootPending, Some(Effect::Reboot)),
            (RebootPending, Event::BootSeen) => (Booted, Some(Effect::Act)),
            (RebootPending | Planned | Waiting, Event::StepFailed) => (Failed, None),
            (Staging | Committing | Acting | Booted | Verifying, Event::StepFailed)
            | (RebootPending | Verifying | Failed, Event::Withdrawn) => {
                (Undoing, Some(Effect::Undo))
            }
            (Undoing, Event::Undone { reboot: true, .. }) => (RebootPending, Some(Effect::Reboot)),
            (
                Undoing,
                Event::Undone {
                    withdrawn: true, ..
                },
            ) => (Idle, None),
            (Undoing, Event::Undone { .. } | Event::UndoFailed) => (Failed, None),
            _ => return None,
        })
    }

    /// The name that status, metrics and logs carry.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Planned => "Planned",
            Self::Waiting => "Waiting",
            Self::Cordoned => "Cordoned",
            Self::Withholding => "Withholding",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
            Self::Staging => "Staging",
            Self::Committing => "Committing",
            Self::Acting => "Acting",
            Self::RebootPending => "RebootPending",
            Self::Booted => "Booted",
            Self::Verifying => "Verifying",
            Self::Undoing => "Undoing",
            Self::Uncordoning => "Uncordoning",
            Self::Failed => "Failed",
        }
    }

    /// The phase of that [name](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Whether an update is on its way here, and nothing of the machine has changed for it yet.
    pub const fn is_before_staging(self) -> bool {
        use Phase::{Cordoned, Drained, Draining, Waiting, Withholding};
        matches!(self, Waiting | Cordoned | Withholding | Draining | Drained)
    }

    /// Every phase, for metrics.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::Planned,
        Self::Waiting,
        Self::Cordoned,
        Self::Withholding,
        Self::Draining,
        Self::Drained,
        Self::Staging,
        Self::Committing,
        Self::Acting,
        Self::RebootPending,
        Self::Booted,
        Self::Verifying,
        Self::Undoing,
        Self::Uncordoning,
        Self::Failed,
    ];
}
