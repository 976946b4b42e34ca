//! The rules of the conformance check, in order.

use std::{sync::Arc, time::Duration};

use super::{
    RuleResult, RuleVerdict, StepTimeouts,
    harness::{ConformanceHarness, HEARTBEAT},
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

pub(super) async fn run(stage: &mut ConformanceHarness, patience: StepTimeouts) -> Vec<RuleResult> {
    let mut found = RuleResults::default();
    hello(stage, patience, &mut found).await;
    snapshots(stage, patience, &mut found).await;
    heartbeats(stage, patience, &mut found).await;
    questions(stage, patience, &mut found).await;
    letting_go(stage, patience, &mut found).await;
    replacing(stage, &mut found);
    coming_back(stage, patience, &mut found).await;
    let why = stage.ended.join("; ");
    found.say(
        "the program causes no session to end",
        stage.ended.is_empty(),
        why,
    );
    found.0
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
    fn say(&mut self, rule: &str, kept: bool, seen: impl Into<String>) {
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

async fn hello(stage: &mut ConformanceHarness, patience: StepTimeouts, found: &mut RuleResults) {
    let rule = "it connects and sends a valid Hello first";
    let came = stage
        .until(patience.step, |stage| {
            stage.is_open() || !stage.refused.is_empty()
        })
        .await;
    let seen = match stage.refused.first() {
        Some(why) => why.clone(),
        None if !came => stage.missed("no session within", patience.step),
        None => String::new(),
    };
    found.say(rule, stage.is_open(), seen);
}

async fn snapshots(
    stage: &mut ConformanceHarness,
    patience: StepTimeouts,
    found: &mut RuleResults,
) {
    let all = "it offers every resource named in Hello";
    let good = "its snapshots conform to the contract and its file";
    if !stage.is_open() {
        found.skip(all, NO_SESSION_MESSAGE);
        return found.skip(good, NO_SESSION_MESSAGE);
    }
    let enough =
        |stage: &ConformanceHarness| stage.missing().is_empty() || !stage.rejected.is_empty();
    stage.until(patience.step, enough).await;
    let (missing, first) = (stage.missing(), stage.rejected.first());
    let first = first.map(|why| why.message.clone());
    match &first {
        // A rejected snapshot also leaves its resource missing; report that mistake once.
        Some(_) if !missing.is_empty() => found.skip(all, SNAPSHOT_REJECTED_MESSAGE),
        _ => found.say(
            all,
            missing.is_empty(),
            stage.missed(&format!("no {} within", missing.join(", ")), patience.step),
        ),
    }
    found.say(good, first.is_none(), first.unwrap_or_default());
    stage.rejected.clear(); // Rejections from here on count against the rule for replaced snapshots.
}

/// Judges the snapshots received since the first ones.
fn replacing(stage: &ConformanceHarness, found: &mut RuleResults) {
    let rule = "a later snapshot replaces the previous one, and generations never decrease";
    match stage.rejected.first() {
        Some(why) => found.say(rule, false, why.message.clone()),
        None if stage.hellos.is_empty() => found.skip(rule, NO_SESSION_MESSAGE),
        None if stage.replaced == 0 => found.skip(rule, "no second snapshot received"),
        None => found.say(rule, true, ""),
    }
}

async fn heartbeats(
    stage: &mut ConformanceHarness,
    patience: StepTimeouts,
    found: &mut RuleResults,
) {
    let rule = "it sends a message within three heartbeats";
    if !stage.is_open() {
        return found.skip(rule, NO_SESSION_MESSAGE);
    }
    stage.until(Duration::ZERO, |_| false).await;
    stage.longest_silence = Duration::ZERO;
    stage
        .until(patience.heartbeats, |stage| !stage.is_open())
        .await;
    let silent = stage.longest_silence.as_secs_f64();
    found.say(
        rule,
        stage.longest_silence <= 3 * HEARTBEAT,
        format!(
            "no message for {silent:.1} s; the heartbeat is {} ms",
            HEARTBEAT.as_millis()
        ),
    );
}

async fn questions(
    stage: &mut ConformanceHarness,
    patience: StepTimeouts,
    found: &mut RuleResults,
) {
    let time = patience.answer.min(stage.vendor.deadline);
    let offers = stage.offers.all.values();
    let all: Vec<Arc<Resource>> = offers.map(|offer| offer.resource.clone()).collect();
    let with = |wanted: fn(&Resource) -> bool| {
        let has_devices = |one: &&Resource| wanted(one) && !one.devices.is_empty();
        all.iter().map(|one| &**one).find(has_devices)
    };
    allocate(stage, with(|one| one.asks.allocate), time, found).await;
    pre_start(stage, with(|one| one.asks.pre_start), time, found).await;
    preferred(stage, with(|one| one.asks.preferred), time, found).await;
}

async fn allocate(
    stage: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    found: &mut RuleResults,
) {
    let rule = "it answers Allocate with a recipe that its file allows";
    let unknown = "it answers Allocate for an unknown device with an error";
    let Some(one) = resource.filter(|_| stage.is_open()) else {
        let why = if stage.is_open() {
            "its recipes answer"
        } else {
            NO_SESSION_MESSAGE
        };
        found.skip(rule, why);
        return found.skip(unknown, why);
    };
    let asked = |devices: Vec<String>| {
        let resource = one.name.to_string();
        question::Asked::Allocate(api::Allocate { resource, devices })
    };
    let answer = stage.send_request(asked(first(one)), time).await;
    let verdict = allocated(stage, one, answer);
    found.say(rule, verdict.is_ok(), verdict.err().unwrap_or_default());
    let answer = stage
        .send_request(asked(vec![UNKNOWN_DEVICE_ID.to_owned()]), time)
        .await;
    let kept = matches!(answer, Some(answer::Answer::Error(_)));
    found.say(unknown, kept, shown(answer.as_ref()));
}

const NOT_REQUESTED_MESSAGE: &str = "its snapshot does not request it";

async fn pre_start(
    stage: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    found: &mut RuleResults,
) {
    let rule = "it answers PreStart";
    match resource {
        _ if !stage.is_open() => found.skip(rule, NO_SESSION_MESSAGE),
        None => found.skip(rule, NOT_REQUESTED_MESSAGE),
        Some(one) => {
            let (resource, devices) = (one.name.to_string(), first(one));
            let asked = question::Asked::PreStart(api::PreStart { resource, devices });
            done(rule, stage.send_request(asked, time).await, found);
        }
    }
}

async fn preferred(
    stage: &mut ConformanceHarness,
    resource: Option<&Resource>,
    time: Duration,
    found: &mut RuleResults,
) {
    let rule = "it answers Preferred with the requested number of available devices";
    match resource {
        _ if !stage.is_open() => found.skip(rule, NO_SESSION_MESSAGE),
        None => found.skip(rule, NOT_REQUESTED_MESSAGE),
        Some(one) => {
            let available: Vec<String> = one.devices.keys().cloned().collect();
            let asked = question::Asked::Preferred(api::Preferred {
                resource: one.name.to_string(),
                available: available.clone(),
                must: Vec::new(),
                size: 1,
            });
            let answer = stage.send_request(asked, time).await;
            let kept = matches!(&answer, Some(answer::Answer::Choice(choice))
                if choice.devices.len() == 1 && available.contains(&choice.devices[0]));
            found.say(rule, kept, shown(answer.as_ref()));
        }
    }
}

fn first(resource: &Resource) -> Vec<String> {
    resource.devices.keys().take(1).cloned().collect()
}

fn allocated(
    stage: &ConformanceHarness,
    resource: &Resource,
    answer: Option<answer::Answer>,
) -> Result<(), String> {
    let Some(answer::Answer::Recipe(recipe)) = answer else {
        return Err(shown(answer.as_ref()));
    };
    let mut bounds = PathPolicy::new(None, &stage.vendor, resource.name.domain());
    device_spec::check(&mut bounds, recipe, TemplateVars::Plain, true)
        .map(drop)
        .map_err(|(_, why)| why)
}

fn done(rule: &str, answer: Option<answer::Answer>, found: &mut RuleResults) {
    let kept = matches!(answer, Some(answer::Answer::Done(_)));
    found.say(rule, kept, shown(answer.as_ref()));
}

fn shown(answer: Option<&answer::Answer>) -> String {
    match answer {
        None => "no answer in time".to_owned(),
        Some(answer::Answer::Error(why)) => format!("the answer is the error {why:?}"),
        Some(answer::Answer::Recipe(_)) => "the answer is a recipe".to_owned(),
        Some(_) => "the answer is for another request".to_owned(),
    }
}

async fn letting_go(
    stage: &mut ConformanceHarness,
    patience: StepTimeouts,
    found: &mut RuleResults,
) {
    let time = patience.answer.min(stage.vendor.deadline);
    let why = "vendor-check".to_owned();
    for (rule, asked) in [
        (
            "it answers Quiesce",
            question::Asked::Quiesce(api::Quiesce { why }),
        ),
        ("it answers Resume", question::Asked::Resume(api::Resume {})),
    ] {
        if stage.is_open() {
            done(rule, stage.send_request(asked, time).await, found);
        } else {
            found.skip(rule, NO_SESSION_MESSAGE);
        }
    }
}

async fn coming_back(
    stage: &mut ConformanceHarness,
    patience: StepTimeouts,
    found: &mut RuleResults,
) {
    let (back, same) = (
        "it reconnects when the session ends",
        "it reconnects as the same instance",
    );
    let rise = "its generations never decrease across reconnects";
    if !stage.is_open() {
        for rule in [back, same, rise] {
            found.skip(rule, NO_SESSION_MESSAGE);
        }
        return;
    }
    stage.rejected.clear();
    stage.accepted = 0;
    stage.end_session();
    let came = stage
        .until(patience.step, ConformanceHarness::is_open)
        .await;
    found.say(back, came, stage.missed("not within", patience.step));
    if !came {
        found.skip(same, NO_SESSION_MESSAGE);
        return found.skip(rise, NO_SESSION_MESSAGE);
    }
    let instances: Vec<_> = stage.hellos.iter().map(|hello| &hello.instance).collect();
    let kept = instances.windows(2).all(|two| two[0] == two[1]);
    found.say(same, kept, format!("{instances:?}"));
    // The program sends again at once whatever snapshots it has to repeat.
    stage
        .until(2 * HEARTBEAT, |stage| !stage.rejected.is_empty())
        .await;
    let old = |why: &&SnapshotRejection| why.reason == Reason::GenerationOld;
    match stage.rejected.iter().find(old) {
        Some(old) => found.say(rise, false, old.message.clone()),
        None if !stage.rejected.is_empty() => found.skip(rise, SNAPSHOT_REJECTED_MESSAGE),
        None if stage.accepted == 0 => found.skip(rise, "it sent no snapshot again"),
        None => found.say(rise, true, ""),
    }
}
