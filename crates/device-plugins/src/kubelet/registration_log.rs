//! Logs registrations in batches. A kubelet restart ends and begins all of them at once, at a time
//! when the machine is busy, so they are logged together a moment later.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::sleep,
};

use machinist_base::{rate_limit::LogRates, shutdown::Tasks, text};
use machinist_device::ResourceName;

/// How long events are collected.
const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// Queued events; further ones are logged at once.
const MAX_QUEUED_EVENTS: usize = 1024;
/// A registration later than this after the kubelet's start was not caused by the start.
const LATE_REGISTRATION_AFTER: Duration = Duration::from_secs(60);

/// What happened to the registration of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegistrationOutcome {
    /// The kubelet accepted it and opened the list stream, this long after its socket was noticed.
    Registered(Duration),
    /// It is no longer registered, with the reason.
    Lost(&'static str),
}

type LoggedRegistration = (ResourceName, RegistrationOutcome);

/// The sender of events. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RegistrationLog(mpsc::Sender<LoggedRegistration>, LogRates);

impl RegistrationLog {
    /// Starts the task that logs them.
    pub(super) fn start(tasks: &Tasks) -> Self {
        let (to, mut from) = mpsc::channel(MAX_QUEUED_EVENTS);
        let log_rates = LogRates::default();
        let rates = log_rates.clone();
        let stop = tasks.token();
        tasks.spawn("registration news", async move {
            let mut gathered = Vec::new();
            tokio::select! {
                () = stop.cancelled() => {}
                // Safe to drop: received events are in `gathered`.
                () = record(&mut from, &mut gathered, &rates) => {}
            }
            gathered.extend(waiting(&mut from));
            log_events(&gathered, &rates);
        });
        Self(to, log_rates)
    }

    pub(super) fn send(&self, name: &ResourceName, outcome: RegistrationOutcome) {
        match self.0.try_send((name.clone(), outcome)) {
            Ok(()) => {}
            Err(TrySendError::Full(item) | TrySendError::Closed(item)) => {
                log_events(&[item], &self.1)
            }
        }
    }
}

/// Ends when all senders are dropped.
async fn record(
    from: &mut mpsc::Receiver<LoggedRegistration>,
    gathered: &mut Vec<LoggedRegistration>,
    rates: &LogRates,
) {
    while let Some(first) = from.recv().await {
        gathered.push(first);
        sleep(BATCH_WINDOW).await;
        gathered.extend(waiting(from));
        log_events(gathered, rates);
        gathered.clear();
    }
}

fn waiting(
    from: &mut mpsc::Receiver<LoggedRegistration>,
) -> impl Iterator<Item = LoggedRegistration> {
    std::iter::from_fn(|| from.try_recv().ok())
}

fn log_events(events: &[LoggedRegistration], rates: &LogRates) {
    for text in log_lines(events) {
        if let Some(suppressed) = rates.take("registrations") {
            tracing::info!(suppressed, "{text}");
        }
    }
}

/// One line for each kind of event, in order of first occurrence.
fn log_lines(events: &[LoggedRegistration]) -> Vec<String> {
    let mut kinds: Vec<(Option<&str>, Duration, Vec<&ResourceName>)> = Vec::new();
    for (name, outcome) in events {
        let (why, after) = match outcome {
            RegistrationOutcome::Registered(after) => (None, *after),
            RegistrationOutcome::Lost(why) => (Some(*why), Duration::ZERO),
        };
        match kinds.iter_mut().find(|(known, ..)| *known == why) {
            Some((_, latest, names)) => {
                *latest = after.max(*latest);
                names.push(name);
            }
            None => kinds.push((why, after, vec![name])),
        }
    }
    let text = |(why, after, names): (Option<&str>, Duration, Vec<&ResourceName>)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        let names = text::join_limited(
            names.iter().map(|name| name.as_str()),
            text::MAX_NAMES_PER_LINE,
        );
        match why {
            Some(why) => format!("{names} {are} no longer registered: {why}"),
            None if after >= LATE_REGISTRATION_AFTER => format!("{names} {are} registered"),
            None => {
                let after = after.as_millis();
                format!("{names} {are} registered, {after} ms after the kubelet's socket appeared")
            }
        }
    };
    kinds.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> ResourceName {
        ResourceName::new(format!("acme.dev/r{number}")).unwrap()
    }

    #[test]
    fn an_outcome_of_one_resource_is_one_log_line() {
        let registered = RegistrationOutcome::Registered(Duration::from_millis(7));
        let events = [(name(1), registered.clone())];
        let expected = "acme.dev/r1 is registered, 7 ms after the kubelet's socket appeared";
        assert_eq!(log_lines(&events), [expected]);
        let late = [(
            name(1),
            RegistrationOutcome::Registered(LATE_REGISTRATION_AFTER),
        )];
        assert_eq!(log_lines(&late), ["acme.dev/r1 is registered"]);
        let events = [
            (name(1), RegistrationOutcome::Lost("it went")),
            (name(1), registered),
        ];
        assert_eq!(
            log_lines(&events),
            ["acme.dev/r1 is no longer registered: it went", expected]
        );
    }

    #[test]
    fn kubelet_restart_is_logged_on_two_lines_with_the_slowest_registration() {
        let lost =
            (1..=3).map(|number| (name(number), RegistrationOutcome::Lost("it was restarted")));
        let registered = (1..=30).map(|number| {
            let after = Duration::from_millis(if number == 2 { 45 } else { 20 });
            (name(number), RegistrationOutcome::Registered(after))
        });
        let expected = log_lines(&lost.chain(registered).collect::<Vec<_>>());
        assert_eq!(
            expected[0],
            "acme.dev/r1, acme.dev/r2, acme.dev/r3 are no longer registered: it was restarted"
        );
        assert!(
            expected[1].starts_with("acme.dev/r1, acme.dev/r2, "),
            "{}",
            expected[1]
        );
        let end =
            "acme.dev/r20 and 10 more are registered, 45 ms after the kubelet's socket appeared";
        assert!(expected[1].ends_with(end), "{}", expected[1]);
        assert_eq!(expected.len(), 2);
    }

    #[test]
    fn a_pod_that_plays_the_kubelet_again_and_again_causes_few_log_lines() {
        let (counter, _guard) = crate::log_counter::LogCounter::start();
        let rates = LogRates::default();
        for _ in 0..1000 {
            let registered = RegistrationOutcome::Registered(Duration::from_millis(1));
            log_events(&[(name(1), registered)], &rates);
            log_events(&[(name(1), RegistrationOutcome::Lost("it went"))], &rates);
        }
        assert!((1..=60).contains(&counter.lines()), "{}", counter.lines());
    }

    #[tokio::test]
    async fn pending_log_lines_are_written_at_shutdown() {
        let tasks = Tasks::new();
        let events = RegistrationLog::start(&tasks);
        events.send(&name(1), RegistrationOutcome::Lost("it went"));
        tasks.finish(Duration::from_secs(1)).await.unwrap();
        assert_eq!(events.0.capacity(), MAX_QUEUED_EVENTS, "nothing is left");
    }
}
