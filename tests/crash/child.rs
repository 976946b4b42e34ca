//! A process of its own that runs one update and kills itself with SIGKILL at a chosen place.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_base::reason::Reason;
use machinist_rootfs::FsOp;
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing_subscriber::{Layer, layer::SubscriberExt as _};

use crate::crash::harness::{Driver, UNIT};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{at, conduct, restarting},
    scripted_services::Script,
};

/// The environment variable with the instructions of a child; it is unset in the parent.
const ORDER: &str = "MACHINIST_TEST_CRASH";

/// The course of the update without a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RunMode {
    /// A unit is restarted, and the update verified.
    Restart,
    /// The machine reboots before the verification.
    Reboot,
    /// The unit does not start, and the update is rolled back.
    Undo,
}

/// Where the process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// When the phase of this number begins, before its first action.
    Entering(usize),
    /// When it has ended, before the first action of the next.
    Leaving(usize),
    /// Before this operation on the tree, counted from the start of the process.
    Operation(usize),
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) root: std::path::PathBuf,
    pub(crate) course: RunMode,
    pub(crate) place: Option<Place>,
}

/// The result of a child.
pub(crate) struct Ended {
    pub(crate) killed: bool,
    /// Its requests to its service manager.
    pub(crate) asked: Vec<String>,
    /// How many operations it did.
    pub(crate) operations: usize,
}

impl Order {
    pub(crate) fn run(&self) -> Ended {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "crash::child::runs_one_update_in_a_child_process",
                "--exact",
                "--nocapture",
            ])
            .env(ORDER, serde_json::to_string(self).unwrap())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let output = String::from_utf8(child.stdout).unwrap();
        let of = |key: &'static str| {
            let lines = output.lines().map(str::trim_start);
            lines.filter_map(move |line| line.strip_prefix(key))
        };
        let killed = std::os::unix::process::ExitStatusExt::signal(&child.status) == Some(9);
        assert!(killed || child.status.success(), "{output}");
        Ended {
            killed,
            asked: of("ASKED ").map(str::to_owned).collect(),
            operations: of("DONE ").next().map_or(0, |count| count.parse().unwrap()),
        }
    }
}

fn die(script: &Script) -> ! {
    tell(script);
    nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
    unreachable!("a process does not survive SIGKILL")
}

/// One write per line, not captured by the test harness.
fn tell(script: &Script) {
    use std::io::Write as _;
    let lines: String = script
        .asked()
        .iter()
        .map(|asked| format!("\nASKED {asked}\n"))
        .collect();
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// Kills the process at a change of the reconciler's phase.
struct AtPhase {
    place: Place,
    script: Script,
}

/// A change of phase, as the log shows it.
#[derive(Default)]
pub(crate) struct PhaseTransition {
    pub(crate) phase: String,
    pub(crate) from: String,
}

impl PhaseTransition {
    pub(crate) fn of(event: &tracing::Event<'_>) -> Self {
        let mut passage = Self::default();
        event.record(&mut passage);
        passage
    }
}

impl Visit for PhaseTransition {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "phase" => self.phase = value.to_owned(),
            "from" => self.from = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: tracing::Subscriber> Layer<S> for AtPhase {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let passage = PhaseTransition::of(event);
        let name = |index: usize| machinist_update::phase::Phase::ALL[index].name();
        let here = match self.place {
            Place::Entering(index) => passage.phase == name(index) && !passage.from.is_empty(),
            Place::Leaving(index) => passage.from == name(index),
            Place::Operation(_) => false,
        };
        if here {
            die(&self.script);
        }
    }
}

#[test]
fn runs_one_update_in_a_child_process() {
    let Ok(order) = std::env::var(ORDER) else {
        return;
    };
    let order: Order = serde_json::from_str(&order).unwrap();
    let to = machinist_testkit::update_case::wanted();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(drive(&order, to));
}

async fn drive(order: &Order, to: machinist_testkit::sandbox::Written) {
    let script = Script::new();
    let (course, place) = (order.course, order.place);
    if course == RunMode::Undo {
        script.fails(&format!("Restart {UNIT}"), Reason::JobFailed, false);
    }
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, message) = (Arc::clone(&count), script.clone());
    let hook = move |_: &FsOp| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        if place == Some(Place::Operation(number)) {
            die(&message);
        }
        None
    };
    let mounts = machinist_testkit::update_case::MOUNTS
        .iter()
        .map(|top| at(top))
        .collect();
    let root = machinist_rootfs::Root::open(Path::new(&order.root)).unwrap();
    let root = root
        .with_simulated_mounts(mounts)
        .with_fault(Arc::new(hook));
    if let Some(place) = place {
        let at_phase = AtPhase {
            place,
            script: script.clone(),
        };
        let layered = tracing_subscriber::registry().with(at_phase);
        tracing::subscriber::set_global_default(layered).unwrap();
    }
    let conduct = match course {
        RunMode::Reboot => conduct(true),
        _ => restarting(UNIT),
    };
    let mut driver = match course {
        RunMode::Reboot => {
            let node = FakeNode::below(&order.root);
            node.stops(&["monitor.service"]);
            Driver::on_node(&root, &script, &node, to.desired(), conduct)
        }
        _ => Driver::on(&root, &script, to.desired(), conduct),
    };
    // A busy machine is slow, and the process has nothing to do but be killed.
    driver.patience = std::time::Duration::from_secs(300);
    match course {
        RunMode::Restart => drop(driver.until_on(&to).await),
        // In the boot after the reboot it ends with the uncordon.
        RunMode::Reboot => tokio::select! {
            () = script.until_reboot() => {}
            _ = driver.until_on(&to) => {}
        },
        RunMode::Undo => drop(driver.until_failed().await),
    }
    driver.stop().await;
    tell(&script);
    println!("\nDONE {}", count.load(Ordering::Relaxed));
}
