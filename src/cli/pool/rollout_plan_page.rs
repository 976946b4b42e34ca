//! Formats the plan of a pool's rollout as text. Texts from the cluster are untrusted, so terminal control characters
//! are removed.

use super::{
    drain_blockers::DrainBlocker,
    estimate,
    render::MAX_NAMED_NODES,
    rollout_plan::{NodePlan, PoolPlan},
};
use crate::cli::{
    fleet::{self, annotations::brief},
    output::wrapped,
};
use machinist_base::text::join_limited;
use machinist_plan::{Cost, escape_line};

/// How many nodes the page lists; JSON has all.
const MAX_LISTED_NODES: usize = 50;

/// The page of a plan.
pub(super) fn page(plan: &PoolPlan) -> String {
    let from = plan.from.as_deref().unwrap_or("no config");
    let mut text = String::new();
    if let Some(refused) = &plan.refused {
        text += &line(
            "",
            &format!("pool {}: no config would be rendered", plan.pool),
        );
        let each = refused.refusals.iter().map(ToString::to_string);
        let each: Vec<String> = match refused.refusals.is_empty() {
            true => vec![format!("{} [{}]", refused.message, refused.code)],
            false => each.collect(),
        };
        text += &each.iter().map(|it| line("- ", it)).collect::<String>();
        return text + &line("", &format!("The pool keeps {from}. Nothing was changed."));
    }
    let to = plan.to.as_deref().unwrap_or("no config");
    text += &match from == to {
        true => line(
            "",
            &format!("pool {}: the rendered config remains {to}", plan.pool),
        ),
        false => line("", &format!("pool {}: {from} → {to}", plan.pool)),
    };
    text += &line("  ", &format!("merged from {}", plan.sources.join(", ")));
    if !plan.from_files.is_empty() {
        text += &line(
            "  ",
            &format!("of the files: {}", plan.from_files.join(", ")),
        );
    }
    if let Some(change) = plan.plan.as_ref().filter(|it| !it.changes.is_empty()) {
        text += &format!("\n{}", change.to_text(true));
    }
    text += "\nNodes\n";
    text += &nodes(plan);
    text += "\nRollout\n";
    text += &rollout(plan);
    let notes = plan.notes.iter();
    text += &notes.map(|note| line("  note: ", note)).collect::<String>();
    text + &fleet::warnings(&plan.warnings)
}

/// A line that may be longer than the terminal is wide.
fn line(first: &str, sentence: &str) -> String {
    let others = " ".repeat(first.chars().count() + 2);
    wrapped(first, &others, &escape_line(sentence))
}

fn nodes(plan: &PoolPlan) -> String {
    let updated: Vec<&NodePlan> = plan.nodes.iter().filter(|node| node.updates).collect();
    if updated.is_empty() {
        return "  none changes\n".to_owned();
    }
    let shown = updated.iter().take(MAX_LISTED_NODES);
    let mut text: String = shown.map(|node| line("  ", &node_text(node))).collect();
    let more = updated.len().saturating_sub(MAX_LISTED_NODES);
    if more > 0 {
        text += &format!("  … {more} more\n");
    }
    text + &line("  ", &plan.policies.basis())
}

fn node_text(node: &NodePlan) -> String {
    let current = node
        .current
        .as_deref()
        .map_or_else(|| "no config".to_owned(), brief);
    let needs = match (&node.unknown, node.cost) {
        (Some(why), _) => format!("not known: {why}"),
        (None, Some(cost)) => needs(cost, &node.actions),
        (None, None) => {
            let refusals: Vec<String> = node.refusals.iter().map(ToString::to_string).collect();
            format!("the agent would refuse it: {}", refusals.join("; "))
        }
    };
    format!("{} on {current}: {needs}", node.name)
}

fn needs(cost: Cost, actions: &[String]) -> String {
    let what = match cost {
        Cost::None => "no disruption",
        Cost::Reload => "reload",
        Cost::Restart => "restart",
        Cost::Drain => "drain",
        Cost::SoftReboot => "drain and soft reboot",
        Cost::Reboot => "drain and reboot",
    };
    match actions.is_empty() || cost >= Cost::SoftReboot {
        true => what.to_owned(),
        false => format!("{what} ({})", join_limited(actions.iter(), MAX_NAMED_NODES)),
    }
}

fn rollout(plan: &PoolPlan) -> String {
    let mut text = String::new();
    if let Some(estimate) = plan.rollout.as_ref().filter(|it| it.pending > 0) {
        text += &estimate::page(estimate);
    }
    let waits = plan.waits.iter();
    let waits = waits.map(|wait| line("  waits: ", &format!("{} [{}]", wait.message, wait.code)));
    text += &waits.collect::<String>();
    let blockers = plan.blockers.iter().flatten();
    text += &blockers
        .map(|it| line("  blocked: ", &blocker(it)))
        .collect::<String>();
    match text.is_empty() {
        true => "  nothing to roll out\n".to_owned(),
        false => text,
    }
}

/// `budget shop/web allows 0 disruptions: blocks the drain of node a`.
fn blocker(found: &DrainBlocker) -> String {
    let budgets = found.budgets.join(" and ");
    let several = if found.budgets.len() == 1 { "" } else { "s" };
    let verb = if several.is_empty() {
        "blocks"
    } else {
        "block"
    };
    let nodes = if found.nodes.len() == 1 {
        "node"
    } else {
        "nodes"
    };
    format!(
        "budget{several} {budgets} {}: {verb} the drain of {nodes} {} (pods {}) [{}]",
        found.message,
        join_limited(found.nodes.iter(), MAX_NAMED_NODES),
        join_limited(found.pods.iter(), MAX_NAMED_NODES),
        found.reason
    )
}
