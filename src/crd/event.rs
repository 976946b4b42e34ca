//! Events: what `kubectl describe` shows of what happened.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident: $weight:ident, $action:literal;)+) => {
        /// The stable names of events. Those that OpenShift's daemon has, too, mean the same.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventReason { $($(#[doc = $doc])+ $name,)+ }

        impl EventReason {
            /// All of them, in the order of an update.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// What was being done.
            pub const fn action(self) -> &'static str {
                match self { $(Self::$name => $action,)+ }
            }

            /// `Warning` where a person should look.
            pub const fn weight(self) -> Weight {
                match self { $(Self::$name => Weight::$weight,)+ }
            }

            /// One sentence for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

/// How much an event weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// For the record.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Weight {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

reasons! {
    /// The config cannot be had on this machine; nothing was touched.
    FailedToReconcile: Warning, "Plan";
    /// The config is accepted, and something in it has no effect or looks like a mistake, or its plan warns of this machine.
    ConfigWarning: Warning, "Plan";
    /// The node was made unschedulable for an update.
    Cordon: Normal, "Cordon";
    /// Somebody made the node schedulable during an update; it was cordoned once more.
    Recordoned: Warning, "Cordon";
    /// The pods of the node are asked to leave.
    Drain: Normal, "Drain";
    /// A pod does not leave; the note says which, and why.
    DrainBlocked: Warning, "Drain";
    /// A pod that no other workload will bring back elsewhere was evicted.
    UnmanagedPodEvicted: Warning, "Drain";
    /// Pods were deleted without their budgets' consent, as was asked for.
    DrainForced: Warning, "Drain";
    /// Every pod has left that must.
    Drained: Normal, "Drain";
    /// The drain cannot be completed.
    FailedToDrain: Warning, "Drain";
    /// A person cancelled the update before it changed anything.
    UpdateCancelled: Normal, "Cancel";
    /// A person wanted to cancel an update that has begun to change the machine; it goes to its end.
    CancelRefused: Warning, "Cancel";
    /// A reboot was ordered.
    Reboot: Normal, "Reboot";
    /// Somebody holds a lock against the reboot; the note names the holder.
    RebootBlocked: Warning, "Reboot";
    /// The machine came back from the reboot.
    Rebooted: Normal, "Reboot";
    /// The change took effect without a reboot.
    SkipReboot: Normal, "Act";
    /// A unit could not be restarted.
    FailedServiceRestart: Warning, "Act";
    /// A unit could not be reloaded.
    FailedServiceReload: Warning, "Act";
    /// The config before is back, since the new one did not work.
    RolledBack: Warning, "Undo";
    /// A path was left as a user made it, because it is not safe to touch; the note says which and why.
    LeftBehind: Warning, "Update";
    /// Somebody changed a managed file, link or unit.
    ConfigDriftDetected: Warning, "Watch";
    /// The node takes pods again.
    Uncordon: Normal, "Uncordon";
    /// The node stays cordoned; the note says for whom.
    UncordonSkipped: Normal, "Uncordon";
    /// The API server refused a taint of a device declaration; the note says why.
    TaintRefused: Warning, "Report";
    /// The node is on its config.
    NodeDone: Normal, "Finish";
}
