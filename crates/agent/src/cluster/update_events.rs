//! Emits events on the Node for changes of the update report.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reported_updates::ReportedUpdates;
use machinist_base::reason::Reason;
use machinist_cluster::events::{EventSubject, Events};
use machinist_kube_api::EventReason;
use machinist_plan::ActionKind;
use machinist_update::{
    journal::{ActionState, ConfigName, Outcome, UpdateRecord},
    phase::Phase,
    reconciler::UpdateReport,
};

/// Emits an event for every step that the report shows, until `stop`. The first report emits none, except that the
/// machine has rebooted, and how updates ended: the process that did so no longer exists.
pub(super) async fn emit_update_events(
    mut update: watch::Receiver<Arc<UpdateReport>>,
    mut reported: ReportedUpdates,
    events: Events,
    stop: CancellationToken,
) {
    let mut now = Arc::clone(&update.borrow_and_update());
    if let Some(note) = returned(&now) {
        events.emit(EventSubject::Node, EventReason::Rebooted, note);
    }
    let missed = reported.unreported(&now).len();
    let mut before = Arc::new(before_missed(&now, missed));
    loop {
        // First, so that no event is repeated by the next process.
        reported.record(&now).await;
        for (reason, note) in news(&before, &now) {
            events.emit(EventSubject::Node, reason, note);
        }
        before = now;
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: a change stays marked as unseen.
            changed = update.changed() => if changed.is_err() { return },
        }
        now = Arc::clone(&update.borrow_and_update());
    }
}

/// The report before the newest updates, whose end no process has reported.
fn before_missed(first: &UpdateReport, missed: usize) -> UpdateReport {
    let mut before = first.clone();
    before.updates.drain(..missed);
    // A cordoned node is done later.
    if missed > 0 && first.phase == Phase::Idle && first.cordoned.is_none() {
        before.phase = Phase::Verifying;
    }
    before
}

/// Whether the machine has booted since an update required it, and that boot is not verified yet.
fn returned(first: &UpdateReport) -> Option<String> {
    let needed = first
        .reboot_needed_in
        .as_ref()
        .filter(|_| first.unverified)?;
    (first.boot.as_ref() != Some(needed)).then(|| "rebooted for an update".to_owned())
}

/// The events for the difference of two reports.
fn news(before: &UpdateReport, now: &UpdateReport) -> Vec<(EventReason, String)> {
    let mut news = Vec::new();
    let entered = |phase| now.phase == phase && before.phase != phase;
    let desired = now.config.desired.as_ref();
    let desired = desired.map_or("a config", |name| name.name.as_str());
    if entered(Phase::RebootPending) {
        let note = match before.phase {
            Phase::RollingBack => "rebooting to roll back the update".to_owned(),
            _ => format!("rebooting to apply {desired}"),
        };
        news.push((EventReason::Reboot, note));
    }
    news.extend(refusal(before, now));
    news.extend(warnings(before, now));
    if let Some(failure) = &now.failure
        && failure.code == Reason::RebootInhibited
        && before.failure.as_ref() != Some(failure)
    {
        news.push((EventReason::RebootBlocked, failure.message.clone()));
    }
    let known = before.updates.first().map(|update| &update.id);
    let updates = now.updates.iter();
    let ends: Vec<_> = updates
        .take_while(|update| !before.unknown && Some(&update.id) != known)
        .collect();
    for update in ends.into_iter().rev() {
        news.extend(ended(update));
        if !update.left_behind.is_empty() {
            news.push((EventReason::LeftBehind, update.left_behind.join("; ")));
        }
    }
    let newest = now.updates.first();
    if entered(Phase::Idle)
        && matches!(before.phase, Phase::Verifying | Phase::Uncordoning)
        && newest.is_some_and(|update| is_fresh(update, before))
        && let Some(current) = &now.config.current
    {
        // The config's name may differ from its name when the update ended.
        news.push((EventReason::NodeDone, format!("on {}", current.name)));
    }
    if now.drift.len() > before.drift.len() {
        let paths: Vec<_> = now.drift.iter().take(5).map(ToString::to_string).collect();
        let note = format!("not as configured: {}", paths.join(", "));
        news.push((EventReason::ConfigDriftDetected, note));
    }
    news
}

/// Whether the newest update record is of the update that has just ended. After an aborted drain it
/// is of an earlier update.
fn is_fresh(newest: &UpdateRecord, before: &UpdateReport) -> bool {
    let of_this_cordon = before.cordoned.map(|since| newest.finished >= since);
    let known = before.updates.first();
    newest.outcome == Outcome::Done
        && of_this_cordon.unwrap_or_else(|| known.is_none_or(|known| known.id != newest.id))
}

/// The config was rejected, or this machine cannot apply it.
fn refusal(before: &UpdateReport, now: &UpdateReport) -> Option<(EventReason, String)> {
    if !now.refused.is_empty() && now.refused != before.refused {
        let all: Vec<_> = now.refused.iter().map(ToString::to_string).collect();
        return Some((EventReason::FailedToReconcile, all.join("; ")));
    }
    let failure = now.failure.as_ref()?;
    let known = before.failure.as_ref().map(|known| &known.message);
    // An obstacle is reported once, and not again by each retry.
    let is_news = match failure.retryable {
        true => failure.code.is_obstacle() && known != Some(&failure.message),
        false => now.phase != Phase::Failed,
    };
    let ended = matches!(now.phase, Phase::Idle | Phase::Failed | Phase::Uncordoning);
    let of_the_plan = before.phase == Phase::Planned && ended;
    (of_the_plan && is_news).then(|| (EventReason::FailedToReconcile, failure.message.clone()))
}

/// One event for the warnings of a new desired config, and one for those of its plan.
fn warnings(before: &UpdateReport, now: &UpdateReport) -> Option<(EventReason, String)> {
    let digest = |config: &Option<ConfigName>| config.as_ref().map(|config| config.digest);
    let desired = digest(&now.config.desired);
    if desired == digest(&now.config.current) {
        return None;
    }
    let is_known = desired == digest(&before.config.desired);
    let noted = || before.plan_warnings.iter().chain(&before.warnings);
    let all = now.plan_warnings.iter().chain(&now.warnings);
    let news = all.filter(|warning| !is_known || !noted().any(|noted| noted == *warning));
    let news: Vec<&str> = news.map(String::as_str).collect();
    (!news.is_empty()).then(|| (EventReason::ConfigWarning, news.join("; ")))
}

fn ended(update: &UpdateRecord) -> Vec<(EventReason, String)> {
    let reboots = |kind| matches!(kind, ActionKind::Reboot | ActionKind::SoftReboot);
    let rebooted = update.actions.iter().any(|action| reboots(action.kind));
    match update.outcome {
        Outcome::Done if !rebooted => {
            let note = format!("{} applied without a reboot", update.to);
            vec![(EventReason::SkipReboot, note)]
        }
        Outcome::RolledBack => {
            let why = update.reason.map_or("", Reason::as_str);
            let note = format!(
                "rolled back to {}: {} failed: {why}",
                update.from, update.to
            );
            let failed = update.actions.iter().filter(|action| began(&action.state));
            let failed = failed.filter_map(|action| {
                let unit = action.unit.as_deref()?;
                let reason = match action.kind {
                    ActionKind::Restart => EventReason::FailedServiceRestart,
                    ActionKind::Reload => EventReason::FailedServiceReload,
                    _ => return None,
                };
                Some((reason, format!("{unit}: {why}")))
            });
            failed.chain([(EventReason::RolledBack, note)]).collect()
        }
        _ => Vec::new(),
    }
}

const fn began(state: &ActionState) -> bool {
    matches!(state, ActionState::Started { .. })
}

#[cfg(test)]
mod tests;
