//! Why a pool does not grant updates to more nodes.

/// How many nodes a message names.
pub(super) const MAX_NAMED_NODES: usize = 10;

macro_rules! holds {
    ($($(#[doc = $doc:literal])+ $name:ident: $strength:ident,)+) => {
        /// Stable codes, most important first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum HoldReason { $($(#[doc = $doc])+ $name,)+ }

        impl HoldReason {
            /// Every code, most important first.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The code as text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Returns the reason with this code.
            pub fn named(code: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.as_str() == code)
            }

            /// One sentence for the documentation and `explain`.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)+ }
            }

            /// How much the hold stops.
            pub const fn strength(self) -> HoldStrength {
                match self { $(Self::$name => HoldStrength::$strength,)+ }
            }
        }
    };
}

/// How much a hold stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldStrength {
    /// The rollout proceeds as soon as nodes allow it.
    Waits,
    /// The rollout does not proceed: nothing is granted or placed, and nodes lose the taint of the update.
    Stops,
    /// Stops grants like [`HoldStrength::Stops`], but taints stay as they are, as in OpenShift.
    Freezes,
}

holds! {
    /// Another controller grants updates in this cluster; the message names its object.
    OtherGrantor: Freezes,
    /// An annotation of the pool has a value that cannot be used.
    SettingsInvalid: Stops,
    /// The pool's record of grants or of its rollout cannot be parsed.
    GrantsUnreadable: Stops,
    /// The API server did not return the grants that were written to the pool.
    GrantsNotKept: Stops,
    /// The pool's `maxUnavailable` cannot be used.
    LimitInvalid: Stops,
    /// The pool's `maxUnavailable` would let the control plane lose its quorum.
    LimitAboveQuorum: Stops,
    /// The pool has no config yet.
    NoConfig: Freezes,
    /// An administrator paused the pool.
    Paused: Freezes,
    /// Machinist has not rolled out anything in this pool yet; `machinist.dev/resume` starts it.
    FirstRollout: Freezes,
    /// The config that the pool is to run does not exist.
    ConfigMissing: Stops,
    /// The rollout was stopped, because too many nodes failed on the target.
    StoppedAfterFailures: Stops,
    /// The rollout was stopped, because a canary node failed on the target.
    CanaryFailed: Stops,
    /// The rollout did not begin before its deadline.
    StartDeadlineMissed: Stops,
    /// The UpgradeConfig names a later time, or one that cannot be parsed.
    NotYetDue: Stops,
    /// No maintenance window is open, or the rest of it is too short for a node.
    OutsideWindow: Stops,
    /// Every node that is left has stepped aside, because pods block its drain; the message names them.
    AllBlocked: Stops,
    /// Nodes that failed hold all slots of the limit.
    SlotsHeldByFailures: Waits,
    /// A gate between grants is closed: a disruption budget has not recovered since a drain.
    GateClosed: Waits,
    /// The canary nodes are being updated.
    CanaryInProgress: Waits,
    /// The canary nodes run the new config for the time that the pool sets.
    CanarySoaking: Waits,
    /// The arbiter waits for the control plane nodes.
    WaitingForControlPlane: Waits,
    /// As many nodes are unavailable as the limit allows; the message names them.
    NodesUnavailable: Waits,
    /// The annotation with the grants is full; the next grant waits for the end of another one.
    GrantsFull: Waits,
    /// Nodes that are left are cordoned by a person, are not ready, have a silent agent, or were tried a short time ago.
    NodesNotEligible: Waits,
    /// Only nodes that `machinist skip` leaves out are not updated; the message names them.
    NodesSkipped: Waits,
}

/// A reason why a pool does not grant, with the details.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The code.
    pub reason: HoldReason,
    /// One sentence.
    pub message: String,
}

impl Hold {
    /// Creates a hold.
    pub fn new(reason: HoldReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
