//! Reasons of the Kubernetes events that machinist publishes.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident: $weight:ident, $action:literal;)+) => {
        /// Event reasons, which are stable. Those that OpenShift's daemon also uses have the same
        /// meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventReason { $($(#[doc = $doc])+ $name,)+ }

        impl EventReason {
            /// All reasons, in the order of an update.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The `reason` field of the event.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The `action` field of the event.
            pub const fn action(self) -> &'static str {
                match self { $(Self::$name => $action,)+ }
            }

            /// The event type: `Warning` if an operator should look at it.
            pub const fn weight(self) -> EventType {
                match self { $(Self::$name => EventType::$weight,)+ }
            }

            /// One sentence for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

/// The event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// For information only.
    Normal,
    /// An operator should look at it.
    Warning,
}

impl EventType {
    /// The `type` field of the event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

reasons! {
    /// The config cannot be applied on this machine; nothing was changed.
    FailedToReconcile: Warning, "Plan";
    /// The config is accepted, but a part of it has no effect or looks like a mistake, or its plan
    /// has a warning about this machine.
    ConfigWarning: Warning, "Plan";
    /// The node was cordoned for an update.
    Cordon: Normal, "Cordon";
    /// Another client uncordoned the node during an update; it was cordoned again.
    Recordoned: Warning, "Cordon";
    /// The pods of the node are being evicted.
    Drain: Normal, "Drain";
    /// A pod cannot be evicted yet; the note names it and the cause.
    DrainBlocked: Warning, "Drain";
    /// A pod without a controller that would recreate it was evicted.
    UnmanagedPodEvicted: Warning, "Drain";
    /// Pods were deleted despite their disruption budgets, because the drain was forced.
    DrainForced: Warning, "Drain";
    /// All pods that must leave the node were evicted.
    Drained: Normal, "Drain";
    /// The drain cannot be completed.
    FailedToDrain: Warning, "Drain";
    /// An operator cancelled the update before it changed anything.
    UpdateCancelled: Normal, "Cancel";
    /// An operator tried to cancel an update that has already begun to change the machine; it
    /// continues.
    CancelRefused: Warning, "Cancel";
    /// A reboot was started.
    Reboot: Normal, "Reboot";
    /// An inhibitor lock delays the reboot; the note names its holder.
    RebootBlocked: Warning, "Reboot";
    /// The machine has rebooted.
    Rebooted: Normal, "Reboot";
    /// The change took effect without a reboot.
    SkipReboot: Normal, "Act";
    /// A unit could not be restarted.
    FailedServiceRestart: Warning, "Act";
    /// A unit could not be reloaded.
    FailedServiceReload: Warning, "Act";
    /// The new config failed, and the previous one was restored.
    RolledBack: Warning, "Undo";
    /// A path that a user changed was left in place, because it is not safe to touch; the note
    /// names the path and the cause.
    LeftBehind: Warning, "Update";
    /// A managed file, link or unit was changed by something other than machinist.
    ConfigDriftDetected: Warning, "Watch";
    /// The node was uncordoned.
    Uncordon: Normal, "Uncordon";
    /// The node stays cordoned; the note names the reason.
    UncordonSkipped: Normal, "Uncordon";
    /// The API server refused a taint of a device declaration; the note gives the cause.
    TaintRefused: Warning, "Report";
    /// The node is on its desired config.
    NodeDone: Normal, "Finish";
    /// The rollout of a new config to the nodes of the pool has begun.
    RolloutStarted: Normal, "Rollout";
    /// The rollout waits until an administrator acts or a time comes; the note has the code and the details.
    RolloutHeld: Normal, "Rollout";
    /// A node of the pool failed to update; the note names it and the reason code.
    NodeFailed: Warning, "Rollout";
    /// Pods of a PodDisruptionBudget were evicted and have not all been replaced in time; the rollout goes on.
    BudgetNotRecovered: Warning, "Rollout";
    /// The rollout was stopped; the note has the code.
    RolloutStopped: Warning, "Rollout";
    /// All nodes of the pool are on the new config.
    RolloutCompleted: Normal, "Rollout";
    /// MachineConfigs of the pool are refused; the note names the object and the field.
    RenderDegraded: Warning, "Render";
    /// The disruption policies of the cluster are invalid; the note names the field and the expected value.
    PoliciesInvalid: Warning, "Merge";
}
