//! The ways to break the fake host.

/// The defect of a broken fake: each violates one rule of the contract that a real provider could
/// miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breaks {
    /// A deployment is staged without a lock.
    StagesUnlocked,
    /// The lock is lost with the process that staged.
    LockIsTheAgents,
    /// The staged deployment is lost with the process that staged it.
    StagedIsTheAgents,
    /// A power loss finalises a locked deployment.
    PowerCutFinalises,
    /// A power loss after the unlocking leaves half of the new deployment in the booted one.
    PowerCutMixes,
    /// A rollback is recorded only by a proper shutdown.
    RollbackIsVolatile,
    /// Unlocking reports success and does nothing.
    UnlocksNothing,
    /// Unlocking again locks again.
    UnlockToggles,
    /// Unlocking unlocks whatever is staged.
    UnlocksAnything,
    /// Staging the same content again creates another deployment, locked.
    StagesAnew,
    /// Arguments are added to those that were staged before.
    ArgumentsPileUp,
    /// A deployment is staged even when the booted one matches already.
    StagesWhatIsBooted,
    /// When the booted deployment matches, an earlier staged one is kept.
    KeepsWhatIsNoLongerAsked,
    /// Discarding reports success and does nothing.
    DiscardsNothing,
    /// Discarding removes the fallback, too.
    DiscardDropsFallback,
    /// Discarding when nothing is staged is an error.
    DiscardIsNotRepeatable,
    /// Duplicate arguments are merged.
    ArgumentsAreASet,
    /// Arguments are sorted.
    ArgumentsAreSorted,
    /// Only the config's arguments remain.
    OthersArgumentsGo,
    /// The staged deployment is reported as booted immediately.
    StagedIsBooted,
    /// Rolling back swaps the deployments, each time.
    RollbackToggles,
    /// Rolling back leaves the staged deployment for the next boot.
    RollbackKeepsStaged,
    /// Rolling back to an unknown deployment reports success.
    RollsBackToAnything,
    /// The newest image of that name is pulled, instead of the digest.
    PullsByName,
    /// Old deployments are removed before the new one is complete.
    CleansUpFirst,
    /// A failed step is reported as successful.
    SwallowsFailures,
    /// Time limits are ignored.
    IgnoresLimits,
    /// An interrupted staging appears as complete.
    StagesHalf,
    /// Failures of the registry are never reported as retryable.
    NeverAgain,
    /// An image that was fetched is not found again.
    ForgetsFetched,
    /// The versions of images are not read.
    NoVersions,
    /// Every later boot enters the unlocked deployment, although it was not kept.
    TrialStays,
    /// Keeping reports success and does nothing.
    KeepsNothing,
    /// Keeping is recorded only by a proper shutdown.
    KeepIsVolatile,
    /// Keeping keeps whatever is booted.
    KeepsAnything,
    /// Keeping again selects the previous deployment.
    KeepToggles,
    /// A boot that fails is not followed by a boot of the previous deployment.
    FailedBootHangs,
    /// A deployment whose boot has failed is entered again.
    FailedBootIsRepeated,
    /// Locking reports success and does nothing.
    LocksNothing,
    /// Locking when nothing is staged is an error.
    LockIsNotRepeatable,
    /// The deployment of the next boot is reported to be the booted one.
    NextIsBooted,
}
