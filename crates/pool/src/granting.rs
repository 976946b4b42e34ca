//! Grants updates to the next nodes of the pools that share one limit.

use std::collections::{HashMap, HashSet};

use machinist_kube_api::keys::{annotation, label};

use super::{
    Action, Grant, GrantKind, Hold, HoldReason, UnavailableCause,
    action::MAX_NEXT_NODES,
    canary::{CanaryAllowance, canary_allowance},
    candidates::{Candidate, Candidates, Ineligible, candidates, retry_time},
    grant::MAX_GRANTS_BYTES,
    grant_progress::open_grant,
    hold::{HoldStrength, MAX_NAMED_NODES},
    limit_group::{LimitGroup, hold_of},
    pool_ledger::PoolLedger,
    rollout_holds::{PoolWindow, outside_window},
    rollout_inputs::{Recheck, RolloutInputs},
    rollout_settings::{WINDOWS_FORM, parse_windows},
    rollout_window::{WindowPermit, WindowTimes},
    slots::Slots,
};

/// What granting learned about a pool, for its status.
#[derive(Debug, Default)]
pub(super) struct GrantReport {
    /// The nodes that would be next.
    pub(super) next: Vec<String>,
    /// A node was started, or waits, although its window is too short.
    pub(super) is_window_too_short: bool,
    /// A node was passed over, because it has stepped aside and pods still block its drain.
    pub(super) is_any_blocked: bool,
}

/// Grants updates in the pools of a group, as far as the limit allows, in the record of the pool that fences it.
pub(super) fn grant_in_group(
    group: &LimitGroup,
    ledgers: &mut [PoolLedger<'_>],
    windows: &[PoolWindow],
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
    actions: &mut Vec<Action>,
) -> Vec<(usize, GrantReport)> {
    let needs_list = rebuild(group, ledgers, inputs, actions);
    let names: HashSet<&str> = inputs.pools.iter().map(|pool| pool.name.as_str()).collect();
    let mut slots = match Slots::of(group, ledgers) {
        Ok(slots) => slots,
        Err(error) => {
            hold_all(group, ledgers, &hold_of(&error));
            return Vec::new();
        }
    };
    let mut reports = Vec::new();
    for at in &group.pools {
        wait_for_control_plane(*at, group, ledgers);
        let Some(ledger) = ledgers.get(*at) else {
            continue;
        };
        if ledger.target.is_none() || ledger.left() == 0 {
            continue;
        }
        let mut found = candidates(ledger, inputs, &names, recheck);
        let mut round = GrantRound {
            inputs,
            window: windows.get(*at),
            node_windows: HashMap::new(),
            canary: canary_allowance(ledger, ledgers, inputs.now, recheck),
            granted: Vec::new(),
            report: GrantReport::default(),
            holds: Vec::new(),
            short_window: None,
        };
        let next = found.first(MAX_NEXT_NODES);
        round.report.next = next.map(|it| it.node.name.clone()).collect();
        if ledger.holds.is_empty() {
            round.choose(*at, ledger, &mut found, &mut slots, recheck);
        }
        let is_refused = needs_list && !round.granted.is_empty();
        if is_refused {
            request_list(actions);
        }
        reports.push((*at, finish(*at, group, ledgers, round, is_refused)));
    }
    reports
}

/// Rebuilds the grants of a group, if that is necessary and the nodes were listed. Returns whether a list is needed
/// before anything is granted.
fn rebuild(
    group: &LimitGroup,
    ledgers: &mut [PoolLedger<'_>],
    inputs: &RolloutInputs<'_>,
    actions: &mut Vec<Action>,
) -> bool {
    let Some(fence) = ledgers.get(group.fence) else {
        return false;
    };
    let is_needed = !fence.read.is_rebuilt || !fence.is_recorded;
    if !is_needed || fence.is_unreadable() || inputs.other_grantor.is_some() {
        return false;
    }
    let listed: HashSet<&str> = ledgers
        .iter()
        .flat_map(|it| it.grants.grants.iter().map(|grant| grant.id.as_str()))
        .collect();
    let members = group.pools.iter().filter_map(|at| ledgers.get(*at));
    let found: Vec<Grant> = members
        .flat_map(|ledger| &ledger.members)
        .filter(|member| member.node.annotations.contains_key(annotation::GRANT))
        .filter_map(|member| open_grant(member.node).ok().flatten())
        .filter(|grant| !listed.contains(grant.id.as_str()))
        .collect();
    if !fence.read.is_listed {
        if !found.is_empty() {
            request_list(actions);
        }
        return true;
    }
    if let Some(fence) = ledgers.get_mut(group.fence) {
        fence.is_rebuild = true;
        fence.is_changed |= !found.is_empty();
        fence.found = found.iter().map(|grant| grant.id.clone()).collect();
        fence.grants.grants.extend(found);
    }
    false
}

fn request_list(actions: &mut Vec<Action>) {
    if !actions.contains(&Action::ListNodes) {
        actions.push(Action::ListNodes);
    }
}

fn hold_all(group: &LimitGroup, ledgers: &mut [PoolLedger<'_>], hold: &Hold) {
    for at in &group.pools {
        if let Some(ledger) = ledgers.get_mut(*at) {
            ledger.hold(hold.reason, hold.message.clone());
        }
    }
}

/// The arbiter's nodes follow those of the control plane, unless that pool is paused.
fn wait_for_control_plane(at: usize, group: &LimitGroup, ledgers: &mut [PoolLedger<'_>]) {
    let is_arbiter = |ledger: &PoolLedger<'_>| ledger.pool.name == label::ROLE_ARBITER;
    let mut others = group.pools.iter().filter_map(|at| ledgers.get(*at));
    let pending = others.find(|it| !is_arbiter(it) && !it.pool.spec.paused && it.left() > 0);
    let Some(pending) = pending.map(|it| it.pool.name.clone()) else {
        return;
    };
    // One that is desired to update already holds the slot that the control plane waits for.
    let has_slot = |ledger: &PoolLedger<'_>| {
        let mut members = ledger.members.iter();
        members.any(|it| {
            matches!(
                it.cause,
                Some(UnavailableCause::Updating | UnavailableCause::AwaitingGrant)
            )
        })
    };
    let ledger = ledgers.get_mut(at);
    if let Some(ledger) = ledger.filter(|it| is_arbiter(it) && !has_slot(it)) {
        ledger.hold(
            HoldReason::WaitingForControlPlane,
            format!("nodes of pool {pending} are updated first"),
        );
    }
}

/// The choice of nodes in one pool.
#[derive(Debug)]
struct GrantRound<'i, 'a> {
    inputs: &'i RolloutInputs<'a>,
    window: Option<&'i PoolWindow>,
    /// Windows of agents by their text: most nodes of a pool have the same.
    node_windows: HashMap<&'i str, Option<WindowTimes>>,
    canary: CanaryAllowance,
    granted: Vec<Grant>,
    report: GrantReport,
    holds: Vec<Hold>,
    short_window: Option<jiff::Timestamp>,
}

impl<'i> GrantRound<'i, '_> {
    fn choose(
        &mut self,
        at: usize,
        ledger: &PoolLedger<'_>,
        found: &mut Candidates<'i>,
        slots: &mut Slots,
        recheck: &mut Recheck,
    ) {
        let mut all_blocked = !found.is_empty();
        let mut waiting: Option<Hold> = None;
        let mut with_slot = found.rest(0).filter(|it| it.has_slot).count();
        let mut position = 0;
        while let Some(candidate) = found.at(position) {
            position += 1;
            with_slot -= usize::from(candidate.has_slot);
            if candidate.is_passed_over() {
                self.report.is_any_blocked = true;
                continue;
            }
            all_blocked = false;
            if let Some(hold) = self.canary.hold() {
                self.holds.push(hold);
                return;
            }
            if !slots.has_room(at, candidate) {
                let is_last = with_slot == 0 && !candidate.has_slot;
                waiting = waiting.or_else(|| Some(slots.hold(at)));
                if is_last {
                    let mut rest = found.rest(position);
                    self.report.is_any_blocked |= rest.any(Candidate::is_passed_over);
                    break;
                }
                // A later candidate counts already, so that it may need no free slot.
                continue;
            }
            match self.refusal(candidate, ledger, recheck) {
                Some(hold) => waiting = waiting.or(Some(hold)),
                None => {
                    if !self.grant(candidate, ledger, slots) {
                        return;
                    }
                    slots.take(at, candidate);
                    self.canary.take();
                }
            }
        }
        if all_blocked {
            self.holds.push(all_blocked_hold(found, self.inputs));
        } else if self.granted.is_empty() {
            self.holds
                .extend(waiting.or_else(|| ineligible_hold(found)));
        }
    }

    /// Why a candidate does not start now, for reasons of its own.
    fn refusal(
        &mut self,
        candidate: &Candidate<'i>,
        ledger: &PoolLedger<'_>,
        recheck: &mut Recheck,
    ) -> Option<Hold> {
        let node = candidate.node;
        // It was cancelled because pods blocked its drain, and it is known that they no longer do.
        let is_unblocked = candidate.has_stepped_aside && self.inputs.blockers.is_some();
        let retry = retry_time(node, ledger, self.inputs.now).filter(|_| !is_unblocked);
        if let Some(due) = retry {
            recheck.at(due);
            let message = format!(
                "node {} was tried a short time ago; again at {due}",
                node.name
            );
            return Some(Hold::new(HoldReason::NodesNotEligible, message));
        }
        let pool = self.window?;
        let own = match self.node_times(candidate) {
            Ok(times) => times.map_or(WindowPermit::Open, |times| times.permit(pool.needed)),
            Err(hold) => return Some(hold),
        };
        match pool.permit.and(own) {
            WindowPermit::Open => None,
            WindowPermit::Closed { opens, too_short } => {
                opens.into_iter().for_each(|time| recheck.at(time));
                self.report.is_window_too_short |= too_short;
                let message = outside_window(opens, pool.needed);
                Some(Hold::new(HoldReason::OutsideWindow, message))
            }
            WindowPermit::TooShort { opened } => {
                self.report.is_window_too_short = true;
                let rollout = ledger.rollout.as_ref();
                let used = self.short_window.is_some()
                    || rollout.and_then(|it| it.short_window) == Some(opened);
                self.short_window = Some(opened);
                let message = "one node has started at the opening of a window that is too short";
                used.then(|| Hold::new(HoldReason::OutsideWindow, message))
            }
        }
    }

    fn node_times(&mut self, candidate: &Candidate<'i>) -> Result<Option<&WindowTimes>, Hold> {
        let Some(text) = candidate.node.annotation(annotation::WINDOWS) else {
            return Ok(None);
        };
        let now = self.inputs.now;
        let times = self.node_windows.entry(text).or_insert_with(|| {
            let windows = parse_windows(text).ok()?;
            Some(WindowTimes::new(&windows, now))
        });
        let invalid = || {
            let message = format!(
                "annotation {} of Node {} cannot be used; expected {WINDOWS_FORM}",
                annotation::WINDOWS,
                candidate.node.name
            );
            Hold::new(HoldReason::NodesNotEligible, message)
        };
        times.as_ref().map(Some).ok_or_else(invalid)
    }

    /// Adds a grant; `false` if the annotation is full.
    fn grant(
        &mut self,
        candidate: &Candidate<'_>,
        ledger: &PoolLedger<'_>,
        slots: &mut Slots,
    ) -> bool {
        let node = candidate.node;
        let grant = Grant {
            id: slots.next_id(self.inputs.now),
            kind: GrantKind::Config,
            pool: ledger.pool.name.clone(),
            node: node.name.clone(),
            uid: node.uid.clone(),
            target: ledger.target.unwrap_or_default().to_owned(),
            time: self.inputs.now,
            acknowledged: false,
            failed: false,
            rollback: ledger.is_rollback(),
            rest: std::collections::BTreeMap::new(),
        };
        if !slots.fits(&grant) {
            let message =
                format!("the annotation holds at most {MAX_GRANTS_BYTES} bytes of grants");
            self.holds.push(Hold::new(HoldReason::GrantsFull, message));
            return false;
        }
        self.granted.push(grant);
        true
    }
}

/// Records the choice of one pool, or discards it.
fn finish(
    at: usize,
    group: &LimitGroup,
    ledgers: &mut [PoolLedger<'_>],
    round: GrantRound<'_, '_>,
    is_refused: bool,
) -> GrantReport {
    let now = round.inputs.now;
    let has_granted = !round.granted.is_empty() && !is_refused;
    if let Some(ledger) = ledgers.get_mut(at) {
        for hold in round.holds {
            // A pool that has just granted waits for nothing that a person could change.
            if !has_granted || hold.reason.strength() > HoldStrength::Waits {
                ledger.hold(hold.reason, hold.message);
            }
        }
        if has_granted && let Some(rollout) = &mut ledger.rollout {
            let before = rollout.clone();
            // A rollout that was completed without nodes begins again for them.
            let begins_again = rollout.completed.is_some() && rollout.left_out > 0;
            let is_begin = rollout.started.is_none() || begins_again;
            let begins = is_begin.then(|| rollout.target.clone());
            if is_begin {
                rollout.started = Some(now);
                rollout.completed = None;
                rollout.left_out = 0;
            }
            if round.short_window.is_some() {
                rollout.short_window = round.short_window;
            }
            ledger.is_rollout_changed |= *rollout != before;
            ledger.begins = begins.map(|target| ledger.edge(target, ""));
        }
    }
    if has_granted && let Some(fence) = ledgers.get_mut(group.fence) {
        fence.grants.grants.extend(round.granted);
        fence.grants.grants.sort_by(|a, b| a.id.cmp(&b.id));
        fence.is_changed = true;
    }
    round.report
}

fn all_blocked_hold(found: &mut Candidates<'_>, inputs: &RolloutInputs<'_>) -> Hold {
    let nodes = found.first(usize::MAX).map(|it| it.node.name.as_str());
    let nodes: Vec<_> = nodes.collect();
    let blockers = nodes.iter().flat_map(|node| inputs.blockers_of(node));
    let mut named: Vec<&str> = blockers.map(String::as_str).collect();
    named.sort_unstable();
    named.dedup();
    let message = format!(
        "pods block the drain of every node that is left ({}): {}",
        machinist_base::text::join_limited(nodes.iter(), MAX_NAMED_NODES),
        machinist_base::text::join_limited(named.iter(), MAX_NAMED_NODES),
    );
    Hold::new(HoldReason::AllBlocked, message)
}

/// The hold of a pool without candidates. Nodes that have a grant are being updated, which is no reason to wait.
fn ineligible_hold(found: &Candidates<'_>) -> Option<Hold> {
    let mut by_cause: Vec<(&str, Vec<&str>)> = Vec::new();
    let ineligible = found.ineligible.iter();
    for (node, why) in ineligible.filter(|(_, why)| *why != Ineligible::Granted) {
        match by_cause
            .iter_mut()
            .find(|(cause, _)| *cause == why.as_str())
        {
            Some((_, nodes)) => nodes.push(node),
            None => by_cause.push((why.as_str(), vec![node])),
        }
    }
    let each = by_cause.iter().map(|(cause, nodes)| {
        let names = machinist_base::text::join_limited(nodes.iter(), MAX_NAMED_NODES);
        format!("{cause}: {names}")
    });
    let text = each.collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then(|| Hold::new(HoldReason::NodesNotEligible, text))
}
