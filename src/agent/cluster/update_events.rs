//! Emits events on the Node for changes of the update report.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::events::{EventSubject, Events},
    kube_api::EventReason,
    plan::ActionKind,
    reason::Reason,
    update::{
        journal::{ActionState, ConfigName, Outcome, UpdateRecord},
        phase::Phase,
        reconciler::UpdateReport,
    },
};

/// Emits an event for every step that the report shows, until `stop`. The first report emits none,
/// except that the machine has rebooted: the process that started the reboot no longer exists.
pub(super) async fn emit_update_events(
    mut update: watch::Receiver<Arc<UpdateReport>>,
    events: Events,
    stop: CancellationToken,
) {
    let mut before = Arc::clone(&update.borrow_and_update());
    if let Some(note) = returned(&before) {
        events.emit(EventSubject::Node, EventReason::Rebooted, note);
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: a change stays marked as unseen.
            changed = update.changed() => if changed.is_err() { return },
        }
        let now = Arc::clone(&update.borrow_and_update());
        for (reason, note) in news(&before, &now) {
            events.emit(EventSubject::Node, reason, note);
        }
        before = now;
    }
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
            Phase::Undoing => "rebooting to roll back the update".to_owned(),
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
    let newest = now.updates.first();
    if newest.map(|update| &update.id) != before.updates.first().map(|update| &update.id)
        && let Some(update) = newest
    {
        news.extend(ended(update));
        if !update.left_behind.is_empty() {
            news.push((EventReason::LeftBehind, update.left_behind.join("; ")));
        }
    }
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
    let failure = now.failure.as_ref().filter(|failure| !failure.again)?;
    let of_the_plan = before.phase == Phase::Planned && now.phase == Phase::Idle;
    of_the_plan.then(|| (EventReason::FailedToReconcile, failure.message.clone()))
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
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{digest::Digest, update::journal::UpdateFailure};

    fn at(phase: Phase) -> UpdateReport {
        UpdateReport {
            phase,
            ..UpdateReport::default()
        }
    }

    fn reasons(before: &UpdateReport, now: &UpdateReport) -> Vec<EventReason> {
        news(before, now)
            .into_iter()
            .map(|(reason, _)| reason)
            .collect()
    }

    #[test]
    fn the_first_report_after_the_reboot_tells_that_the_machine_is_back_and_no_other_does() {
        let mut report = at(Phase::Booted);
        report.boot = Some("new".to_owned());
        assert_eq!(returned(&report), None);
        (report.unverified, report.reboot_needed_in) = (true, Some("old".to_owned()));
        assert!(returned(&report).is_some());
        report.boot = Some("old".to_owned());
        assert_eq!(returned(&report), None);
    }

    #[test]
    fn each_step_is_told_once_and_a_report_that_says_the_same_tells_nothing() {
        let pending = at(Phase::RebootPending);
        assert_eq!(reasons(&at(Phase::Acting), &pending), [EventReason::Reboot]);
        assert_eq!(reasons(&pending, &pending), []);
        let refused = UpdateReport {
            failure: Some(UpdateFailure {
                code: Reason::NoSpace,
                message: "no room".to_owned(),
                again: false,
                digest: None,
            }),
            ..at(Phase::Idle)
        };
        let told = reasons(&at(Phase::Planned), &refused);
        assert_eq!(told, [EventReason::FailedToReconcile]);
        assert_eq!(reasons(&refused, &refused), []);
    }

    fn config(name: &str) -> ConfigName {
        ConfigName::new(name, Digest::of(b""))
    }

    fn update(id: &str, finished: i64) -> UpdateRecord {
        let finished = Timestamp::from_second(finished).unwrap();
        UpdateRecord {
            id: id.to_owned(),
            from: "a".to_owned(),
            to: "b".to_owned(),
            digest: Digest::of(b""),
            started: finished,
            finished,
            outcome: Outcome::Done,
            reason: None,
            phases: Vec::new(),
            actions: Vec::new(),
            left_behind: Vec::new(),
        }
    }

    #[test]
    fn what_an_update_left_behind_is_told_once() {
        let before = at(Phase::Undoing);
        let mut now = at(Phase::Failed);
        let mut ended = update("1", 200);
        ended.left_behind = vec!["/home/bob/a: why".to_owned()];
        now.updates = vec![ended];
        let told = reasons(&before, &now);
        assert!(told.contains(&EventReason::LeftBehind), "{told:?}");
        assert!(!reasons(&now, &now).contains(&EventReason::LeftBehind));
    }

    #[test]
    fn warnings_are_one_event_for_each_config_that_is_new_here() {
        let before = at(Phase::Idle);
        let mut now = at(Phase::Planned);
        now.config.desired = Some(config("c"));
        now.warnings = vec!["a".to_owned(), "b".to_owned()];
        let event = (EventReason::ConfigWarning, "a; b".to_owned());
        assert_eq!(news(&before, &now), [event]);
        assert_eq!(news(&now, &now), []);
        // The plan comes later and can be repeated.
        let mut planned = now.clone();
        planned.phase = Phase::Waiting;
        planned.plan_warnings = vec!["c".to_owned()];
        let event = (EventReason::ConfigWarning, "c".to_owned());
        assert_eq!(news(&now, &planned), [event]);
        assert_eq!(news(&planned, &planned), []);
        // A restart reads the current config again.
        now.config.current = Some(config("c"));
        assert_eq!(news(&before, &now), []);
    }

    #[test]
    fn done_is_told_of_the_update_that_ended_under_the_name_that_its_config_has_by_now() {
        let mut before = at(Phase::Uncordoning);
        before.cordoned = Some(Timestamp::from_second(100).unwrap());
        before.updates = vec![update("1", 200)];
        let mut now = at(Phase::Idle);
        now.updates = before.updates.clone();
        now.config.current = Some(config("c"));
        let told = news(&before, &now);
        assert_eq!(told, [(EventReason::NodeDone, "on c".to_owned())]);
        // An aborted drain: the last update had ended before this cordon.
        before.cordoned = Some(Timestamp::from_second(300).unwrap());
        assert_eq!(news(&before, &now), []);
        // Without a cordon the record appears together with the end of the update.
        before = at(Phase::Verifying);
        assert!(reasons(&before, &now).contains(&EventReason::NodeDone));
        before.updates = now.updates.clone();
        assert_eq!(news(&before, &now), []);
    }
}
