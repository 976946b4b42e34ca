//! The warnings of a plan, in the report while the update is pending.

use machinist_update::{phase::Phase, reconciler::RebootPolicy};

use crate::update::{
    harness::{boot, machine},
    nodes::closed,
    reboots::{one, start},
};
use machinist_testkit::{sandbox::Written, scripted_services::Script};

const CANNOT_START: &str =
    "a.service cannot start: it requires gone.service, which does not exist on this machine";

/// Needs a reboot, and contains a unit whose requirement is missing.
fn config() -> Written {
    let unit = "[Unit]\nRequires=gone.service\n[Service]\nExecStart=/bin/true\n\
                [Install]\nWantedBy=multi-user.target\n";
    one().unit("a.service", unit, true)
}

#[tokio::test(start_paused = true)]
async fn a_pending_update_names_a_unit_that_cannot_start_until_the_machine_is_on_it() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver =
        crate::update::harness::Driver::conducted(&sandbox, &script, config().desired(), closed());
    let report = driver
        .until("waits", |report| {
            report.phase == Phase::Waiting && report.opens.is_some()
        })
        .await;
    assert_eq!(report.plan_warnings, [CANNOT_START]);
    driver.stop().await;
    let mut driver = start(&sandbox, &script, &config(), RebootPolicy::Ask);
    for restarts in 0..2 {
        let report = driver
            .until("reboot", |report| report.phase == Phase::RebootPending)
            .await;
        assert_eq!(report.plan_warnings, [CANNOT_START], "{restarts}");
        driver.stop().await;
        driver = start(&sandbox, &script, &config(), RebootPolicy::Ask);
    }
    // Another config has the warnings of its own plan.
    driver.wants(&one());
    let report = driver
        .until("another", |report| {
            report.phase == Phase::RebootPending
                && report
                    .config
                    .desired
                    .as_ref()
                    .is_some_and(|name| name.name == "one")
                && report.plan_warnings.is_empty()
        })
        .await;
    assert!(report.unverified);
    driver.wants(&config());
    driver
        .until("back, waiting for a reboot", |report| {
            report.plan_warnings == [CANNOT_START] && report.phase == Phase::RebootPending
        })
        .await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let mut driver = start(&sandbox, &script, &config(), RebootPolicy::Ask);
    let report = driver.until_on(&config()).await;
    assert_eq!(report.plan_warnings, [""; 0]);
    driver.stop().await;
}
