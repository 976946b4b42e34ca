//! When a failure has lasted long enough to be told of.

use super::*;

/// Whoever waits for a budget has not failed, however long it takes; the journal's word for it is the alert's.
#[test]
fn a_budget_in_the_way_for_an_hour_is_no_failure_and_is_named_all_the_time() {
    let start = Instant::now();
    let mut damper = Damper::default();
    let mut waits = report(Phase::Draining, "old", "new");
    waits.cordoned = Some(NOW);
    waits.blockers = vec![blocker()];
    for minute in 0..=60 {
        let at = start + Duration::from_secs(60 * minute);
        let degraded = damper.look(failing(&waits), is_settled(&waits), at);
        let notice = notice(&waits, &open(), degraded, ALL).unwrap();
        assert_eq!(said(&notice, names::protocol::STATE).unwrap(), "Working");
        let blocked = said(&notice, names::annotation::BLOCKED_BY).unwrap();
        assert!(blocked.starts_with("shop/web-0"), "{blocked}");
    }
    waits.blockers.clear();
    let notice = notice(&waits, &open(), false, ALL).unwrap();
    assert_eq!(said(&notice, names::annotation::BLOCKED_BY), None);
}

/// A failure every minute that goes away in between, one that stays, and one that comes back soon
/// after.
#[tokio::test(start_paused = true)]
async fn degraded_is_said_after_five_minutes_and_taken_back_after_two() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut damper = Damper::default();
    let (bad, other) = (Some(Reason::JobFailed), Some(Reason::UnitDied));
    for minute in 0..10 {
        assert!(!damper.look(bad, false, at(60 * minute)));
        assert!(!damper.look(None, false, at(60 * minute + 30)));
    }
    assert!(!damper.look(bad, false, at(1000)));
    // Another code is another failure.
    assert!(!damper.look(other, false, at(1200)));
    assert!(!damper.look(other, false, at(1499)));
    assert_eq!(damper.turns(), Some(at(1500)));
    assert!(damper.look(other, false, at(1500)));
    assert_eq!(damper.turns(), None);
    assert!(
        damper.look(None, false, at(1600)),
        "two minutes of health are wanted"
    );
    assert!(damper.look(other, false, at(1610)));
    assert!(damper.look(None, false, at(1700)));
    assert!(damper.look(None, false, at(1819)));
    assert!(!damper.look(None, false, at(1820)));
    // Done is told at once, and the condition follows when it is sure.
    assert!(!damper.look(bad, false, at(2000)));
    assert!(damper.look(bad, false, at(2300)));
    assert!(!damper.look(None, true, at(2310)) && damper.is_degraded());
    assert!(!damper.look(None, true, at(2430)) && !damper.is_degraded());
}

/// Nobody says anything meanwhile: the report is the same, and the gates are.
#[tokio::test(start_paused = true)]
async fn degraded_comes_and_goes_by_the_passing_of_time_alone() {
    let failing = UpdateReport {
        failure: failure(Reason::JobFailed, true),
        ..report(Phase::Failed, "a", "b")
    };
    let (update, reports) = watch::channel(Arc::new(failing));
    let mut status = Status::starting("/".to_owned(), Mode::Cluster, NOW);
    status.gates = open();
    let (_statuses, told) = watch::channel(Arc::new(status));
    let (notice, mut said) = watch::channel(None);
    let (progress, progressed) = watch::channel(None);
    let to = Outlets { notice, progress };
    let stop = CancellationToken::new();
    let clock = Clock::from_fn(|| NOW);
    let duties = watch::channel(ALL).1;
    tokio::spawn(publish(reports, told, duties, to, clock, stop.clone()));
    let begun = Instant::now();
    let is = |wanted: &'static str| {
        move |notice: &Option<Notice>| {
            let notice = notice.as_ref();
            let state = notice.and_then(|it| it.annotations[names::protocol::STATE].as_deref());
            state == Some(wanted)
        }
    };
    said.wait_for(is("Working")).await.unwrap();
    said.wait_for(is("Degraded")).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 300);
    update.send_replace(Arc::new(report(Phase::Planned, "a", "b")));
    said.wait_for(is("Working")).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 420);
    let progress = progressed.borrow().clone().unwrap();
    let degraded = NodeConditionKind::NodeDegraded.as_str();
    let degraded = progress.conditions.iter().find(|it| it.kind == degraded);
    assert_eq!(degraded.unwrap().status, Progress::False);
    stop.cancel();
}
