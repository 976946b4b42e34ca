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
async fn a_host_that_keeps_the_contract_breaks_no_fact() {
    let broken = every_provider_keeps(|| host(None)).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Each defect of a host, and the fact that must detect it; others may detect it too.
const SEEN_BY: &[(Breaks, &str)] = &[
    (
        Breaks::StagesUnlocked,
        "what_is_staged_is_not_in_force_until_a_boot",
    ),
    (
        Breaks::LockIsTheAgents,
        "what_is_staged_survives_the_agent_with_its_lock",
    ),
    (
        Breaks::StagedIsTheAgents,
        "what_is_staged_survives_the_agent_with_its_lock",
    ),
    (
        Breaks::PowerCutFinalises,
        "what_is_locked_is_booted_into_by_no_reboot_and_no_power_cut",
    ),
    (
        Breaks::PowerCutMixes,
        "a_power_cut_after_the_unlocking_boots_one_of_the_two_whole",
    ),
    (
        Breaks::RollbackIsVolatile,
        "a_rollback_survives_a_power_cut",
    ),
    (
        Breaks::UnlocksNothing,
        "what_is_unlocked_is_booted_next_and_what_ran_is_the_fallback",
    ),
    (Breaks::UnlockToggles, "unlocking_twice_is_unlocking_once"),
    (Breaks::UnlocksAnything, "only_what_is_named_is_unlocked"),
    (Breaks::StagesAnew, "staging_the_same_again_changes_nothing"),
    (
        Breaks::ArgumentsPileUp,
        "staging_something_else_takes_the_place_of_what_was_staged",
    ),
    (
        Breaks::StagesWhatIsBooted,
        "what_is_booted_already_is_not_staged",
    ),
    (
        Breaks::KeepsWhatIsNoLongerAsked,
        "what_is_booted_already_is_not_staged",
    ),
    (
        Breaks::DiscardsNothing,
        "what_is_discarded_is_gone_and_what_is_booted_stays",
    ),
    (
        Breaks::DiscardDropsFallback,
        "what_is_discarded_is_gone_and_what_is_booted_stays",
    ),
    (
        Breaks::DiscardIsNotRepeatable,
        "what_is_discarded_is_gone_and_what_is_booted_stays",
    ),
    (
        Breaks::ArgumentsAreASet,
        "arguments_are_a_list_and_those_of_others_stay",
    ),
    (
        Breaks::ArgumentsAreSorted,
        "arguments_are_a_list_and_those_of_others_stay",
    ),
    (
        Breaks::OthersArgumentsGo,
        "arguments_that_leave_take_no_others_along",
    ),
    (
        Breaks::StagedIsBooted,
        "what_is_staged_is_not_in_force_until_a_boot",
    ),
    (
        Breaks::RollbackToggles,
        "a_rollback_leads_to_the_deployment_before_however_often_it_is_asked",
    ),
    (
        Breaks::RollbackKeepsStaged,
        "a_rollback_takes_the_place_of_what_was_staged",
    ),
    (
        Breaks::RollsBackToAnything,
        "a_rollback_to_what_is_absent_is_refused",
    ),
    (
        Breaks::PullsByName,
        "an_image_is_the_one_of_its_digest_though_a_newer_one_has_its_name",
    ),
    (
        Breaks::CleansUpFirst,
        "a_step_that_fails_leaves_booted_and_fallback_and_succeeds_later",
    ),
    (
        Breaks::SwallowsFailures,
        "a_step_that_fails_leaves_booted_and_fallback_and_succeeds_later",
    ),
    (
        Breaks::IgnoresLimits,
        "a_step_longer_than_its_limit_is_broken_off_and_leaves_nothing_behind",
    ),
    (
        Breaks::StagesHalf,
        "a_step_longer_than_its_limit_is_broken_off_and_leaves_nothing_behind",
    ),
    (
        Breaks::NeverAgain,
        "an_image_is_fetched_with_its_version_or_refused_by_name",
    ),
    (
        Breaks::NoVersions,
        "an_image_is_fetched_with_its_version_or_refused_by_name",
    ),
];

#[tokio::test(start_paused = true)]
async fn every_broken_host_is_caught_by_its_fact_and_every_fact_catches_one() {
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
