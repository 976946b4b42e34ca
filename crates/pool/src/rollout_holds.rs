//! Determines why a pool's rollout does not proceed, apart from the state of single nodes.

use jiff::{SignedDuration, Timestamp};

use machinist_base::text::{counted, counted_with_verb, join_limited};
use machinist_kube_api::keys::{UPGRADE_CONFIG, UPGRADE_NAMESPACE, pool_annotation};

use super::{
    Hold, HoldReason, UnavailableCause,
    estimate::node_update_time,
    hold::MAX_NAMED_NODES,
    pool_ledger::PoolLedger,
    rollout_inputs::{Recheck, RolloutInputs, RolloutStart, later},
    rollout_window::{WindowPermit, WindowTimes},
    stop_rule::default_stop_after,
};

/// How long a gate or another outside state may go unnoticed when no event reports it.
const GATE_RECHECK: SignedDuration = SignedDuration::from_secs(30);

/// What granting needs to know about a pool's windows.
#[derive(Clone, Debug)]
pub(super) struct PoolWindow {
    /// How long one node takes.
    pub(super) needed: SignedDuration,
    /// Whether nodes may start.
    pub(super) permit: WindowPermit,
}

/// Adds the holds of a pool, and records a rollout that is stopped. Returns the window.
pub(super) fn add_holds(
    ledger: &mut PoolLedger<'_>,
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
) -> PoolWindow {
    let needed = node_update_time(
        &ledger.history,
        &ledger.settings,
        inputs
            .reboots
            .get(ledger.pool.name.as_str())
            .copied()
            .unwrap_or_default(),
    );
    let permit = WindowTimes::new(&ledger.settings.windows, inputs.now).permit(needed);
    let window = PoolWindow { needed, permit };
    if let Some(object) = inputs.other_grantor {
        ledger.hold(
            HoldReason::OtherGrantor,
            format!("{object} shows that another controller grants updates"),
        );
        return window;
    }
    if ledger.read.is_not_kept {
        let message = format!(
            "the API server did not return annotation {} of MachineConfigPool {}",
            pool_annotation::GRANTS,
            ledger.pool.name
        );
        ledger.hold(HoldReason::GrantsNotKept, message);
    }
    if ledger.target.is_none() {
        ledger.hold(
            HoldReason::NoConfig,
            "no config has been rendered for the pool",
        );
        return window;
    }
    if ledger.pool.spec.paused {
        let reason = ledger.pool.annotation(pool_annotation::PAUSE_REASON);
        let message = reason.map_or_else(
            || "the pool is paused".to_owned(),
            |reason| format!("the pool is paused: {reason}"),
        );
        ledger.hold(HoldReason::Paused, message);
    }
    if ledger.left() == 0 {
        skipped_hold(ledger);
        return window;
    }
    pending_holds(ledger, inputs, &window, recheck);
    window
}

/// Adds the hold of a pool whose other nodes are all on the target.
fn skipped_hold(ledger: &mut PoolLedger<'_>) {
    let skipped = ledger.left_out();
    if skipped.is_empty() {
        return;
    }
    let message = format!(
        "an operator skips {}: {}",
        counted(skipped.len(), "node"),
        join_limited(skipped.iter(), MAX_NAMED_NODES)
    );
    ledger.hold(HoldReason::NodesSkipped, message);
}

/// Adds the holds that matter only while nodes are to be updated.
fn pending_holds(
    ledger: &mut PoolLedger<'_>,
    inputs: &RolloutInputs<'_>,
    window: &PoolWindow,
    recheck: &mut Recheck,
) {
    let target = ledger.target.unwrap_or_default();
    if ledger.rollout.is_none() {
        let message = format!(
            "{} not on {target}, and this would be the first rollout of the pool; \
             annotation {} starts it",
            counted_with_verb(ledger.pending(), "node"),
            pool_annotation::RESUME
        );
        ledger.hold(HoldReason::FirstRollout, message);
    }
    let exists = inputs
        .configs
        .as_ref()
        .is_none_or(|all| all.contains(target));
    if !exists {
        ledger.hold(
            HoldReason::ConfigMissing,
            format!("MachineConfig {target} does not exist"),
        );
    }
    stop_after_failures(ledger);
    if is_due(ledger, inputs, recheck) {
        deadline_hold(ledger, inputs, recheck);
    }
    match window.permit {
        WindowPermit::Open | WindowPermit::TooShort { .. } => {}
        WindowPermit::Closed { opens, .. } => {
            opens.into_iter().for_each(|opens| recheck.at(opens));
            ledger.hold(
                HoldReason::OutsideWindow,
                outside_window(opens, window.needed),
            );
        }
    }
    let gates = inputs.gates.iter().filter(|gate| {
        let pool = gate.pool.as_deref();
        pool.is_none_or(|pool| pool == ledger.pool.name)
    });
    for gate in gates {
        recheck.at(later(inputs.now, GATE_RECHECK));
        ledger.hold(HoldReason::GateClosed, gate.message.clone());
    }
}

/// Describes when nodes may start again.
pub(super) fn outside_window(opens: Option<Timestamp>, needed: SignedDuration) -> String {
    let minutes = needed.as_secs().saturating_add(59).div_euclid(60);
    match opens {
        Some(opens) => format!(
            "no maintenance window is open for the {minutes} min that a node takes; the next one opens at {opens}"
        ),
        None => "no maintenance window opens within a week".to_owned(),
    }
}

/// Whether nodes may begin by the UpgradeConfig; otherwise adds the hold. It also holds a rollout that has begun: agents
/// read the same time, and would leave their grants unused.
fn is_due(ledger: &mut PoolLedger<'_>, inputs: &RolloutInputs<'_>, recheck: &mut Recheck) -> bool {
    let message = match &inputs.start {
        RolloutStart::NotBefore(time) if inputs.now < *time => {
            recheck.at(*time);
            format!(
                "nothing begins before {time}, the upgradeAt of UpgradeConfig {UPGRADE_NAMESPACE}/{UPGRADE_CONFIG}"
            )
        }
        RolloutStart::Invalid(message) => message.clone(),
        RolloutStart::Anytime | RolloutStart::NotBefore(_) => return true,
    };
    ledger.hold(HoldReason::NotYetDue, message);
    false
}

/// Adds the hold of a rollout that did not begin before the pool's start deadline.
fn deadline_hold(ledger: &mut PoolLedger<'_>, inputs: &RolloutInputs<'_>, recheck: &mut Recheck) {
    let Some(rollout) = &ledger.rollout else {
        return;
    };
    if rollout.started.is_some() || rollout.completed.is_some() {
        return;
    }
    let since = rollout.since;
    let Some(limit) = ledger.settings.start_deadline else {
        return;
    };
    let due = inputs.start.time().map_or(since, |time| time.max(since));
    let deadline = later(due, limit);
    recheck.at(deadline);
    if inputs.now >= deadline {
        ledger.hold(
            HoldReason::StartDeadlineMissed,
            format!(
                "the rollout did not begin by {deadline}; a new value of annotation {} starts it",
                pool_annotation::RESUME
            ),
        );
    }
}

/// Stops a rollout after too many failures, and keeps it stopped until a new target or `resume`.
fn stop_after_failures(ledger: &mut PoolLedger<'_>) {
    let Some(target) = ledger.target else { return };
    // Failures within a grant are counted once, when they are first seen.
    let members = ledger.members.iter();
    let failing = members.filter(|it| it.cause == Some(UnavailableCause::Failing));
    let ungranted: Vec<&str> = failing.map(|it| it.node.name.as_str()).collect();
    let grants = ledger.grants.grants.iter();
    let failed = grants.filter(|grant| grant.failed && grant.target == target);
    let mut names = ungranted.clone();
    names.extend(failed.map(|grant| grant.node.as_str()));
    names.sort_unstable();
    names.dedup();
    let limit = ledger.settings.stop_after_failures;
    let limit = limit.unwrap_or_else(|| default_stop_after(ledger.members.len()));
    let Some(rollout) = &mut ledger.rollout else {
        return;
    };
    // A node that failed before `resume` still reports it; only new failures count then.
    let visible = if rollout.resumed.is_some() {
        0
    } else {
        ungranted.len()
    };
    let failures = rollout.failures.max(visible);
    let is_canary = rollout.canary_passed.is_none() && ledger.settings.canary_nodes > 0;
    let reason = match rollout.stopped.as_deref() {
        Some(code) => HoldReason::named(code).unwrap_or(HoldReason::StoppedAfterFailures),
        None if failures > 0 && is_canary && rollout.started.is_some() => HoldReason::CanaryFailed,
        None if failures >= limit => HoldReason::StoppedAfterFailures,
        None => return,
    };
    let mut is_new = false;
    if rollout.stopped.is_none() {
        rollout.stopped = Some(reason.as_str().to_owned());
        ledger.is_rollout_changed = true;
        is_new = true;
    }
    let named = join_limited(names.iter(), MAX_NAMED_NODES);
    let named = if named.is_empty() {
        String::new()
    } else {
        format!(" ({named})")
    };
    let message = format!(
        "{} failed on {}{named}; a new config or a new value of annotation {} continues",
        counted(failures, "node"),
        rollout.target,
        pool_annotation::RESUME
    );
    if is_new {
        let target = rollout.target.clone();
        ledger.ends = Some(ledger.edge(target, reason.as_str()));
    }
    ledger.hold(reason, message);
}

/// Returns the most important hold of a pool.
pub(super) fn first_hold(holds: &[Hold]) -> Option<&Hold> {
    holds.iter().min()
}
