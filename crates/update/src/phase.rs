//! Defines the phases of an update as a total, pure transition function.
//!
//! ```text
//! Idle ── Desired ──→ Planned ── PlanReady ──→ Waiting ── Released ··→ Staging ── Staged ──→ Committing
//!  ↑                   │  ↑                                              │                       │
//!  ├── PlanEmpty ──────┘  └─────────────────── Replan ───────────────────┘                   Committed
//!  │   PlanRefused                                                                               ↓
//!  └── Verified ── Verifying ←─────────────── ActionsDone ←──────────────────────────────────  RunningActions
//!                      ↑    └── RebootDue, to RebootPending: the boot is not well                  │
//!                    Booted ←··· the next start, in a new boot ···· RebootPending ←── ActionsDone, reboot
//! ```
//!
//! A step that fails from Staging on leads to RollingBack, and from there to Failed. Failed accepts a new desired
//! config at once. A reboot that does not happen leads to Failed and leaves the disk unchanged. RebootPending
//! normally reaches Booted without a transition: the next start of the agent detects the new boot from the journal
//! and the boot ID. The exception is a start that could not determine the running userspace: it does so before it
//! requests another reboot, and then receives `BootSeen`.
//!
//! A newer config that cannot begin while an update is open leads to RunningActions, and so to the phase of that update.
//!
//! A plan with an OS image that is not on the host leads from Waiting to Fetching, and back once the image is there.
//!
//! On a node that must be drained, there are more phases between Waiting and Staging, and before the end:
//!
//! ```text
//! Waiting ── Released ──→ Cordoned ── Cordoned ──→ DisablingDevices ── Withheld ──→ Draining ── Drained ──┐
//!                            ↑                                                                       ↓
//!                            └──────────────────────────── Refilled ──────────────────────────── Drained ── Permitted ──→ Staging
//! … ──→ Uncordoning ── Uncordoned ──→ Idle, or Failed
//! ```
//!
//! Every transition to Idle or Failed goes through Uncordoning first if machinist has cordoned the node and nothing
//! is left to retry: pods return only to a machine that is completely on one config.

use serde::{Deserialize, Serialize};

/// Phase of an update. `status`, metrics, and logs show these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// There is nothing to do.
    #[default]
    Idle,
    /// The machine is observed and the plan is made.
    Planned,
    /// The plan is ready and waits for a maintenance window, the cluster, or an approval.
    Waiting,
    /// The image of the operating system is being downloaded.
    Fetching,
    /// The node is being cordoned.
    Cordoned,
    /// Device allocation is being disabled.
    #[serde(alias = "Withholding")]
    DisablingDevices,
    /// Pods are being evicted.
    Draining,
    /// The drain is complete. Device drivers are quiesced, and the cluster state is checked again.
    Drained,
    /// New objects are built in staging, beside the old ones.
    Staging,
    /// Old and new objects are exchanged.
    Committing,
    /// Units are reloaded and restarted.
    #[serde(alias = "Acting")]
    RunningActions,
    /// A reboot is pending.
    RebootPending,
    /// The machine has booted with the new config.
    Booted,
    /// The disk and the boot are verified.
    Verifying,
    /// The previous config is being restored.
    #[serde(alias = "Undoing")]
    RollingBack,
    /// The node waits until it is fit for pods, and is then uncordoned.
    Uncordoning,
    /// The last update failed; see the failure's reason code.
    Failed,
}

/// An input of the transition function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEvent {
    /// The desired config differs from the config of the machine.
    Desired,
    /// The desired config is the verified one again: the update in progress is rolled back.
    Withdrawn,
    /// The machine already matches the config.
    PlanEmpty,
    /// The plan has changes.
    PlanReady,
    /// The plan was refused, because of the config or of this machine.
    PlanRefused,
    /// A newer config cannot begin: the open update to an earlier one goes on.
    Resume,
    /// The plan has an OS image that is not on the host.
    ImageMissing,
    /// The OS image is on the host, and the machine still matches the plan.
    Fetched,
    /// The update may begin.
    Released {
        /// The node must be drained first.
        drain: bool,
    },
    /// The node is cordoned.
    Cordoned,
    /// Device allocation is disabled.
    DevicesDisabled,
    /// The drain is complete.
    Drained,
    /// No pod to be evicted holds a device, and a fresh check of the cluster permits the step.
    Permitted,
    /// New pods may have been scheduled in the meantime.
    Refilled,
    /// Uncordoning has ended.
    Uncordoned {
        /// An update failed, and its failure still applies.
        failed: bool,
    },
    /// The machine has changed since it was observed.
    Replan,
    /// All new objects are durable in staging.
    Staged,
    /// All changes are in place and durable.
    Committed,
    /// All actions except a reboot are done.
    ActionsDone {
        /// Whether a reboot is still needed.
        reboot: bool,
    },
    /// The disk and the boot match the config.
    Verified,
    /// The effect of the current phase failed.
    StepFailed,
    /// The tree has the previous config again.
    Undone {
        /// The machine runs on the config that was undone, so it must reboot once more.
        reboot: bool,
        /// Nothing failed; the config was withdrawn.
        withdrawn: bool,
    },
    /// The undo failed.
    RollbackFailed,
    /// The retry delay has passed.
    Retry,
    /// The retry delay has passed for a reboot that could not be requested, or after which the boot was unhealthy:
    /// the config is already in place.
    RebootDue,
    /// The boot into the committed config has already happened, so no reboot is requested.
    BootSeen,
}

/// The work that follows a transition; each effect has its own file below `run/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEffect {
    /// Observe the machine and plan.
    Plan,
    /// Wait until the plan may begin.
    AwaitRelease,
    /// Download the OS image.
    Fetch,
    /// Cordon the node.
    Cordon,
    /// Disable device allocation.
    Withhold,
    /// Drain the node.
    Drain,
    /// Quiesce device drivers and check the cluster state again.
    Quiesce,
    /// Record the intent and stage the new objects.
    Stage,
    /// Exchange the objects and sync.
    Commit,
    /// Carry out the actions.
    Act,
    /// Request the reboot and wait for it.
    Reboot,
    /// Verify the disk and the boot, record the outcome, and clean up.
    Verify,
    /// Restore the previous config.
    Undo,
    /// Wait until the machine is fit for pods, then uncordon the node.
    Uncordon,
}

impl Phase {
    /// Returns the next phase and its effect. If the event does not concern this phase, the phase is unchanged and
    /// there is no effect.
    ///
    /// `lift`: the node is cordoned for an update that no longer exists, neither on the disk nor as a retry.
    #[must_use]
    pub fn on(self, event: PhaseEvent, lift: bool) -> (Self, Option<PhaseEffect>) {
        match self.step(event) {
            (Self::Idle | Self::Failed, None)
                if lift && !matches!(event, PhaseEvent::Uncordoned { .. }) =>
            {
                (Self::Uncordoning, Some(PhaseEffect::Uncordon))
            }
            next => next,
        }
    }

    fn step(self, event: PhaseEvent) -> (Self, Option<PhaseEffect>) {
        let next = self.on_the_node(event);
        let next = next.or_else(|| self.on_the_disk(event));
        next.unwrap_or((self, None))
    }

    /// Transitions that concern the node's pods.
    fn on_the_node(self, event: PhaseEvent) -> Option<(Self, Option<PhaseEffect>)> {
        use Phase::{
            Cordoned, DisablingDevices, Drained, Draining, Failed, Idle, Planned, Uncordoning,
            Waiting,
        };
        Some(match (self, event) {
            (Waiting, PhaseEvent::Released { drain: true }) | (Drained, PhaseEvent::Refilled) => {
                (Cordoned, Some(PhaseEffect::Cordon))
            }
            (Cordoned, PhaseEvent::Cordoned) => (DisablingDevices, Some(PhaseEffect::Withhold)),
            (DisablingDevices, PhaseEvent::DevicesDisabled) => (Draining, Some(PhaseEffect::Drain)),
            (Draining, PhaseEvent::Drained) => (Drained, Some(PhaseEffect::Quiesce)),
            (Drained, PhaseEvent::Permitted) => (Self::Staging, Some(PhaseEffect::Stage)),
            (
                Cordoned | DisablingDevices | Draining | Drained | Uncordoning,
                PhaseEvent::Desired,
            ) => (Planned, Some(PhaseEffect::Plan)),
            (Cordoned | DisablingDevices | Draining | Drained, PhaseEvent::Withdrawn)
            | (Uncordoning, PhaseEvent::Uncordoned { failed: false }) => (Idle, None),
            (Cordoned | DisablingDevices | Draining | Drained, PhaseEvent::StepFailed)
            | (Uncordoning, PhaseEvent::Uncordoned { failed: true }) => (Failed, None),
            _ => return None,
        })
    }

    /// Transitions that concern the machine.
    fn on_the_disk(self, event: PhaseEvent) -> Option<(Self, Option<PhaseEffect>)> {
        use Phase::{
            Booted, Committing, Failed, Fetching, Idle, Planned, RebootPending, RollingBack,
            RunningActions, Staging, Verifying, Waiting,
        };
        Some(match (self, event) {
            (
                Idle | Planned | Waiting | Fetching | Failed | RebootPending | Verifying,
                PhaseEvent::Desired,
            )
            | (Failed, PhaseEvent::Retry)
            | (Fetching | Staging, PhaseEvent::Replan) => (Planned, Some(PhaseEffect::Plan)),
            (Planned, PhaseEvent::PlanEmpty | PhaseEvent::PlanRefused)
            | (Planned | Waiting | Fetching, PhaseEvent::Withdrawn)
            | (Verifying, PhaseEvent::Verified) => (Idle, None),
            (Planned, PhaseEvent::PlanReady) | (Fetching, PhaseEvent::Fetched) => {
                (Waiting, Some(PhaseEffect::AwaitRelease))
            }
            (Waiting, PhaseEvent::ImageMissing) => (Fetching, Some(PhaseEffect::Fetch)),
            (Waiting, PhaseEvent::Released { drain: false }) => (Staging, Some(PhaseEffect::Stage)),
            (Staging, PhaseEvent::Staged) => (Committing, Some(PhaseEffect::Commit)),
            (Committing, PhaseEvent::Committed) => (RunningActions, Some(PhaseEffect::Act)),
            (RunningActions, PhaseEvent::ActionsDone { reboot: false })
            | (Booted, PhaseEvent::ActionsDone { .. }) => (Verifying, Some(PhaseEffect::Verify)),
            (RunningActions, PhaseEvent::ActionsDone { reboot: true })
            | (RebootPending, PhaseEvent::Retry)
            | (Verifying | Failed, PhaseEvent::RebootDue) => {
                (RebootPending, Some(PhaseEffect::Reboot))
            }
            // Only its reboot is still to come, or not even that.
            (phase, PhaseEvent::Resume) if phase == Planned || phase.is_before_staging() => {
                (RunningActions, Some(PhaseEffect::Act))
            }
            (RebootPending, PhaseEvent::BootSeen) => (Booted, Some(PhaseEffect::Act)),
            (RebootPending | Planned | Waiting | Fetching, PhaseEvent::StepFailed) => {
                (Failed, None)
            }
            (
                Staging | Committing | RunningActions | Booted | Verifying,
                PhaseEvent::StepFailed,
            )
            | (RebootPending | Verifying | Failed, PhaseEvent::Withdrawn) => {
                (RollingBack, Some(PhaseEffect::Undo))
            }
            (RollingBack, PhaseEvent::Undone { reboot: true, .. }) => {
                (RebootPending, Some(PhaseEffect::Reboot))
            }
            (
                RollingBack,
                PhaseEvent::Undone {
                    withdrawn: true, ..
                },
            ) => (Idle, None),
            (RollingBack, PhaseEvent::Undone { .. } | PhaseEvent::RollbackFailed) => (Failed, None),
            _ => return None,
        })
    }

    /// Returns the name for status, metrics, and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Planned => "Planned",
            Self::Waiting => "Waiting",
            Self::Fetching => "Fetching",
            Self::Cordoned => "Cordoned",
            Self::DisablingDevices => "DisablingDevices",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
            Self::Staging => "Staging",
            Self::Committing => "Committing",
            Self::RunningActions => "RunningActions",
            Self::RebootPending => "RebootPending",
            Self::Booted => "Booted",
            Self::Verifying => "Verifying",
            Self::RollingBack => "RollingBack",
            Self::Uncordoning => "Uncordoning",
            Self::Failed => "Failed",
        }
    }

    /// Returns the phase with this [name](Self::name), also by the name that an earlier version wrote.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "Withholding" => Some(Self::DisablingDevices),
            "Acting" => Some(Self::RunningActions),
            "Undoing" => Some(Self::RollingBack),
            _ => Self::ALL.into_iter().find(|phase| phase.name() == name),
        }
    }

    /// Returns whether an update is in progress and has not changed the machine yet.
    pub const fn is_before_staging(self) -> bool {
        use Phase::{Cordoned, DisablingDevices, Drained, Draining, Fetching, Waiting};
        matches!(
            self,
            Waiting | Fetching | Cordoned | DisablingDevices | Draining | Drained
        )
    }

    /// All phases, for metrics.
    pub const ALL: [Self; 17] = [
        Self::Idle,
        Self::Planned,
        Self::Waiting,
        Self::Fetching,
        Self::Cordoned,
        Self::DisablingDevices,
        Self::Draining,
        Self::Drained,
        Self::Staging,
        Self::Committing,
        Self::RunningActions,
        Self::RebootPending,
        Self::Booted,
        Self::Verifying,
        Self::RollingBack,
        Self::Uncordoning,
        Self::Failed,
    ];
}
