//! Formats the status for people.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};
use jiff::{SignedDuration, Timestamp};

use super::{
    DownloadStatus, FailureStatus, Status, UpdateStatus,
    config_rows::config_rows,
    failure_message::sentences,
    report_row::{WARNING_STYLE, folded},
};
use crate::readiness::{Gate, GateEffect};
use machinist_base::reason::Reason;
use machinist_plan::escape_line;

const OK_STYLE: Style = AnsiColor::Green.on_default();
const ERROR_STYLE: Style = AnsiColor::Red.on_default().bold();
const HEADING_STYLE: Style = Style::new().bold();

/// Number of reasons shown for a rejected config, so that a long list does not hide the gates.
const MAX_REFUSALS: usize = 8;

/// Number of updates shown; `machinist history` shows all.
const MAX_UPDATES: usize = 5;

const BYTES_PER_MIB: u64 = 1 << 20;

/// Formats the status with ANSI colours; the caller strips them where colours are not supported.
pub fn render(status: &Status, now: Timestamp) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, status, now);
    text
}

fn write(out: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    head(out, status, now)?;
    gates(out, status, now)?;
    devices(out, status)?;
    vendors(out, status)?;
    updates(out, &status.updates, now)
}

fn head(out: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let (style, word) = match status.ready {
        true => (OK_STYLE, "ready"),
        false => (ERROR_STYLE, "not ready"),
    };
    let node = status.node.as_deref().unwrap_or(&status.root);
    writeln!(
        out,
        "{HEADING_STYLE}{node}{HEADING_STYLE:#}  {style}{word}{style:#}  machinist {}",
        status.version
    )?;
    let since = ago(status.since, now);
    let mut rows = vec![("phase", format!("{}, for {since}", status.phase))];
    if let Some(download) = &status.download {
        rows.push(("download", download_text(download)));
    }
    if let Some(failure) = &status.failure {
        rows.extend(failed(failure));
    }
    let (current, desired) = (&status.config.current, &status.config.desired);
    rows.push(("config", or_dash(current).to_owned()));
    if !desired.is_empty() && current != desired {
        rows.push(("wanted", desired.clone()));
    }
    if let Some(held) = &status.held {
        let since = ago(held.since, now);
        let text = format!(
            "{WARNING_STYLE}{}{WARNING_STYLE:#}, for {since}, until the source changes or machinist apply",
            held.by
        );
        rows.push(("held by", text));
    }
    rows.push(("source", or_dash(&status.source).to_owned()));
    rows.push(("admin", or_dash(&status.admin).to_owned()));
    for (name, value) in rows {
        folded(out, &format!("  {name:<8} "), &value)?;
    }
    config_rows(out, &status.config)?;
    for block in &status.blockers {
        let name = match block.namespace.as_str() {
            "" => block.name.clone(),
            namespace => format!("{namespace}/{}", block.name),
        };
        let since = ago(block.since, now);
        let (kind, reason) = (&block.kind, block.reason);
        let message = escape_line(&block.message);
        let head = format!("  {ERROR_STYLE}{:<8}{ERROR_STYLE:#} ", "blocked");
        folded(
            out,
            &head,
            &format!("{kind} {name}, for {since}: {reason}: {message}"),
        )?;
    }
    Ok(())
}

/// The progress of a download, such as `3 of 12 layers (1.2 GB), 310 MiB received`. Packages have no layers.
fn download_text(download: &DownloadStatus) -> String {
    let size = download.needed_size.as_ref();
    let size = size.map_or_else(String::new, |size| format!(" ({})", escape_line(size)));
    let layers = match download.needed_layers {
        Some(needed) => Some(format!("{} of {needed} layers{size}", download.layers)),
        None => (download.layers > 0).then(|| format!("{} layers", download.layers)),
    };
    let received = download.received_bytes.map(|bytes| bytes / BYTES_PER_MIB);
    let received = received.map(|mib| format!("{mib} MiB received"));
    let parts: Vec<String> = layers.into_iter().chain(received).collect();
    match parts.is_empty() {
        true => "begins".to_owned(),
        false => parts.join(", "),
    }
}

/// The failure of the last update: one row per reason.
fn failed(failure: &FailureStatus) -> Vec<(&'static str, String)> {
    let retries = if failure.retryable { "; retrying" } else { "" };
    let told = sentences(&failure.message, &failure.refusals);
    let mut told: Vec<_> = told.iter().map(|one| escape_line(one)).collect();
    let more = told.len().saturating_sub(MAX_REFUSALS);
    told.truncate(MAX_REFUSALS);
    if more > 0 {
        told.push(format!("and {more} more: run machinist plan for all"));
    }
    let mut told = told.into_iter();
    let first = told.next().unwrap_or_default();
    let text = format!(
        "{ERROR_STYLE}{}{ERROR_STYLE:#}: {first}{retries}",
        failure.code
    );
    let rest = told.map(|one| ("", one));
    std::iter::once(("failure", text)).chain(rest).collect()
}

fn gates(out: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let width = widest(status.gates.iter().map(|gate| gate.name.as_str()));
    writeln!(out, "\n{HEADING_STYLE}gates{HEADING_STYLE:#}")?;
    for gate in status.gates.iter() {
        let (style, word) = verdict(gate);
        let (name, since) = (&gate.name, ago(gate.since, now));
        let head = format!("  {name:<width$}  {style}{word:<4}{style:#}  {since:<7}  ");
        folded(out, &head, &escape_line(&gate.message))?;
    }
    Ok(())
}

fn verdict(gate: &Gate) -> (Style, &'static str) {
    match (gate.open, gate.effect) {
        (_, GateEffect::Off) => (Style::new(), "off"),
        // Open, but with a message that deserves attention.
        (true, _) if !matches!(gate.reason, Reason::Ok | Reason::SignalMissing) => {
            (WARNING_STYLE, "note")
        }
        (true, _) => (OK_STYLE, "ok"),
        (false, GateEffect::Hold) => (ERROR_STYLE, "hold"),
        (false, GateEffect::Warn) => (WARNING_STYLE, "warn"),
    }
}

fn devices(out: &mut String, status: &Status) -> fmt::Result {
    let silent = status.orphaned_resources.is_empty() && status.device_problems.is_empty();
    if status.devices.is_empty() && silent {
        return Ok(());
    }
    writeln!(out, "\n{HEADING_STYLE}devices{HEADING_STYLE:#}")?;
    let width = widest(status.devices.iter().map(|one| one.resource.as_str()));
    for resource in status.devices.iter() {
        let healthy = resource
            .devices
            .iter()
            .filter(|one| one.health == "Healthy");
        let (healthy, all) = (healthy.count(), resource.devices.len());
        let style = if healthy == all {
            OK_STYLE
        } else {
            ERROR_STYLE
        };
        let registered = match resource.registered {
            true => "registered",
            false => "not registered",
        };
        let why = match (resource.registered, resource.reason.as_str()) {
            (true, _) | (false, "") => String::new(),
            (false, why) => format!("; {}", escape_line(why)),
        };
        let name = &resource.resource;
        let text = format!(
            "{style}{healthy} of {all} healthy{style:#}, {registered}, {}{why}",
            resource.source
        );
        folded(out, &format!("  {name:<width$}  "), &text)?;
        for device in resource
            .devices
            .iter()
            .filter(|one| one.health != "Healthy")
        {
            let head = format!("    {ERROR_STYLE}{}{ERROR_STYLE:#}: ", device.id);
            folded(out, &head, &escape_line(&device.reason))?;
        }
    }
    for line in status.leftovers() {
        folded(out, "  ", &escape_line(&line))?;
    }
    for problem in &status.device_problems {
        let text = format!("{WARNING_STYLE}{}{WARNING_STYLE:#}", escape_line(problem));
        folded(out, "  ", &text)?;
    }
    Ok(())
}

/// Vendors with a device driver, and the problem of each.
fn vendors(out: &mut String, status: &Status) -> fmt::Result {
    if status.vendors.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{HEADING_STYLE}vendors{HEADING_STYLE:#}")?;
    let width = widest(status.vendors.iter().map(|one| one.vendor.as_str()));
    for vendor in &status.vendors {
        let (style, word) = match (vendor.connected, &vendor.problem) {
            (true, None) => (OK_STYLE, "connected"),
            (true, Some(_)) => (WARNING_STYLE, "connected"),
            (false, _) => (ERROR_STYLE, "away"),
        };
        let why = vendor
            .problem_texts()
            .map(|why| escape_line(&why).to_string());
        let why: Vec<_> = why.collect();
        let why = match why.is_empty() {
            true => String::new(),
            false => format!("; {}", why.join("; ")),
        };
        let refused = match vendor.refused {
            0 => String::new(),
            many => format!(", {many} refused"),
        };
        let text = format!("{style}{word}{style:#}{refused}{why}");
        folded(out, &format!("  {:<width$}  ", vendor.vendor), &text)?;
    }
    Ok(())
}

fn updates(out: &mut String, updates: &[UpdateStatus], now: Timestamp) -> fmt::Result {
    if updates.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{HEADING_STYLE}updates{HEADING_STYLE:#}")?;
    for update in updates.iter().take(MAX_UPDATES) {
        let outcome = update
            .outcome
            .map_or("running", super::UpdateOutcomeStatus::as_str);
        let began = update.started.strftime("%Y-%m-%d %H:%M:%SZ");
        let took = ago(update.started, update.finished.unwrap_or(now));
        let reason = update
            .reason
            .map_or(String::new(), |reason| format!("  {reason}"));
        let line = format!("  {began}  {outcome:<14}  in {took:<7}{reason}");
        writeln!(out, "{}\n    to {}", line.trim_end(), update.to)?;
    }
    Ok(())
}

fn or_dash(text: &str) -> &str {
    match text {
        "" => "-",
        text => text,
    }
}

fn widest<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).max().unwrap_or_default()
}

/// The duration in its two largest units: `3d4h`, `5m2s`, `140ms`.
pub(super) fn ago(from: Timestamp, to: Timestamp) -> String {
    let span = to.duration_since(from).max(SignedDuration::ZERO);
    let (seconds, millis) = (span.as_secs(), span.subsec_millis());
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
