//! The life of one update as a total, pure transition function.
//!
//! ```text
//! Idle ── Desired ──→ Planned ── PlanReady ──→ Waiting ── Released ──→ Staging ── Staged ──→ Committing
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
//! Cordon, drain and uncordon stand between Waiting and Staging and after Verifying on a machine
//! whose pods must leave; they join this table together with the rooms that carry them out.

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
    Released,
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
}

impl Phase {
    /// The next phase and what to do there; the phase unchanged and nothing to do where the event
    /// does not concern it.
    #[must_use]
    pub fn on(self, event: Event) -> (Self, Option<Effect>) {
        match (self, event) {
            (Self::Idle | Self::Planned | Self::Waiting | Self::Failed, Event::Desired)
            | (Self::RebootPending | Self::Verifying, Event::Desired)
            | (Self::Failed, Event::Retry)
            | (Self::Staging, Event::Replan) => (Self::Planned, Some(Effect::Plan)),
            (
                Self::Planned,
                Event::PlanEmpty
                | Event::PlanRefused {
                    reboot_pending: false,
                },
            )
            | (Self::Planned | Self::Waiting, Event::Withdrawn) => (Self::Idle, None),
            (Self::Planned, Event::PlanReady) => (Self::Waiting, Some(Effect::AwaitRelease)),
            (Self::Waiting, Event::Released) => (Self::Staging, Some(Effect::Stage)),
            (Self::Staging, Event::Staged) => (Self::Committing, Some(Effect::Commit)),
            (Self::Committing, Event::Committed) => (Self::Acting, Some(Effect::Act)),
            (Self::Acting, Event::ActionsDone { reboot: false })
            | (Self::Booted, Event::ActionsDone { .. }) => (Self::Verifying, Some(Effect::Verify)),
            (Self::Acting, Event::ActionsDone { reboot: true })
            | (Self::RebootPending, Event::Retry)
            | (Self::Verifying | Self::Failed, Event::RebootDue)
            | (
                Self::Planned,
                Event::PlanRefused {
                    reboot_pending: true,
                },
            ) => (Self::RebootPending, Some(Effect::Reboot)),
            (Self::RebootPending, Event::BootSeen) => (Self::Booted, Some(Effect::Act)),
            (Self::Verifying, Event::Verified) => (Self::Idle, None),
            (Self::RebootPending, Event::StepFailed) | (Self::Planned, Event::StepFailed) => {
                (Self::Failed, None)
            }
            (
                Self::Staging | Self::Committing | Self::Acting | Self::Booted | Self::Verifying,
                Event::StepFailed,
            )
            | (Self::RebootPending | Self::Verifying | Self::Failed, Event::Withdrawn) => {
                (Self::Undoing, Some(Effect::Undo))
            }
            (Self::Undoing, Event::Undone { reboot: true, .. }) => {
                (Self::RebootPending, Some(Effect::Reboot))
            }
            (
                Self::Undoing,
                Event::Undone {
                    withdrawn: true, ..
                },
            ) => (Self::Idle, None),
            (Self::Undoing, Event::Undone { .. } | Event::UndoFailed) => (Self::Failed, None),
            (phase, _) => (phase, None),
        }
    }

    /// The name that status, metrics and logs carry.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Planned => "Planned",
            Self::Waiting => "Waiting",
            Self::Staging => "Staging",
            Self::Committing => "Committing",
            Self::Acting => "Acting",
            Self::RebootPending => "RebootPending",
            Self::Booted => "Booted",
            Self::Verifying => "Verifying",
            Self::Undoing => "Undoing",
            Self::Failed => "Failed",
        }
    }

    /// Every phase, for metrics.
    pub const ALL: [Self; 11] = [
        Self::Idle,
        Self::Planned,
        Self::Waiting,
        Self::Staging,
        Self::Committing,
        Self::Acting,
        Self::RebootPending,
        Self::Booted,
        Self::Verifying,
        Self::Undoing,
        Self::Failed,
    ];
}
