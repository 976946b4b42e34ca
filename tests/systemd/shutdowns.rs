//! Units that use devices, during a shutdown that another process has requested.

use std::sync::Arc;

use machinist_agent::shutdown_quiesce;
use machinist_base::shutdown::Tasks;
use machinist_device::{Allowances, Inventory};
use machinist_device_plugins::{
    device_service::{DevicesService, DevicesSettings},
    kubelet::RegistrationMode,
};
use machinist_rootfs::Root;
use machinist_testkit::WAIT_TIMEOUT;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;

/// A machine with units that use devices, one of which is not running.
struct Beside {
    machine: FakeSystemd,
    root: tempfile::TempDir,
    inventory: watch::Sender<Arc<Inventory>>,
}

fn declaring(units: &[&str]) -> Arc<Inventory> {
    Arc::new(Inventory {
        stop_units: units.iter().map(|unit| (*unit).to_owned()).collect(),
        ..Inventory::default()
    })
}

const STOPPED: &str = "StopUnit monitor.service replace";
const STARTED: &str = "StartUnit monitor.service replace";
const TAKEN: &str = "Inhibit shutdown machinist delay";

impl Beside {
    fn new() -> Self {
        let machine = FakeSystemd::new();
        machine.set_unit("monitor.service", Unit::default());
        machine.set_unit("idle.service", Unit::stopped());
        Self {
            machine,
            root: tempfile::tempdir().unwrap(),
            inventory: watch::Sender::new(declaring(&["monitor.service", "idle.service"])),
        }
    }

    fn follow(&self) -> CancellationToken {
        self.task().0
    }

    fn task(&self) -> (CancellationToken, tokio::task::JoinHandle<()>) {
        let stop = CancellationToken::new();
        let root = Root::open(self.root.path()).unwrap();
        let systemd = Systemd::new(self.machine.lines());
        let follow = shutdown_quiesce::follow(
            systemd,
            root,
            self.inventory.subscribe(),
            None,
            stop.clone(),
        );
        (stop, tokio::spawn(follow))
    }

    /// Writes the record of stopped units to the disk.
    fn recorded(&self, text: &str) -> std::path::PathBuf {
        let dir = self.root.path().join("var/lib/machinist");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("quiesced.json"), text).unwrap();
        dir.join("quiesced.json")
    }

    async fn until(&self, what: &str, enough: impl Fn(&FakeSystemd) -> bool) {
        let began = std::time::Instant::now();
        while !enough(&self.machine) {
            let received = self.machine.requests();
            assert!(began.elapsed() < WAIT_TIMEOUT, "{what}: {received:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn wait_for_requests(&self, what: &str, times: usize) {
        let often = |machine: &FakeSystemd| count_requests(machine, what) >= times;
        self.until(what, often).await;
    }
}

fn count_requests(machine: &FakeSystemd, what: &str) -> usize {
    machine.requests().iter().filter(|one| *one == what).count()
}

#[tokio::test]
async fn a_shutdown_is_delayed_until_units_are_stopped_and_no_longer() {
    let beside = Beside::new();
    let job = Job::done()
        .taking(Duration::from_millis(300))
        .becoming(|unit| *unit = Unit::stopped());
    beside.machine.script("monitor.service", job);
    let stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.announce(true).await;
    beside.wait_for_requests(STOPPED, 1).await;
    assert_eq!(beside.machine.locks_held(), 1, "the unit is not down yet");
    let kept = beside.root.path().join("var/lib/machinist/quiesced.json");
    let kept = std::fs::read_to_string(kept).unwrap();
    assert_eq!(
        kept, r#"{"units":["monitor.service"]}"#,
        "before it is done"
    );
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    // After a cancelled shutdown the stopped units are started again, no others, and a new lock is
    // taken.
    beside.machine.announce(false).await;
    beside.wait_for_requests(STARTED, 1).await;
    beside
        .until("a lock anew", |machine| machine.locks_held() == 1)
        .await;
    let received = beside.machine.requests();
    assert!(
        !received.iter().any(|one| one.contains("idle.service")),
        "{received:?}"
    );
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_hanging_unit_stop_delays_a_shutdown_at_most_by_loginds_limit() {
    let beside = Beside::new();
    let job = Job::done().taking(Duration::from_secs(3600));
    beside.machine.script("monitor.service", job);
    let _stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    let begun = tokio::time::Instant::now();
    beside.machine.announce(true).await;
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    let took = begun.elapsed();
    assert!((4..5).contains(&took.as_secs()), "{took:?} of 5 s");
}

#[tokio::test]
async fn units_stopped_before_the_reboot_are_started_after_it() {
    let beside = Beside::new();
    let job = Job::done().becoming(|unit| *unit = Unit::stopped());
    beside.machine.script("monitor.service", job);
    let stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.announce(true).await;
    beside.wait_for_requests(STOPPED, 1).await;
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    stop.cancel();
    beside.machine.cancel_without_signal();
    let _next_boot = beside.follow();
    beside.wait_for_requests(STARTED, 1).await;
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    let kept = beside.root.path().join("var/lib/machinist/quiesced.json");
    assert!(!kept.exists(), "once");
}

#[tokio::test]
async fn a_delay_lock_is_reacquired_after_a_logind_restart_while_needed() {
    let beside = Beside::new();
    beside.inventory.send_replace(declaring(&[]));
    let _stop = beside.follow();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count_requests(&beside.machine, TAKEN), 0, "nothing to stop");
    beside
        .inventory
        .send_replace(declaring(&["monitor.service"]));
    beside.wait_for_requests(TAKEN, 1).await;
    beside.machine.restart_logind().await;
    beside.wait_for_requests(TAKEN, 2).await;
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.hang_up().await;
    beside.wait_for_requests(TAKEN, 3).await;
    beside.inventory.send_replace(declaring(&[]));
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    assert_eq!(count_requests(&beside.machine, STOPPED), 0);
}

#[tokio::test]
async fn a_unit_already_stopping_is_waited_for_and_not_recorded() {
    let beside = Beside::new();
    let leaving = Unit {
        active: "deactivating",
        ..Unit::default()
    };
    beside.machine.set_unit("monitor.service", leaving);
    let job = Job::done()
        .taking(Duration::from_millis(300))
        .becoming(|unit| *unit = Unit::stopped());
    beside.machine.script("monitor.service", job);
    let _stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.announce(true).await;
    beside.wait_for_requests(STOPPED, 1).await;
    assert_eq!(beside.machine.locks_held(), 1, "the unit is not down yet");
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    let kept = beside.root.path().join("var/lib/machinist/quiesced.json");
    assert!(!kept.exists(), "somebody else stopped it");
}

#[tokio::test]
async fn an_unreadable_record_of_stopped_units_is_never_overwritten() {
    let beside = Beside::new();
    let record = beside.recorded("{\"units\":[\"oth");
    let _stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.announce(true).await;
    beside.wait_for_requests(STOPPED, 1).await;
    let text = std::fs::read_to_string(&record).unwrap();
    assert_eq!(text, r#"{"units":["monitor.service"]}"#);
    let beside_it = std::fs::read_dir(record.parent().unwrap()).unwrap();
    let mut kept = beside_it
        .map(|entry| entry.unwrap().path())
        .filter(|path| *path != record);
    let kept = std::fs::read_to_string(kept.next().unwrap()).unwrap();
    assert_eq!(kept, "{\"units\":[\"oth");

    // An unreadable record cannot be extended, so nothing is stopped.
    let beside = Beside::new();
    let record = beside.recorded("");
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    let _stop = beside.follow();
    beside
        .until("a lock", |machine| machine.locks_held() == 1)
        .await;
    beside.machine.announce(true).await;
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    assert_eq!(count_requests(&beside.machine, STOPPED), 0);
    assert!(record.is_dir());
}

#[tokio::test]
async fn a_slow_unit_start_does_not_delay_the_agents_shutdown() {
    let beside = Beside::new();
    let record = beside.recorded(r#"{"units":["monitor.service"]}"#);
    let job = Job::done().taking(Duration::from_secs(3600));
    beside.machine.script("monitor.service", job);
    let (stop, task) = beside.task();
    beside.wait_for_requests(STARTED, 1).await;
    stop.cancel();
    let ended = tokio::time::timeout(WAIT_TIMEOUT, task).await;
    ended.expect("the task does not end").unwrap();
    assert!(record.exists(), "the next start begins with it again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendors_are_notified_of_a_foreign_shutdown_and_of_its_cancellation() {
    let beside = Beside::new();
    beside.inventory.send_replace(declaring(&[]));
    let dir = beside.root.path().join("etc/machinist/vendors.d");
    std::fs::create_dir_all(&dir).unwrap();
    let file = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\n\
                spec: {connects: program, resources: [acme.dev/*]}\n";
    std::fs::write(dir.join("acme.yaml"), file).unwrap();
    let (tasks, stop) = (Tasks::new(), CancellationToken::new());
    let root = Root::open(beside.root.path()).unwrap();
    let units = watch::Sender::default();
    let settings = DevicesSettings {
        allowances: Allowances::default(),
        uevents: Some(false),
        rescan: Duration::from_secs(600),
        save_timeout: WAIT_TIMEOUT,
        registering: RegistrationMode::default(),
        units: units.subscribe(),
        allocation_disabled: None,
    };
    let devices = DevicesService::start(root.clone(), settings, &tasks);
    let vendors = devices.vendors().clone();
    let systemd = Systemd::new(beside.machine.lines());
    let inventory = beside.inventory.subscribe();
    let follow = shutdown_quiesce::follow(
        systemd,
        root,
        inventory,
        Some(vendors.clone()),
        stop.clone(),
    );
    tokio::spawn(follow);
    beside
        .until("a lock for the vendors alone", |machine| {
            machine.locks_held() == 1
        })
        .await;
    assert!(!vendors.are_quiesced());
    beside.machine.announce(true).await;
    beside
        .until("the lock given up", |machine| machine.locks_held() == 0)
        .await;
    assert!(vendors.are_quiesced());
    beside.machine.announce(false).await;
    beside
        .until("they may go on", |_| !vendors.are_quiesced())
        .await;
    stop.cancel();
    tasks.finish(WAIT_TIMEOUT).await.unwrap();
}
