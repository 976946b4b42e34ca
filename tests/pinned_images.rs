//! Images that are pulled in advance: the watch on their sets, the pulls, and their protection from garbage collection,
//! against doubles of the API server, the container runtime and the service manager.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and plays the programs of the machine"
)]

mod protection;
mod pulls;
mod set_watch;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use machinist_agent::pinned_images::{self, FirstPull, PullInputs, PullReports};
use machinist_base::shutdown::Tasks;
use machinist_cluster::pinned_image_sets::ImageSets;
use machinist_kube_api::{NodeImageSets, PinnedImageSetView};
use machinist_pool::ImageSetSelection;
use machinist_rootfs::Root;
use machinist_status::{
    Mode, Status,
    metrics::Metrics,
    settings::{Fragment, Settings},
};
use machinist_systemd::Systemd;
use machinist_testkit::{
    WAIT_TIMEOUT,
    container_runtime::{FakeRuntime, ServingRuntime},
    fake_systemd::{FakeSystemd, Unit},
};
use serde_json::json;
use tokio::sync::watch;

/// The label of the sets of the node's pool.
const ROLE: &str = "machineconfiguration.openshift.io/role";

/// An image by digest.
fn image(name: &str) -> String {
    let digest = machinist_base::digest::Digest::of(name.as_bytes());
    format!("quay.io/team/{name}@{digest}")
}

/// A set of the node's pool.
fn set(name: &str, generation: i64, images: &[String]) -> PinnedImageSetView {
    PinnedImageSetView {
        name: name.to_owned(),
        labels: BTreeMap::from([(ROLE.to_owned(), "worker".to_owned())]),
        generation,
        images: images.to_vec(),
    }
}

fn settings(more: &[(&str, &str)]) -> Arc<Settings> {
    let mut fragment = Fragment::default().with_flag("-", "pinnedImages.minFree", "0%");
    for (key, value) in more {
        fragment = fragment.with_flag("-", key, *value);
    }
    Arc::new(Settings::from_fragments([fragment]).unwrap())
}

/// A machine with a container runtime, and the agent's task on it.
struct Machine {
    dir: tempfile::TempDir,
    systemd: FakeSystemd,
    sets: watch::Sender<ImageSets>,
    settings: watch::Sender<Arc<Settings>>,
    other_daemon: watch::Sender<Option<String>>,
    pool: watch::Sender<Option<ImageSetSelection>>,
    status: watch::Sender<Arc<Status>>,
}

impl Machine {
    fn new() -> Self {
        let systemd = FakeSystemd::new();
        systemd.set_unit("crio.service", Unit::default());
        let pool = json!({"machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
        let pool = ImageSetSelection::of(&serde_json::from_value(pool).unwrap());
        let dir = tempfile::tempdir().unwrap();
        // The agent makes it when it opens its journal.
        std::fs::create_dir_all(dir.path().join("var/lib/machinist")).unwrap();
        Self {
            dir,
            systemd,
            sets: watch::Sender::new(ImageSets::Unknown),
            settings: watch::Sender::new(settings(&[])),
            other_daemon: watch::Sender::new(None),
            pool: watch::Sender::new(Some(pool)),
            status: watch::Sender::new(Arc::new(Status::starting(
                "/".to_owned(),
                Mode::Cluster,
                Timestamp::UNIX_EPOCH,
            ))),
        }
    }

    fn root(&self) -> Root {
        Root::open(self.dir.path()).unwrap()
    }

    fn containerd(&self) -> (FakeRuntime, ServingRuntime) {
        let runtime = FakeRuntime::containerd(self.dir.path());
        let serving = runtime.serve();
        (runtime, serving)
    }

    fn crio(&self) -> (FakeRuntime, ServingRuntime) {
        let runtime = FakeRuntime::crio(self.dir.path());
        let serving = runtime.serve();
        (runtime, serving)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.path().join(path)).ok()
    }

    /// The cluster has these sets.
    fn has(&self, sets: &[PinnedImageSetView]) {
        let named = sets.iter().map(|set| (set.name.clone(), set.clone()));
        self.sets.send_replace(ImageSets::Known(named.collect()));
    }

    /// Starts the task.
    fn start(&self) -> Agent {
        let inputs = PullInputs {
            sets: self.sets.subscribe(),
            pool: self.pool.subscribe(),
            settings: self.settings.subscribe(),
            other_daemon: self.other_daemon.subscribe(),
        };
        let tasks = Tasks::new();
        let systemd = Systemd::new(self.systemd.lines());
        let metrics = Metrics::new(self.status.subscribe());
        let (counts, systemd) = (metrics.clone(), Some(systemd));
        let reports = pinned_images::start(&self.root(), systemd, inputs, counts, &tasks);
        Agent {
            reports,
            metrics,
            tasks,
        }
    }
}

/// The running task.
struct Agent {
    reports: PullReports,
    metrics: Metrics,
    tasks: Tasks,
}

impl Agent {
    /// Waits for a report.
    async fn until(&mut self, what: &str, holds: impl Fn(&NodeImageSets) -> bool) -> NodeImageSets {
        let waiting = self
            .reports
            .sets
            .wait_for(|sets| sets.as_ref().is_some_and(&holds));
        let found = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        let found = found.map(|found| found.unwrap().clone());
        match found {
            Ok(found) => found.unwrap(),
            Err(_) => panic!("{what}: {:?}", *self.reports.sets.borrow()),
        }
    }

    /// Waits until a pass over sets of this generation has ended.
    async fn ended(&mut self, generation: i64) -> NodeImageSets {
        let is_of = move |sets: &NodeImageSets| {
            let mut all = sets.sets.iter();
            let is_read = all.all(|set| set.desired_generation == Some(generation));
            is_read && !sets.is_progressing
        };
        self.until("the end of a pass", is_of).await
    }

    fn first_pull(&self) -> Option<FirstPull> {
        self.reports.first_pull.borrow().clone()
    }

    async fn stop(self) {
        self.tasks.stop();
        self.tasks.finish(WAIT_TIMEOUT).await.unwrap();
    }
}

/// Waits until the condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
    assert!(ended.is_ok(), "timed out: {what}");
}
