//! Formats details of a config for people.

use std::fmt::{self, Write};

use super::{
    ConfigStatus, DriftStatus,
    report_row::{WARNING_STYLE, folded},
};
use machinist_base::reason::Reason;
use machinist_plan::escape_line;

/// Number of warnings shown; `machinist plan` shows all.
const MAX_WARNINGS: usize = 5;

/// Rows for drift, labels and warnings.
pub(super) fn config_rows(out: &mut String, config: &ConfigStatus) -> fmt::Result {
    for drift in &config.drift {
        let (path, what) = (&drift.path, differs(drift));
        writeln!(
            out,
            "  {WARNING_STYLE}{:<8}{WARNING_STYLE:#} {path} ({what})",
            "drift"
        )?;
    }
    for path in &config.labels_pending {
        let reason = Reason::LabelPending;
        writeln!(
            out,
            "  {WARNING_STYLE}{:<8}{WARNING_STYLE:#} {path} ({reason})",
            "label"
        )?;
    }
    let head = format!("  {WARNING_STYLE}{:<8}{WARNING_STYLE:#} ", "warning");
    // Warnings about this machine first: a unit that cannot start fails the update.
    let warnings = || config.plan_warnings.iter().chain(&config.warnings);
    for warning in warnings().take(MAX_WARNINGS) {
        folded(out, &head, &escape_line(warning))?;
    }
    match warnings().count().saturating_sub(MAX_WARNINGS) {
        0 => Ok(()),
        more => writeln!(out, "{head}and {more} more: run machinist plan for all"),
    }
}

/// The kind of difference such as `content`, the entry's name in an account database, and whether repairs are suspended.
fn differs(drift: &DriftStatus) -> String {
    let kind = drift.kind.as_str();
    let what = match &drift.entry {
        Some(entry) => format!("{kind} of {entry}"),
        None => kind.to_owned(),
    };
    match drift.repair_suspended {
        true => format!("{what}, repair suspended"),
        false => what,
    }
}
