//! The contract holds for a correct host and detects each broken one.

use std::collections::BTreeSet;

use super::{
    contract::{self, every_provider_keeps},
    fake_host::{Breaks, Machine},
};

fn host(breaks: Option<Breaks>) -> Machine {
    // One argument twice, and a non-alphabetical order.
    let arguments = [
        "root=/dev/vda",
        "quiet",
        "console=tty0",
        "console=ttyS0",
        "quiet",
    ];
    Machine::new(breaks, contract::image("installed"), &arguments)
}

#[tokio::test(start_paused = true)]
async fn a_correct_os_provider_passes_the_contract() {
    let broken = every_provider_keeps(|| host(None)).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Each defect of a host, and the fact that must detect it; others may detect it too.
const SEEN_BY: &[(Breaks, &str)] = &[
    (
        Breaks::StagesUnlocked,
        "a_staged_deployment_is_not_active_until_a_boot",
    ),
    (
        Breaks::LockIsTheAgents,
        "a_staged_deployment_and_its_lock_survive_the_agent",
    ),
    (
        Breaks::StagedIsTheAgents,
        "a_staged_deployment_and_its_lock_survive_the_agent",
    ),
    (
        Breaks::PowerCutFinalises,
        "a_locked_deployment_is_never_booted",
    ),
    (
        Breaks::PowerCutMixes,
        "a_power_cut_after_unlocking_boots_either_deployment_completely",
    ),
    (
        Breaks::RollbackIsVolatile,
        "a_rollback_survives_a_power_cut",
    ),
    (
        Breaks::UnlocksNothing,
        "an_unlocked_deployment_is_booted_next_with_the_former_as_fallback",
    ),
    (Breaks::UnlockToggles, "unlocking_is_idempotent"),
    (
        Breaks::TrialStays,
        "a_deployment_that_is_not_kept_is_left_by_the_next_boot",
    ),
    (
        Breaks::KeepsNothing,
        "a_kept_deployment_is_booted_from_then_on",
    ),
    (
        Breaks::KeepIsVolatile,
        "a_kept_deployment_is_booted_from_then_on",
    ),
    (Breaks::KeepToggles, "keeping_is_idempotent"),
    (Breaks::KeepsAnything, "only_the_booted_deployment_is_kept"),
    (
        Breaks::FailedBootHangs,
        "a_deployment_that_never_reaches_userspace_falls_back_by_itself",
    ),
    (
        Breaks::FailedBootIsRepeated,
        "a_deployment_that_never_reaches_userspace_falls_back_by_itself",
    ),
    (
        Breaks::LocksNothing,
        "a_deployment_that_is_locked_again_is_not_booted",
    ),
    (
        Breaks::LockIsNotRepeatable,
        "a_deployment_that_is_locked_again_is_not_booted",
    ),
    (
        Breaks::NextIsBooted,
        "an_unlocked_deployment_is_booted_next_with_the_former_as_fallback",
    ),
    (
        Breaks::UnlocksAnything,
        "only_the_named_deployment_is_unlocked",
    ),
    (
        Breaks::StagesAnew,
        "staging_the_same_deployment_again_changes_nothing",
    ),
    (
        Breaks::ArgumentsPileUp,
        "staging_another_deployment_replaces_the_staged_one",
    ),
    (
        Breaks::StagesWhatIsBooted,
        "an_already_booted_deployment_is_not_staged",
    ),
    (
        Breaks::KeepsWhatIsNoLongerAsked,
        "an_already_booted_deployment_is_not_staged",
    ),
    (
        Breaks::DiscardsNothing,
        "discarding_removes_the_staged_deployment_and_keeps_the_booted_one",
    ),
    (
        Breaks::DiscardDropsFallback,
        "discarding_removes_the_staged_deployment_and_keeps_the_booted_one",
    ),
    (
        Breaks::DiscardIsNotRepeatable,
        "discarding_removes_the_staged_deployment_and_keeps_the_booted_one",
    ),
    (
        Breaks::ArgumentsAreASet,
        "appended_kernel_arguments_keep_order_duplicates_and_foreign_ones",
    ),
    (
        Breaks::ArgumentsAreSorted,
        "appended_kernel_arguments_keep_order_duplicates_and_foreign_ones",
    ),
    (
        Breaks::OthersArgumentsGo,
        "removing_kernel_arguments_keeps_equal_foreign_ones",
    ),
    (
        Breaks::StagedIsBooted,
        "a_staged_deployment_is_not_active_until_a_boot",
    ),
    (
        Breaks::RollbackToggles,
        "a_repeated_rollback_boots_the_previous_deployment",
    ),
    (
        Breaks::RollbackKeepsStaged,
        "a_rollback_replaces_the_staged_deployment",
    ),
    (
        Breaks::RollsBackToAnything,
        "a_rollback_to_a_missing_deployment_is_rejected",
    ),
    (
        Breaks::PullsByName,
        "an_image_is_selected_by_digest_not_by_name",
    ),
    (
        Breaks::CleansUpFirst,
        "a_failed_step_keeps_booted_and_fallback_and_can_be_retried",
    ),
    (
        Breaks::SwallowsFailures,
        "a_failed_step_keeps_booted_and_fallback_and_can_be_retried",
    ),
    (
        Breaks::IgnoresLimits,
        "a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind",
    ),
    (
        Breaks::StagesHalf,
        "a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind",
    ),
    (
        Breaks::NeverAgain,
        "an_image_is_fetched_with_its_version_or_refused_by_name",
    ),
    (
        Breaks::ForgetsFetched,
        "an_image_is_fetched_with_its_version_or_refused_by_name",
    ),
    (
        Breaks::NoVersions,
        "an_image_is_fetched_with_its_version_or_refused_by_name",
    ),
];

#[tokio::test(start_paused = true)]
async fn every_broken_os_provider_fails_its_contract_fact() {
    let mut caught_by = BTreeSet::new();
    for (breaks, fact) in SEEN_BY {
        let broken = every_provider_keeps(|| host(Some(*breaks))).await;
        let facts: BTreeSet<_> = broken.iter().map(|(fact, _)| *fact).collect();
        assert!(facts.contains(fact), "{breaks:?} was detected by {facts:?}");
        caught_by.extend(facts);
    }
    let idle: Vec<_> = contract::names::<Machine>()
        .difference(&caught_by)
        .copied()
        .collect();
    assert!(idle.is_empty(), "facts that detected no mutant: {idle:?}");
}
