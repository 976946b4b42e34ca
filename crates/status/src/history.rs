//! Formats finished updates for people, 80 columns wide.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};

use super::{UpdateOutcomeStatus, UpdateStatus, text_report::ago};
use machinist_base::text::LINE_COLUMNS;
use machinist_plan::escape_line;

const OK_STYLE: Style = AnsiColor::Green.on_default();
const ERROR_STYLE: Style = AnsiColor::Red.on_default().bold();

/// Writes the updates with ANSI colours, in the order they are given.
pub fn render(updates: &[UpdateStatus]) -> String {
    let mut text = String::new();
    for update in updates {
        // Writing to a String cannot fail.
        let _ = write(&mut text, update);
    }
    text
}

fn write(out: &mut String, update: &UpdateStatus) -> fmt::Result {
    let style = match update.outcome {
        Some(UpdateOutcomeStatus::Done | UpdateOutcomeStatus::AppliedOffline) => OK_STYLE,
        _ => ERROR_STYLE,
    };
    let outcome = update
        .outcome
        .map_or("running", UpdateOutcomeStatus::as_str);
    let reason = update
        .reason
        .map_or(String::new(), |reason| format!(": {reason}"));
    let began = update.started.strftime("%Y-%m-%d %H:%M:%SZ");
    let took = ago(update.started, update.finished.unwrap_or(update.started));
    writeln!(out, "{began}  {style}{outcome}{style:#}{reason}, in {took}")?;
    writeln!(out, "  id    {}", update.id)?;
    let from = update.from.as_deref().unwrap_or("nothing");
    let (from, to) = (escape_line(from), escape_line(&update.to));
    writeln!(out, "  from  {from}\n  to    {to}")?;
    let phases = update.phases.iter().map(|phase| {
        let end = phase.finished.or(update.finished).unwrap_or(phase.started);
        format!("{} {}", phase.name, ago(phase.started, end))
    });
    list(out, "took", phases)?;
    let actions = update.actions.iter().map(|action| {
        let unit = action.unit.as_ref().map(|unit| format!(" {unit}"));
        let state = Some(&action.state).filter(|state| *state != "Done");
        let state = state.map(|state| format!(" ({})", state.to_lowercase()));
        let (unit, state) = (unit.unwrap_or_default(), state.unwrap_or_default());
        escape_line(&format!("{}{unit}{state}", action.kind))
    });
    list(out, "did", actions)?;
    for left in &update.left_behind {
        writeln!(out, "  left  {}", escape_line(left))?;
    }
    Ok(())
}

/// Comma-separated items, wrapped at the right edge; nothing without items.
fn list(out: &mut String, name: &str, items: impl Iterator<Item = String>) -> fmt::Result {
    let mut line = format!("  {name:<4}  ");
    let mut items = items.peekable();
    if items.peek().is_none() {
        return Ok(());
    }
    while let Some(item) = items.next() {
        let comma = if items.peek().is_some() { ", " } else { "" };
        if line.len() + item.len() > LINE_COLUMNS && line.trim() != name {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(8);
        }
        line.push_str(&item);
        line.push_str(comma);
    }
    writeln!(out, "{line}")
}
