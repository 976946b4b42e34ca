//! Merges the needs of single changes into the actions that make the changes effective.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, ActionKind, Cost, enablement::unit_name};

/// machinist's own unit: restarting it ends the process that carries out the plan.
const OWN_UNIT: &str = "machinist.service";

/// The need of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActionNeed {
    pub(super) kind: ActionKind,
    pub(super) unit: Option<String>,
}

impl ActionNeed {
    pub(super) fn machine(kind: ActionKind) -> Self {
        Self { kind, unit: None }
    }

    pub(super) fn unit(kind: ActionKind, unit: impl Into<String>) -> Self {
        Self {
            kind,
            unit: Some(unit.into()),
        }
    }
}

/// `Restart chronyd.service`, `Reboot`.
impl std::fmt::Display for ActionNeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.unit {
            Some(unit) => write!(f, "{:?} {unit}", self.kind),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

/// The actions for all needs without duplicates, in execution order.
pub(super) fn combine<'a>(
    needs: impl IntoIterator<Item = (&'a ActionNeed, &'a str)>,
) -> Vec<Action> {
    let mut whys: BTreeMap<ActionRank, (ActionNeed, Vec<String>)> = BTreeMap::new();
    for (need, why) in needs {
        let (_, reasons) = whys
            .entry(ActionRank::of(need))
            .or_insert_with(|| (need.clone(), Vec::new()));
        if reasons.last().is_none_or(|last| last != why) {
            reasons.push(why.to_owned());
        }
    }
    let restarted: BTreeSet<Option<String>> = whys
        .values()
        .filter(|(need, _)| need.kind == ActionKind::Restart)
        .map(|(need, _)| need.unit.clone())
        .collect();
    let reboots = whys
        .values()
        .any(|(need, _)| need.kind >= ActionKind::SoftReboot);
    let hardest = whys.values().map(|(need, _)| need.kind).max();
    whys.into_values()
        .filter(|(need, _)| match need.kind {
            ActionKind::Drain => true,
            kind if reboots => Some(kind) == hardest,
            // A restart also reloads the configuration.
            ActionKind::Reload => !restarted.contains(&need.unit),
            _ => true,
        })
        .map(|(need, why)| Action {
            kind: need.kind,
            unit: need.unit,
            why,
        })
        .collect()
}

/// The actions of several plans without duplicates, in execution order.
pub fn in_order(
    actions: impl IntoIterator<Item = (ActionKind, Option<String>)>,
) -> Vec<(ActionKind, Option<String>)> {
    let needs = actions
        .into_iter()
        .map(|(kind, unit)| ActionNeed { kind, unit });
    let ranked: BTreeMap<ActionRank, ActionNeed> =
        needs.map(|need| (ActionRank::of(&need), need)).collect();
    ranked
        .into_values()
        .map(|need| (need.kind, need.unit))
        .collect()
}

/// The execution order of actions. A socket is started before its service, which would otherwise
/// occupy the socket's address; machinist itself comes last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ActionRank {
    own: bool,
    kind: ActionKind,
    service: bool,
    unit: Option<String>,
}

impl ActionRank {
    fn of(need: &ActionNeed) -> Self {
        let unit = need.unit.clone();
        Self {
            own: unit.as_deref() == Some(OWN_UNIT) && need.kind < ActionKind::SoftReboot,
            kind: need.kind,
            service: unit
                .as_deref()
                .is_some_and(|unit| unit_name::kind(unit) == "service"),
            unit,
        }
    }
}

/// The highest cost among some actions.
pub fn cost(actions: &[Action]) -> Cost {
    actions
        .iter()
        .map(|action| of_kind(action.kind))
        .max()
        .unwrap_or_default()
}

fn of_kind(kind: ActionKind) -> Cost {
    match kind {
        ActionKind::DaemonReload => Cost::None,
        ActionKind::Reload => Cost::Reload,
        ActionKind::Stop | ActionKind::Restart => Cost::Restart,
        ActionKind::Drain | ActionKind::Special => Cost::Drain,
        ActionKind::SoftReboot => Cost::SoftReboot,
        ActionKind::Reboot => Cost::Reboot,
    }
}

/// Whether the node must be drained before these actions.
pub(super) fn drains(actions: &[Action]) -> bool {
    cost(actions) >= Cost::Drain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(needs: &[ActionNeed]) -> Vec<String> {
        combine(needs.iter().map(|need| (need, "why")))
            .into_iter()
            .map(|action| {
                ActionNeed {
                    kind: action.kind,
                    unit: action.unit,
                }
                .to_string()
            })
            .collect()
    }

    #[test]
    fn actions_are_deduplicated_and_ordered_with_machinist_last() {
        let needs = [
            ActionNeed::unit(ActionKind::Restart, "machinist.service"),
            ActionNeed::unit(ActionKind::Restart, "z.service"),
            ActionNeed::unit(ActionKind::Restart, "z.socket"),
            ActionNeed::unit(ActionKind::Reload, "z.service"),
            ActionNeed::unit(ActionKind::Reload, "a.service"),
            ActionNeed::machine(ActionKind::DaemonReload),
            ActionNeed::machine(ActionKind::DaemonReload),
            ActionNeed::machine(ActionKind::Drain),
            ActionNeed::unit(ActionKind::Stop, "y.service"),
        ];
        assert_eq!(
            names(&needs),
            [
                "Drain",
                "Stop y.service",
                "DaemonReload",
                "Reload a.service",
                "Restart z.socket",
                "Restart z.service",
                "Restart machinist.service",
            ]
        );
    }

    #[test]
    fn actions_of_several_plans_are_deduplicated() {
        let unit = |kind, unit: &str| (kind, Some(unit.to_owned()));
        let (restart, reload) = (ActionKind::Restart, ActionKind::Reload);
        let all = [
            unit(restart, "b.service"),
            unit(restart, "a.service"),
            unit(restart, "machinist.service"),
            unit(restart, "b.service"),
            (ActionKind::DaemonReload, None),
            unit(reload, "b.service"),
            unit(restart, "a.service"),
        ];
        assert_eq!(
            in_order(all),
            [
                (ActionKind::DaemonReload, None),
                unit(reload, "b.service"),
                unit(restart, "a.service"),
                unit(restart, "b.service"),
                unit(restart, "machinist.service"),
            ]
        );
    }

    #[test]
    fn a_reboot_replaces_all_other_actions_except_the_drain() {
        let needs = [
            ActionNeed::unit(ActionKind::Restart, "a.service"),
            ActionNeed::machine(ActionKind::SoftReboot),
            ActionNeed::machine(ActionKind::Reboot),
            ActionNeed::machine(ActionKind::Drain),
        ];
        assert_eq!(names(&needs), ["Drain", "Reboot"]);
    }
}
