//! Draws the phases of the last updates: one bar per update, all on the same scale.

use std::fmt::{self, Write};

use jiff::Timestamp;

use super::{UpdateOutcomeStatus, UpdateStatus, text_report::ago};

const BAR_LEFT_PX: f64 = 250.0;
const BAR_WIDTH_PX: f64 = 640.0;
const ROW_HEIGHT_PX: f64 = 44.0;
const TOP_MARGIN_PX: f64 = 64.0;
const LEGEND_LEFT_PX: f64 = 10.0;
/// Width of the longest phase name with its colour; nine of them fit next to each other.
const LEGEND_ENTRY_PX: f64 = 110.0;

/// The colour of a phase: grey for waiting, warm for rollbacks and reboots, cool for work.
fn colour(phase: &str) -> &'static str {
    match phase {
        "Planned" => "#d0d0d0",
        "Waiting" => "#9a9a9a",
        "Fetching" => "#b279a2",
        "Staging" => "#4c78a8",
        "Committing" => "#72b7b2",
        "RunningActions" => "#54a24b",
        "RebootPending" => "#f58518",
        "Booted" => "#eeca3b",
        "Verifying" => "#9d755d",
        "RollingBack" => "#e45756",
        _ => "#bab0ac",
    }
}

/// Draws the updates in the given order, as SVG.
pub fn timeline(updates: &[UpdateStatus]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut out, updates);
    out
}

fn draw(out: &mut String, updates: &[UpdateStatus]) -> fmt::Result {
    let longest = updates.iter().map(length).fold(0.0, f64::max).max(0.001);
    let rows = u32::try_from(updates.len()).map_or(0.0, f64::from);
    let (width, height) = (
        BAR_LEFT_PX + BAR_WIDTH_PX + 110.0,
        TOP_MARGIN_PX + rows * ROW_HEIGHT_PX + 40.0,
    );
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
    writeln!(
        out,
        "<text x=\"10\" y=\"24\" font-size=\"16\">machinist: phases of the last updates</text>"
    )?;
    legend(out, updates)?;
    let mut top = TOP_MARGIN_PX;
    for update in updates {
        row(out, update, top, BAR_WIDTH_PX / longest)?;
        top += ROW_HEIGHT_PX;
    }
    writeln!(out, "</svg>")
}

fn legend(out: &mut String, updates: &[UpdateStatus]) -> fmt::Result {
    let mut names: Vec<&str> = Vec::new();
    for phase in updates.iter().flat_map(|update| &update.phases) {
        if !names.contains(&phase.name.as_str()) {
            names.push(&phase.name);
        }
    }
    let mut left = LEGEND_LEFT_PX;
    for name in names {
        let fill = colour(name);
        writeln!(
            out,
            "<rect x=\"{left}\" y=\"38\" width=\"10\" height=\"10\" fill=\"{fill}\"/><text x=\"{}\" y=\"47\">{}</text>",
            left + 14.0,
            escaped(name)
        )?;
        left += LEGEND_ENTRY_PX;
    }
    Ok(())
}

fn row(out: &mut String, update: &UpdateStatus, top: f64, scale: f64) -> fmt::Result {
    let began = update.started.strftime("%Y-%m-%d %H:%M:%SZ");
    let outcome = update
        .outcome
        .map_or("running", UpdateOutcomeStatus::as_str);
    let reason = update
        .reason
        .map_or(String::new(), |reason| format!(" {reason}"));
    writeln!(
        out,
        "<text x=\"10\" y=\"{}\">{began}</text><text x=\"10\" y=\"{}\" fill=\"#555\">{outcome}{}</text>",
        top + 12.0,
        top + 27.0,
        escaped(&reason)
    )?;
    let end = update.finished.unwrap_or(update.started);
    for phase in &update.phases {
        let (from, to) = (phase.started, phase.finished.unwrap_or(end));
        let left = BAR_LEFT_PX + seconds(update.started, from) * scale;
        // A phase that would be too narrow is drawn with a minimum width.
        let wide = (seconds(from, to) * scale).max(1.0);
        writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"22\" fill=\"{}\"><title>{} {}</title></rect>",
            colour(&phase.name),
            escaped(&phase.name),
            ago(from, to)
        )?;
    }
    writeln!(
        out,
        "<text x=\"{BAR_LEFT_PX}\" y=\"{}\" font-size=\"10\" fill=\"#555\">to {}</text>",
        top + 34.0,
        escaped(&update.to)
    )?;
    let right = BAR_LEFT_PX + seconds(update.started, end) * scale + 8.0;
    writeln!(
        out,
        "<text x=\"{right:.1}\" y=\"{}\">{}</text>",
        top + 15.0,
        ago(update.started, end)
    )
}

fn length(update: &UpdateStatus) -> f64 {
    seconds(update.started, update.finished.unwrap_or(update.started))
}

/// Never negative, even if the clock was set back.
fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn escaped(text: &str) -> String {
    let text = machinist_plan::escape_line(text);
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PhaseStatus;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn update(end: i64, phases: &[(&str, i64, i64)]) -> UpdateStatus {
        let phases = phases.iter().map(|(name, from, to)| PhaseStatus {
            name: (*name).to_owned(),
            started: at(*from),
            finished: Some(at(*to)),
        });
        UpdateStatus {
            id: "x".to_owned(),
            from: None,
            to: "rendered-machine-2c50d8bddfb357c97675d1d298cd2a6a".to_owned(),
            digest: String::new(),
            started: at(0),
            finished: Some(at(end)),
            outcome: Some(UpdateOutcomeStatus::RolledBack),
            reason: Some(machinist_base::reason::Reason::RebootTimeout),
            phases: phases.collect(),
            actions: Vec::new(),
            left_behind: Vec::new(),
        }
    }

    #[test]
    fn timeline_bars_are_proportional_to_phase_durations() {
        let drawn = timeline(&[
            update(10, &[("Staging", 0, 4), ("RunningActions", 4, 10)]),
            update(5, &[("Staging", 0, 5)]),
        ]);
        for bar in [
            "x=\"250.0\" y=\"64\" width=\"256.0\" height=\"22\" fill=\"#4c78a8\"><title>Staging 4s",
            "x=\"506.0\" y=\"64\" width=\"384.0\" height=\"22\" fill=\"#54a24b\"><title>RunningActions 6s",
            "x=\"250.0\" y=\"108\" width=\"320.0\" height=\"22\" fill=\"#4c78a8\"><title>Staging 5s",
        ] {
            assert!(drawn.contains(bar), "{bar} in\n{drawn}");
        }
        assert!(timeline(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn the_timeline_legend_of_all_phases_fits_the_picture() {
        let names = "Planned Waiting Staging Committing RunningActions RebootPending Booted Verifying RollingBack";
        let phases: Vec<_> = (0..)
            .zip(names.split(' '))
            .map(|(at, name)| (name, at * 9, at * 9 + 9))
            .collect();
        let drawn = timeline(&[update(81, &phases), update(7, &[("Staging", 0, 7)])]);
        let legend = drawn.split("y=\"38\"").skip(1).count();
        assert_eq!(legend, phases.len());
        for rest in drawn.split(" x=\"").skip(1) {
            let left: f64 = rest.split('"').next().unwrap().parse().unwrap();
            assert!(left < BAR_LEFT_PX + BAR_WIDTH_PX + 110.0 - 80.0, "{rest}");
        }
    }
}
