//! Nothing is staged on a running machine without a unit that would recover it after a power loss.

use machinist_base::reason::Reason;
use machinist_rootfs::Root;
use machinist_update::{observe::recovery_missing, phase::Phase};

use crate::update::{
    harness::{Driver, machine, tree},
    reboots::one,
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, apply, at, conduct, config},
    scripted_services::Script,
};

const UNITS: &str = "/usr/lib/systemd/system";
const RECOVER: &str = "/usr/lib/systemd/system/machinist-recover.service";
const WANTS: &str = "/usr/lib/systemd/system/sysinit.target.wants/machinist-recover.service";

fn remove(sandbox: &Sandbox, path: &str) {
    std::fs::remove_file(sandbox.path(path)).unwrap();
}

fn link(sandbox: &Sandbox, target: &str, at: &str) {
    let at = sandbox.path(at);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(target, at).unwrap();
}

/// A change of a machine that has the package, and the part of the refusal that it causes.
type Case = (fn(&Sandbox), Option<&'static str>);

#[allow(clippy::too_many_lines, reason = "a table")]
fn cases() -> [Case; 12] {
    [
        (|_| {}, None),
        (
            |m| remove(m, WANTS),
            Some("machinist-recover.service is not enabled"),
        ),
        (
            |m| remove(m, RECOVER),
            Some("machinist-recover.service is not installed"),
        ),
        (
            |m| remove(m, &format!("{UNITS}/machinist-guard.service")),
            Some("machinist-guard.service is not installed"),
        ),
        (
            |m| {
                link(
                    m,
                    "/dev/null",
                    "/etc/systemd/system/machinist-recover.service",
                )
            },
            Some("/etc/systemd/system/machinist-recover.service is masked"),
        ),
        (
            |m| {
                link(
                    m,
                    "/dev/null",
                    "/run/systemd/system/machinist-guard.service",
                )
            },
            Some("/run/systemd/system/machinist-guard.service is masked"),
        ),
        (
            |m| link(m, "/gone", "/etc/systemd/system/machinist-recover.service"),
            Some("/etc/systemd/system/machinist-recover.service is a dangling symbolic link"),
        ),
        (
            |m| remove(m, "/usr/bin/machinist"),
            Some("runs /usr/bin/machinist, which does not exist or is not executable"),
        ),
        (
            |m| {
                remove(m, "/usr/bin/machinist");
                m.write("/usr/bin/machinist", "no program");
            },
            Some("runs /usr/bin/machinist, which does not exist or is not executable"),
        ),
        (
            |m| m.write("/etc/systemd/system/machinist-recover.service", "[Unit]\n"),
            Some("/etc/systemd/system/machinist-recover.service has no ExecStart="),
        ),
        // A package's alternative, and a unit that systemctl enabled.
        (
            |m| {
                std::fs::rename(m.path("/usr/bin/machinist"), m.path("/usr/bin/machinist-1"))
                    .unwrap();
                link(m, "machinist-1", "/usr/bin/machinist");
            },
            None,
        ),
        (
            |m| {
                remove(m, WANTS);
                let wants = "/etc/systemd/system/sysinit.target.wants/machinist-recover.service";
                link(m, RECOVER, wants);
            },
            None,
        ),
    ]
}

#[test]
fn every_cause_that_prevents_recovery_is_reported() {
    for (number, (break_it, output)) in cases().into_iter().enumerate() {
        let machine = Sandbox::new();
        break_it(&machine);
        let missing = recovery_missing(&machine.root()).unwrap();
        match (output, &missing) {
            (None, None) => {}
            (Some(output), Some(missing)) if missing.contains(output) => {}
            _ => panic!("case {number}: {missing:?} instead of {output:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_recovery_units_nothing_is_cordoned_or_written() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    remove(&sandbox, WANTS);
    let before = tree(&sandbox);
    let mut driver = Driver::on_node(
        &sandbox.root(),
        &script,
        &node,
        one().desired(),
        conduct(true),
    );
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::RecoveryMissing);
    assert!(failure.retryable, "retried");
    assert!(
        failure
            .message
            .contains("machinist-recover.service is not enabled")
    );
    assert_eq!(node.log(), [""; 0], "no cordon");
    assert_eq!(script.asked(), [""; 0]);
    assert_eq!(tree(&sandbox), before);
    assert_eq!(sandbox.journal().transactions, []);

    link(&sandbox, "../machinist-recover.service", WANTS);
    driver
        .until("the update", |report| report.phase == Phase::RebootPending)
        .await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn recovery_removed_during_the_drain_prevents_disk_changes() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = Driver::on_node(
        &sandbox.root(),
        &script,
        &node,
        one().desired(),
        conduct(true),
    );
    driver
        .until("the pod that blocks", |report| !report.blockers.is_empty())
        .await;
    remove(&sandbox, "/usr/bin/machinist");
    let before = tree(&sandbox);
    node.blocks(false);
    let report = driver
        .until("refused", |report| report.failure.is_some())
        .await;
    assert_eq!(
        report.failure.as_ref().unwrap().code,
        Reason::RecoveryMissing
    );
    assert_eq!(tree(&sandbox), before);
    assert_eq!(sandbox.journal().transactions, []);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_that_changes_the_recovery_units_is_rejected() {
    let units = |name: &str| config("own").unit(name, "[Service]\nExecStart=/bin/true\n", true);
    let configs = [
        units("machinist-guard.service"),
        config("own").link("/etc/systemd/system/machinist-recover.service", "/dev/null"),
        config("own").file("/usr/local/libexec/machinist/machinist", "mine", 0o755),
    ];
    for wanted in configs {
        let (sandbox, script) = (machine(), Script::new());
        let before = tree(&sandbox);
        let mut driver = Driver::start(&sandbox, &script, wanted.desired());
        let report = driver
            .until("refused", |report| report.failure.is_some())
            .await;
        assert_eq!(
            report.failure.as_ref().unwrap().code,
            Reason::ForeignContent
        );
        assert_eq!(tree(&sandbox), before);
        driver.stop().await;
    }
}

/// An image that is being built, or a mounted disk: the system that boots it has its own units.
#[test]
fn an_offline_root_needs_no_recovery() {
    let place = machinist_testkit::sandbox::temporary();
    let root = Root::open(place.path()).unwrap();
    for dir in ["/etc", "/var/lib"] {
        root.make_dirs(&at(dir), 0o755).unwrap();
    }
    assert!(recovery_missing(&root).unwrap().is_some());
    let report = apply(&root, &one()).unwrap();
    assert_eq!(report.failure, None);
    assert!(report.config.current.is_some());
}
