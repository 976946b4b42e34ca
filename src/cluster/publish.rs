//! What the cluster is told of this machine: the driver's report and the gates, as annotations and
//! conditions.
//!
//! Everything comes from the journal and the gates as they are now, nothing from what the Node said
//! before: an API server that was restored from a backup is told the truth anew, and a machine is never
//! taken back by it.

mod damper;
mod lifecycle;
mod steps;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use damper::{Damper, Fault, Look, passes};
pub use steps::conditions;

use super::node::{Condition, Notice};
use crate::{
    clock::Clock,
    crd::{self, ConfigVersion, MachineConfigNodeStatus, REASON_LIMIT, State, names},
    plan::printable,
    readiness::{Effect, Gates},
    reason::Reason,
    status::Status,
    update::{node::Blocker, phase::Phase, run::UpdateReport},
};

/// What is left to others.
#[derive(Clone, Copy, Debug)]
pub struct Duties {
    /// Config is our work here; otherwise the protocol's annotations are somebody else's.
    pub config: bool,
    /// Readiness is told.
    pub readiness: bool,
}

/// Who is told.
#[derive(Debug)]
pub struct Outlets {
    /// What the Node is to say.
    pub notice: watch::Sender<Option<Notice>>,
    /// What the MachineConfigNode is to say.
    pub progress: watch::Sender<Option<MachineConfigNodeStatus>>,
}

/// Tells after every change, until `stop`: `update` of the driver, `status` for its gates.
pub async fn publish(
    mut update: watch::Receiver<Arc<UpdateReport>>,
    mut status: watch::Receiver<Arc<Status>>,
    duties: watch::Receiver<Duties>,
    to: Outlets,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut duties = duties;
    let mut damper = Damper::default();
    loop {
        let report = without_old_failure(Arc::clone(&update.borrow_and_update()));
        let gates = status.borrow_and_update().gates.clone();
        let does = *duties.borrow_and_update();
        let fault = damper.look(look(&report), Instant::now());
        send(&to.notice, notice(&report, &gates, fault, does));
        let before = to.progress.borrow().clone().unwrap_or_default();
        let progress = does
            .config
            .then(|| progress(&report, fault, &before, &clock));
        send(&to.progress, progress.flatten());
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop, all of them: what changed is still marked unseen, and time passes by
            // itself.
            told = update.changed() => if told.is_err() { return },
            told = status.changed() => if told.is_err() { return },
            Ok(()) = duties.changed() => {}
            () = at(damper.turns()) => {}
        }
    }
}

/// The report without the failure of a config that is no longer desired, while the update to the desired one has
/// changed nothing yet. A failed rollback stays: it concerns the machine.
fn without_old_failure(report: Arc<UpdateReport>) -> Arc<UpdateReport> {
    use Phase as P;
    let unchanged = matches!(
        report.phase,
        P::Idle
            | P::Planned
            | P::Waiting
            | P::Cordoned
            | P::Withholding
            | P::Draining
            | P::Drained
            | P::Staging
    );
    let is_old = report.failure.as_ref().is_some_and(|failure| {
        let both = failure.digest.zip(report.config.desired.as_ref());
        failure.code != Reason::UndoFailed
            && both.is_some_and(|(failed, desired)| failed != desired.digest)
    });
    match unchanged && is_old {
        true => Arc::new(UpdateReport {
            failure: None,
            ..(*report).clone()
        }),
        false => report,
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn send<T: PartialEq>(to: &watch::Sender<T>, said: T) {
    to.send_if_modified(|known| {
        let differs = *known != said;
        if differs {
            *known = said;
        }
        differs
    });
}

/// The code of what keeps the machine from its config; none where nothing does. That a config was
/// taken back is no failure.
pub fn failing(report: &UpdateReport) -> Option<Reason> {
    let refused = report.refused.first().map(|refusal| refusal.reason);
    let failed = report.failure.as_ref().map(|failure| failure.code);
    // While a boot is judged, what is not well yet is no failure: either it becomes well, or the config is taken back.
    let judged = report.is_boot_judged();
    let no_failure = |code: &Reason| match code {
        Reason::Withdrawn => true,
        Reason::MachineUnwell => judged,
        _ => false,
    };
    refused.or(failed).filter(|code| !no_failure(code))
}

/// The machine is on the config that is asked for, and nothing is left to do.
fn is_settled(report: &UpdateReport) -> bool {
    let config = &report.config;
    let asked = config.desired.as_ref().or(config.current.as_ref());
    report.phase == Phase::Idle
        && !report.unknown
        && failing(report).is_none()
        && config.current.is_some()
        && asked.map(|it| it.digest) == config.current.as_ref().map(|it| it.digest)
}

/// The config itself cannot be had on this machine: waiting helps nobody.
fn is_unreconcilable(report: &UpdateReport) -> bool {
    // That it cannot be found or read is no property of it.
    const ELSEWHERE: [Reason; 3] = [
        Reason::ConfigNotFound,
        Reason::SourceUnreadable,
        Reason::SourceEmpty,
    ];
    let refused = report.refused.iter();
    let by_itself =
        !report.refused.is_empty() && refused.clone().all(|it| !ELSEWHERE.contains(&it.reason));
    let by_the_machine = report.phase == Phase::Idle
        && report.refused.is_empty()
        && report
            .failure
            .as_ref()
            .is_some_and(|it| !it.again && it.code != Reason::Withdrawn);
    by_itself || by_the_machine
}

/// What the damper looks at.
pub fn look(report: &UpdateReport) -> Look {
    let fault = failing(report).map(|code| Fault {
        code,
        state: match is_unreconcilable(report) {
            true => State::Unreconcilable,
            false => State::Degraded,
        },
        text: why(report),
    });
    let config = &report.config;
    let asked = config.desired.as_ref().or(config.current.as_ref());
    let is_barred = report.barred.as_ref().is_some_and(|barred| barred.stands);
    Look {
        config: asked.map(|it| it.digest),
        refused: !report.refused.is_empty(),
        at_rest: is_settled(report) || is_barred && report.phase == Phase::Idle,
        fault,
    }
}

/// The value of the state annotation; none before there is a config to speak of. Done comes at once where nothing was
/// wrong: rollouts wait for it.
pub fn state(report: &UpdateReport, fault: Option<&Fault>) -> Option<State> {
    let nothing_known = report.config.current.is_none() && report.config.desired.is_none();
    if let Some(fault) = fault {
        Some(fault.state)
    } else if is_settled(report) {
        Some(State::Done)
    } else if nothing_known && failing(report).is_none() {
        None
    } else {
        Some(State::Working)
    }
}

/// What the Node is to say; none before the gates were looked at.
pub fn notice(
    report: &UpdateReport,
    gates: &Gates,
    fault: Option<&Fault>,
    duties: Duties,
) -> Option<Notice> {
    gates.iter().next()?;
    let mut notice = Notice::default();
    if duties.config {
        notice.annotations = annotations(report, fault);
        notice.stand_back = lifecycle::stands_back(report);
    }
    if duties.readiness {
        notice.conditions.push(ready(report, gates));
    }
    if duties.config {
        notice.conditions.extend(lifecycle::lifecycle(report));
    }
    Some(notice)
}

fn annotations(
    report: &UpdateReport,
    fault: Option<&Fault>,
) -> BTreeMap<&'static str, Option<String>> {
    use names::{annotation, protocol};
    let mut all = BTreeMap::new();
    if let Some(state) = state(report, fault) {
        all.insert(protocol::STATE, Some(state.to_string()));
        let reason = match (fault, state) {
            (Some(fault), _) => fault.text.clone(),
            (None, State::Done) => String::new(),
            (None, _) => why(report),
        };
        let reason = crd::cut(&printable(&reason), REASON_LIMIT).to_owned();
        all.insert(protocol::REASON, Some(reason));
    }
    // The new name counts as taken on only when the pods may come back, in one write with Done.
    if let Some(current) = &report.config.current
        && !report.unknown
        && report.phase != Phase::Uncordoning
    {
        all.insert(protocol::CURRENT_CONFIG, Some(current.name.clone()));
    }
    let action = match report.phase {
        Phase::RebootPending => "Rebooting",
        _ => "",
    };
    all.insert(protocol::POST_CONFIG_ACTION, Some(action.to_owned()));
    all.insert(annotation::BLOCKED_BY, blocked_by(report));
    all
}

/// What went wrong, with its code; empty where nothing did.
fn why(report: &UpdateReport) -> String {
    if failing(report).is_none() {
        return barred(report);
    }
    if !report.refused.is_empty() {
        let refusals = report
            .refused
            .iter()
            .map(|it| format!("{}: {it}", it.reason));
        return refusals.collect::<Vec<_>>().join("; ");
    }
    let failure = report.failure.as_ref();
    failure.map_or_else(String::new, |it| format!("{}: {}", it.code, it.message))
}

/// What keeps the config from being begun.
fn barred(report: &UpdateReport) -> String {
    let barred = report.barred.as_ref().filter(|it| it.stands);
    let bar = barred.map(|it| &it.bar);
    bar.map_or_else(String::new, |it| format!("{}: {}", it.reason, it.message))
}

/// The config whose update is given up as a person asked, once no step of it goes on. Its cordon may still wait for
/// gates: they may stay closed for as long as they like.
pub fn cancelled(report: &UpdateReport) -> Option<&str> {
    let barred = report.barred.as_ref().filter(|it| it.stands)?;
    let resting = match report.phase {
        Phase::Idle | Phase::Failed => report.cordoned.is_none(),
        Phase::Uncordoning => true,
        _ => false,
    };
    let over = barred.bar.reason == Reason::Cancelled && resting;
    let desired = report.config.desired.as_ref().filter(|_| over)?;
    Some(&desired.name)
}

fn blocked_by(report: &UpdateReport) -> Option<String> {
    let named = report.blockers.iter();
    let named = named.map(|it| format!("{} ({})", it.place(), it.reason));
    let named = named.collect::<Vec<_>>().join(", ");
    (!named.is_empty()).then(|| crd::cut(&printable(&named), REASON_LIMIT).to_owned())
}

/// The condition: what holds, with its words; what only warns, by name, since its numbers move all the
/// time. Who blocks a drain is its reason, so that it is known at once.
fn ready(report: &UpdateReport, gates: &Gates) -> Condition {
    let closed = |effect| gates.closed(effect).collect::<Vec<_>>();
    let (holding, warning) = (closed(Effect::Hold), closed(Effect::Warn));
    let mut parts: Vec<String> = report
        .blockers
        .iter()
        .map(|it| match it.namespace.as_str() {
            "" => format!("{} {}: {}", it.kind, it.name, it.message),
            namespace => format!("{} {namespace}/{}: {}", it.kind, it.name, it.message),
        })
        .collect();
    parts.extend(
        holding
            .iter()
            .map(|it| format!("{}: {}", it.name, it.message)),
    );
    if !warning.is_empty() {
        let named: Vec<_> = warning.iter().map(|it| it.name.to_string()).collect();
        parts.push(format!("warnings: {}", named.join(", ")));
    }
    let blocked = report.blockers.first().map(|it| it.reason);
    let held = holding.first().map(|it| it.reason);
    let message = match parts.is_empty() {
        true => "every gate is open".to_owned(),
        false => parts.join("; "),
    };
    Condition {
        kind: names::condition::READY,
        status: if holding.is_empty() { "True" } else { "False" },
        reason: blocked.or(held).unwrap_or(Reason::Ok).to_string(),
        message: crd::cut(&printable(&message), REASON_LIMIT).to_owned(),
        names: report.blockers.iter().map(Blocker::place).collect(),
    }
}

/// What the MachineConfigNode is to say; none before a config is asked for.
fn progress(
    report: &UpdateReport,
    fault: Option<&Fault>,
    before: &MachineConfigNodeStatus,
    clock: &Clock,
) -> Option<MachineConfigNodeStatus> {
    let config = &report.config;
    let desired = config.desired.as_ref().or(config.current.as_ref())?;
    let degraded = fault.map(|fault| printable(&fault.text));
    let conditions = conditions(
        report,
        is_settled(report),
        degraded.as_deref(),
        &before.conditions,
        clock.now(),
    );
    Some(MachineConfigNodeStatus {
        conditions,
        config_version: Some(ConfigVersion {
            current: config
                .current
                .as_ref()
                .map_or_else(String::new, |it| it.name.clone()),
            desired: desired.name.clone(),
        }),
        observed_generation: None,
    })
}

#[cfg(test)]
mod tests;
