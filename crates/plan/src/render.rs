//! Renders a plan as text for a terminal 80 columns wide.

use std::fmt::{self, Write as _};

use anstyle::{AnsiColor, Style};

use super::{
    Action, ChangeKind, Cost, ObjectSummary, Plan, PlanChange, actions::ActionNeed,
    desired_entry::noun,
};
use machinist_base::text::{LINE_COLUMNS, escape_line};
use machinist_ignition::{EntryKind, Refusal};

/// The maximum number of reasons shown for one action; a reboot may have thousands.
const MAX_REASONS: usize = 3;

/// The number of digest digits shown, enough to distinguish two contents; JSON has all of them.
const DIGEST_DIGITS: usize = 12;

/// The text output of a plan; see [`Plan::to_text`].
struct PlanRenderer {
    text: String,
    colour: bool,
}

impl Plan {
    /// The plan as text: the changes with their reasons, the actions, and the cost.
    ///
    /// With `colour` the text contains ANSI escapes; the caller decides whether its output supports
    /// them.
    pub fn to_text(&self, colour: bool) -> String {
        let mut page = PlanRenderer {
            text: String::new(),
            colour,
        };
        // Writing to a String does not fail.
        let _ = page.plan(self);
        page.text
    }
}

impl PlanRenderer {
    fn plan(&mut self, plan: &Plan) -> fmt::Result {
        if !plan.refusals.is_empty() {
            self.refusals(&plan.refusals)?;
        }
        if !plan.changes.is_empty() {
            self.heading("Changes")?;
            for change in &plan.changes {
                self.change(change)?;
            }
        }
        if !plan.actions.is_empty() {
            self.heading("Actions, in this order")?;
            for action in &plan.actions {
                self.action(action)?;
            }
        }
        self.list("Skipped actions", &plan.left_out)?;
        self.list("Warnings", &plan.warnings)?;
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(&closing(plan));
        self.text.push('\n');
        Ok(())
    }

    fn heading(&mut self, title: &str) -> fmt::Result {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.styled(Style::new().bold(), title)?;
        self.text.push('\n');
        Ok(())
    }

    fn styled(&mut self, style: Style, text: &str) -> fmt::Result {
        if self.colour {
            write!(self.text, "{style}{text}{style:#}")
        } else {
            self.text.write_str(text)
        }
    }

    fn change(&mut self, change: &PlanChange) -> fmt::Result {
        let (sign, colour) = match change.change {
            ChangeKind::Create => ("+", AnsiColor::Green),
            ChangeKind::Modify => ("~", AnsiColor::Yellow),
            ChangeKind::Remove => ("-", AnsiColor::Red),
        };
        self.text.push_str("  ");
        self.styled(colour.on_default(), sign)?;
        writeln!(
            self.text,
            " {} {}{}",
            noun(change.kind),
            escape_line(&change.name),
            size(change)
        )?;
        let values = values(change);
        if !values.is_empty() {
            self.wrapped("      ", &values.join(", "));
        }
        self.wrapped("      ", &format!("{} ({})", change.why, change.policy));
        match &change.diff {
            Some(diff) => self.diff(diff),
            None => Ok(()),
        }
    }

    fn diff(&mut self, diff: &str) -> fmt::Result {
        // The two header lines only repeat the path.
        for line in diff.lines().skip(2) {
            let style = match line.as_bytes().first() {
                Some(b'+') => AnsiColor::Green.on_default(),
                Some(b'-') => AnsiColor::Red.on_default(),
                Some(b'@') => AnsiColor::Cyan.on_default(),
                _ => Style::new(),
            };
            self.text.push_str("      | ");
            self.styled(style, &escape_line(line))?;
            self.text.push('\n');
        }
        Ok(())
    }

    fn action(&mut self, action: &Action) -> fmt::Result {
        let need = ActionNeed {
            kind: action.kind,
            unit: action.unit.clone(),
        };
        self.text.push_str("  ");
        self.styled(Style::new().bold(), &need.to_string())?;
        self.text.push('\n');
        for why in action.why.iter().take(MAX_REASONS) {
            self.wrapped("      ", &format!("because {why}"));
        }
        match action.why.len().saturating_sub(MAX_REASONS) {
            0 => Ok(()),
            more => writeln!(self.text, "      and {more} more"),
        }
    }

    fn refusals(&mut self, refusals: &[Refusal]) -> fmt::Result {
        self.heading("Refused")?;
        for refusal in refusals {
            self.wrapped("  ", &refusal.to_string());
        }
        Ok(())
    }

    fn list(&mut self, title: &str, sentences: &[String]) -> fmt::Result {
        if sentences.is_empty() {
            return Ok(());
        }
        self.heading(title)?;
        for sentence in sentences {
            self.wrapped("  ", sentence);
        }
        Ok(())
    }

    /// Writes one sentence, wrapped between words; lines after the first are indented by two more
    /// columns.
    fn wrapped(&mut self, indent: &str, sentence: &str) {
        let mut column = 0;
        for word in escape_line(sentence).split(' ') {
            let length = word.chars().count();
            if column == 0 {
                self.text.push_str(indent);
                column = indent.len();
            } else if column + 1 + length > LINE_COLUMNS {
                self.text.push('\n');
                self.text.push_str(indent);
                self.text.push_str("  ");
                column = indent.len() + 2;
            } else {
                self.text.push(' ');
                column += 1;
            }
            self.text.push_str(word);
            column += length;
        }
        self.text.push('\n');
    }
}

/// The size of content that is not shown.
fn size(change: &PlanChange) -> String {
    let bytes = |summary: &Option<Box<ObjectSummary>>| summary.as_ref().and_then(|one| one.size);
    match (bytes(&change.before), bytes(&change.after)) {
        (Some(before), Some(after)) if before != after => format!(" ({before} → {after} bytes)"),
        (None, Some(1)) => " (1 byte)".to_owned(),
        (None, Some(after)) => format!(" ({after} bytes)"),
        _ => String::new(),
    }
}

/// The differing values of an object that a diff does not show; of a new object those that differ
/// from the usual values.
fn values(change: &PlanChange) -> Vec<String> {
    let (before, after) = (change.before.as_deref(), change.after.as_deref());
    let Some(after) = after else {
        return Vec::new();
    };
    let mut values = Vec::new();
    if let (Some(before), Some(after)) = (before.and_then(|one| one.digest), after.digest)
        && change.diff.is_none()
        && before != after
    {
        let (before, after) = (before.short(DIGEST_DIGITS), after.short(DIGEST_DIGITS));
        values.push(format!("sha256:{before} → {after}"));
    }
    let usual = match change.kind {
        EntryKind::Directory => "0755",
        _ => "0644",
    };
    let compared = |field: &str| {
        let mut fields = change.fields.iter();
        change.change != ChangeKind::Modify || fields.any(|one| one == field || one == "kind")
    };
    let mut add = |name: &str, usual: &str, get: fn(&ObjectSummary) -> Option<&String>| {
        let (old, new) = (before.and_then(get), get(after));
        values.extend(match (old, new) {
            (Some(old), Some(new)) if old != new => Some(format!("{name} {old} → {new}")),
            (None, Some(new)) if new != usual => Some(format!("{name} {new}")),
            _ => None,
        });
    };
    if change.kind == EntryKind::Link {
        add("to", "", |one| one.target.as_ref());
    } else if compared("mode") {
        add("mode", usual, |one| one.mode.as_ref());
    }
    if compared("owner") {
        add("owner", "0:0", |one| one.owner.as_ref());
    }
    values
}

fn closing(plan: &Plan) -> String {
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    if !plan.refusals.is_empty() {
        let reasons = counted(plan.refusals.len(), "error");
        return format!("Config refused: {reasons}. Nothing was changed.");
    }
    if plan.changes.is_empty() && plan.is_empty() {
        return if plan.from == plan.to || plan.from.digest == plan.to.digest {
            "No changes: the machine matches the config.".to_owned()
        } else {
            "No changes: the machine already matches the new config.".to_owned()
        };
    }
    if !plan.left_out.is_empty() {
        let changes = counted(plan.changes.len(), "change");
        return format!("{changes} to files; no actions, because no system runs in this root.");
    }
    let cost = match plan.cost {
        Cost::None => "no disruption",
        Cost::Reload => "services reload their configuration",
        Cost::Restart => "services restart",
        Cost::Drain => "pods are evicted from this node",
        Cost::SoftReboot => "userspace restarts",
        Cost::Reboot => "the machine reboots",
    };
    format!(
        "{}, {}; cost: {:?} ({cost}).",
        counted(plan.changes.len(), "change"),
        counted(plan.actions.len(), "action"),
        plan.cost
    )
}
