//! The rules of the conformance check, in order.

use std::{sync::Arc, time::Duration};

use super::{
    RuleResult, RuleVerdict, StepTimeouts,
    harness::{CHECK_HEARTBEAT_INTERVAL, ConformanceHarness},
};
use crate::vendor_api::{
    api::v1::{self as api, Reason, answer, question},
    device_spec::{self, TemplateVars},
    path_policy::PathPolicy,
    snapshot::SnapshotRejection,
};
use machinist_device::Resource;

/// An id that no device has.
const UNKNOWN_DEVICE_ID: &str = "machinist-check-nobody";

pub(super) async fn run(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
) -> Vec<RuleResult> {
    let mut results = RuleResults::default();
    hello(harness, timeouts, &mut results).await;
    snapshots(harness, timeouts, &mut results).await;
    heartbeats(harness, timeouts, &mut results).await;
    questions(harness, timeouts, &mut results).await;
    quiesce_and_resume(harness, timeouts, &mut results).await;
    replacing(harness, &mut results);
    reconnect(harness, timeouts, &mut results).await;
    let why = harness.ended.join("; ");
    results.record(
        "the program causes no session to end",
        harness.ended.is_empty(),
        why,
    );
    results.0
}

#[derive(Default)]
struct RuleResults(Vec<RuleResult>);

impl RuleResults {
    fn add(&mut self, rule: &str, verdict: RuleVerdict, seen: String) {
        self.0.push(RuleResult {
            rule: rule.to_owned(),
            verdict,
            seen,
        });
    }

    /// Records a rule as kept or broken; the observation is reported only for a broken one.
    fn record(&mut self, rule: &str, kept: bool, seen: impl Into<String>) {
        match kept {
            true => self.add(rule, RuleVerdict::Kept, String::new()),
            false => self.add(rule, RuleVerdict::Broken, seen.into()),
        }
    }

    fn skip(&mut self, rule: &str, why: &str) {
        self.add(rule, RuleVerdict::Skipped, why.to_owned());
    }
}

const NO_SESSION_MESSAGE: &str = "no session";
const SNAPSHOT_REJECTED_MESSAGE: &str = "a snapshot was rejected";

async fn hello(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let rule = "it connects and sends a valid Hello first";
    let came = harness
        .until(timeouts.step, |harness| {
            harness.is_open() || !harness.refused.is_empty()
        })
        .await;
    let seen = match harness.refused.first() {
        Some(why) => why.clone(),
        None if !came => harness.missed("no session within", timeouts.step),
        None => String::new(),
    };
    results.record(rule, harness.is_open(), seen);
}

async fn snapshots(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let all = "it offers every resource named in Hello";
    let good = "its snapshots conform to the contract and its file";
    if !harness.is_open() {
        results.skip(all, NO_SESSION_MESSAGE);
        return results.skip(good, NO_SESSION_MESSAGE);
    }
    let enough =
        |harness: &ConformanceHarness| harness.missing().is_empty() || !harness.rejected.is_empty();
    harness.until(timeouts.step, enough).await;
    let (missing, first) = (harness.missing(), harness.rejected.first());
    let first = first.map(|why| why.message.clone());
    match &first {
        // A rejected snapshot also leaves its resource missing; report that mistake once.
        Some(_) if !missing.is_empty() => results.skip(all, SNAPSHOT_REJECTED_MESSAGE),
        _ => results.record(
            all,
            missing.is_empty(),
            harness.missed(&format!("no {} within", missing.join(", ")), timeouts.step),
        ),
    }
    results.record(good, first.is_none(), first.unwrap_or_default());
    harness.rejected.clear(); // Rejections from here on count against the rule for replaced snapshots.
}

/// Judges the snapshots received since the first ones.
fn replacing(harness: &ConformanceHarness, results: &mut RuleResults) {
    let rule = "a later snapshot replaces the previous one, and generations never decrease";
    match harness.rejected.first() {
        Some(why) => results.record(rule, false, why.message.clone()),
        None if harness.hellos.is_empty() => results.skip(rule, NO_SESSION_MESSAGE),
        None if harness.replaced == 0 => results.skip(rule, "no second snapshot received"),
        None => results.record(rule, true, ""),
    }
}

async fn heartbeats(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let rule = "it sends a message within three heartbeats";
    if !harness.is_open() {
        return results.skip(rule, NO_SESSION_MESSAGE);
    }
    harness.until(Duration::ZERO, |_| false).await;
    harness.longest_silence = Duration::ZERO;
    harness
        .until(timeouts.heartbeats, |harness| !harness.is_open())
        .await;
    let silent = harness.longest_silence.as_secs_f64();
    results.record(
        rule,
        harness.longest_silence <= 3 * CHECK_HEARTBEAT_INTERVAL,
        format!(
            "no message for {silent:.1} s; the heartbeat is {} ms",
            CHECK_HEARTBEAT_INTERVAL.as_millis()
        ),
    );
}

async fn questions(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let time = timeouts.answer.min(harness.vendor.deadline);
    let offers = harness.offers.all.values();
    let all: Vec<Arc<Resource>> = offers.map(|offer| offer.resource.clone()).collect();
    let with = |wanted: fn(&Resource) -> bool| {
        let has_devices = |one: &&Resource| wanted(one) && !one.devices.is_empty();
        all.iter().map(|one| &**one).find(has_devices)
    };
    allocate(harness, with(|one| one.asks.allocate), time, results).await;
    pre_start(harness, with(|one| one.asks.pre_start), time, results).await;
    preferred(harness, with(|one| one.asks.preferred), time, results).await;
}

async fn allocate(
    harness: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    results: &mut RuleResults,
) {
    let rule = "it answers Allocate with a recipe that its file allows";
    let unknown = "it answers Allocate for an unknown device with an error";
    let Some(one) = resource.filter(|_| harness.is_open()) else {
        let why = if harness.is_open() {
            "its recipes answer"
        } else {
            NO_SESSION_MESSAGE
        };
        results.skip(rule, why);
        return results.skip(unknown, why);
    };
    let asked = |devices: Vec<String>| {
        let resource = one.name.to_string();
        question::Asked::Allocate(api::Allocate { resource, devices })
    };
    let answer = harness.send_request(asked(first(one)), time).await;
    let verdict = allocated(harness, one, answer);
    results.record(rule, verdict.is_ok(), verdict.err().unwrap_or_default());
    let answer = harness
        .send_request(asked(vec![UNKNOWN_DEVICE_ID.to_owned()]), time)
        .await;
    let kept = matches!(answer, Some(answer::Answer::Error(_)));
    results.record(unknown, kept, shown(answer.as_ref()));
}

const NOT_REQUESTED_MESSAGE: &str = "its snapshot does not request it";

async fn pre_start(
    harness: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    results: &mut RuleResults,
) {
    let rule = "it answers PreStart";
    match resource {
        _ if !harness.is_open() => results.skip(rule, NO_SESSION_MESSAGE),
        None => results.skip(rule, NOT_REQUESTED_MESSAGE),
        Some(one) => {
            let (resource, devices) = (one.name.to_string(), first(one));
            let asked = question::Asked::PreStart(api::PreStart { resource, devices });
            done(rule, harness.send_request(asked, time).await, results);
        }
    }
}

async fn preferred(
    harness: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    results: &mut RuleResults,
) {
    let rule = "it answers Preferred with the requested number of available devices";
    match resource {
        _ if !harness.is_open() => results.skip(rule, NO_SESSION_MESSAGE),
        None => results.skip(rule, NOT_REQUESTED_MESSAGE),
        Some(one) => {
            let available: Vec<String> = one.devices.keys().cloned().collect();
            let asked = question::Asked::Preferred(api::Preferred {
                resource: one.name.to_string(),
                available: available.clone(),
                must: Vec::new(),
                size: 1,
            });
            let answer = harness.send_request(asked, time).await;
            let kept = matches!(&answer, Some(answer::Answer::Choice(choice))
                if choice.devices.len() == 1 && available.contains(&choice.devices[0]));
            results.record(rule, kept, shown(answer.as_ref()));
        }
    }
}

fn first(resource: &Resource) -> Vec<String> {
    resource.devices.keys().take(1).cloned().collect()
}

fn allocated(
    harness: &ConformanceHarness,
    resource: &Resource,
    answer: Option<answer::Answer>,
) -> Result<(), String> {
    let Some(answer::Answer::Recipe(recipe)) = answer else {
        return Err(shown(answer.as_ref()));
    };
    let mut bounds = PathPolicy::new(None, &harness.vendor, resource.name.domain());
    device_spec::check(&mut bounds, recipe, TemplateVars::Plain, true)
        .map(drop)
        .map_err(|(_, why)| why)
}

fn done(rule: &str, answer: Option<answer::Answer>, results: &mut RuleResults) {
    let kept = matches!(answer, Some(answer::Answer::Done(_)));
    results.record(rule, kept, shown(answer.as_ref()));
}

fn shown(answer: Option<&answer::Answer>) -> String {
    match answer {
        None => "no answer in time".to_owned(),
        Some(answer::Answer::Error(why)) => format!("the answer is the error {why:?}"),
        Some(answer::Answer::Recipe(_)) => "the answer is a recipe".to_owned(),
        Some(_) => "the answer is for another request".to_owned(),
    }
}

async fn quiesce_and_resume(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let time = timeouts.answer.min(harness.vendor.deadline);
    let why = "vendor-check".to_owned();
    for (rule, asked) in [
        (
            "it answers Quiesce",
            question::Asked::Quiesce(api::Quiesce { why }),
        ),
        ("it answers Resume", question::Asked::Resume(api::Resume {})),
    ] {
        if harness.is_open() {
            done(rule, harness.send_request(asked, time).await, results);
        } else {
            results.skip(rule, NO_SESSION_MESSAGE);
        }
    }
}

async fn reconnect(
    harness: &mut ConformanceHarness,
    timeouts: StepTimeouts,
    results: &mut RuleResults,
) {
    let (back, same) = (
        "it reconnects when the session ends",
        "it reconnects as the same instance",
    );
    let rise = "its generations never decrease across reconnects";
    if !harness.is_open() {
        for rule in [back, same, rise] {
            results.skip(rule, NO_SESSION_MESSAGE);
        }
        return;
    }
    harness.rejected.clear();
    harness.accepted = 0;
    harness.end_session();
    let came = harness
        .until(timeouts.step, ConformanceHarness::is_open)
        .await;
    results.record(back, came, harness.missed("not within", timeouts.step));
    if !came {
        results.skip(same, NO_SESSION_MESSAGE);
        return results.skip(rise, NO_SESSION_MESSAGE);
    }
    let instances: Vec<_> = harness.hellos.iter().map(|hello| &hello.instance).collect();
    let kept = instances.windows(2).all(|two| two[0] == two[1]);
    results.record(same, kept, format!("{instances:?}"));
    // The program sends again at once whatever snapshots it has to repeat.
    harness
        .until(2 * CHECK_HEARTBEAT_INTERVAL, |harness| {
            !harness.rejected.is_empty()
        })
        .await;
    let old = |why: &&SnapshotRejection| why.reason == Reason::GenerationOld;
    match harness.rejected.iter().find(old) {
        Some(old) => results.record(rise, false, old.message.clone()),
        None if !harness.rejected.is_empty() => results.skip(rise, SNAPSHOT_REJECTED_MESSAGE),
        None if harness.accepted == 0 => results.skip(rise, "it sent no snapshot again"),
        None => results.record(rise, true, ""),
    }
}
