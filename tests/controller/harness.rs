//! A controller with an API server and a clock that only the test advances.
//!
//! The server, the controller and the test share one thread, and tokio's clock is paused. While the test waits in a
//! blocking task the clock stands still and requests proceed, so that a slow machine makes no timeout expire.

use std::time::Duration;

use jiff::Timestamp;
use machinist_base::clock::Clock;
use machinist_controller::{ControllerMonitor, ControllerOptions, WebhookSource};
use machinist_ignition::ConfigRules;
use machinist_testkit::WAIT_TIMEOUT;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::objects::{self, BUDGETS, CONFIGS, LEASES, NODES, POOLS, WORKER};
use crate::cluster::server::Server;

/// How long each wait lets requests proceed.
const PAUSE: Duration = Duration::from_millis(2);

/// How far the clock is advanced between two looks at a condition.
const TICK: Duration = Duration::from_millis(20);

/// How far the clock is advanced at once while time passes; less than the controller may miss of a renewal.
const STEP: Duration = Duration::from_secs(1);

/// The time at which every test begins.
const BEGIN: &str = "2026-11-27T00:00:00Z";

/// A cluster of workers, and its API server.
pub(crate) struct Lab {
    pub(crate) server: Server,
    began: Instant,
}

/// A running controller, which is ended when this is dropped.
pub(crate) struct Running {
    pub(crate) stop: DropGuard,
    pub(crate) monitor: ControllerMonitor,
    pub(crate) task: JoinHandle<()>,
}

impl Lab {
    /// A cluster with these workers, one MachineConfig and the pool.
    pub(crate) async fn with_nodes(names: &[&str]) -> Self {
        let lab = Self::empty().await;
        let server = &lab.server;
        server.put(
            &objects::config_path("50-a"),
            objects::config("50-a", "/etc/a", "1"),
        );
        server.put(WORKER, objects::pool("first"));
        for name in names {
            server.put(&objects::node_path(name), objects::node(name));
        }
        lab
    }

    /// A cluster without objects.
    pub(crate) async fn empty() -> Self {
        let server = Server::start().await;
        server.serve_collections(&[NODES, POOLS, CONFIGS, BUDGETS, LEASES]);
        Self {
            server,
            began: Instant::now(),
        }
    }

    /// The time on the test's wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        now_after(self.began)
    }

    /// Starts a controller.
    pub(crate) async fn start(&self, identity: &str) -> Running {
        self.start_with(identity, None).await
    }

    /// Starts a controller that OLM installed with this OperatorCondition.
    pub(crate) async fn start_with(
        &self,
        identity: &str,
        operator_condition: Option<&str>,
    ) -> Running {
        let options = ControllerOptions {
            operator_condition: operator_condition.map(str::to_owned),
            ..options(identity)
        };
        self.run(options).await
    }

    /// Starts a controller that sends notifications to this webhook.
    pub(crate) async fn start_notifying(&self, identity: &str, webhook: WebhookSource) -> Running {
        let options = ControllerOptions {
            webhook: Some(webhook),
            ..options(identity)
        };
        self.run(options).await
    }

    async fn run(&self, options: ControllerOptions) -> Running {
        let began = self.began;
        let clock = Clock::from_fn(move || now_after(began));
        let stop = CancellationToken::new();
        let cluster = self.server.cluster().await;
        let monitor = ControllerMonitor::new();
        let shown = monitor.clone();
        let acting = machinist_controller::run(cluster, options, shown, clock, stop.clone());
        Running {
            monitor,
            stop: stop.drop_guard(),
            task: tokio::spawn(acting),
        }
    }

    /// Waits until the condition holds, while the clock advances.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let limit = std::time::Instant::now() + WAIT_TIMEOUT;
        while !holds(self) {
            if std::time::Instant::now() > limit {
                let pool = self.server.object(WORKER);
                panic!("timed out: {what}; writes: {:#?}; {pool:#}", self.writes());
            }
            pause().await;
            tokio::time::advance(TICK).await;
        }
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            pause().await;
            let left = end - Instant::now();
            tokio::time::advance(left.min(STEP)).await;
        }
        pause().await;
    }

    /// Writes that concern pools, Nodes and configs, as `PATCH /path`.
    pub(crate) fn writes(&self) -> Vec<String> {
        let all = self.server.writes().into_iter().map(|it| it.what);
        all.filter(|what| !what.contains("/leases")).collect()
    }
}

fn options(identity: &str) -> ControllerOptions {
    ControllerOptions {
        identity: identity.to_owned(),
        node: None,
        rules: ConfigRules::default(),
        operator_condition: None,
        webhook: None,
    }
}

async fn pause() {
    tokio::task::spawn_blocking(|| std::thread::sleep(PAUSE))
        .await
        .unwrap();
}

fn now_after(began: Instant) -> Timestamp {
    let begin: Timestamp = BEGIN.parse().unwrap();
    begin + began.elapsed()
}

impl Running {
    /// The value of a metric, named with its labels as the page shows them; `None` if it is absent.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let page = self.monitor.metrics().unwrap();
        let found = page.lines().find_map(|line| {
            let value = line
                .strip_prefix("machinist_controller_")?
                .strip_prefix(name)?;
            value.strip_prefix(' ')
        });
        found.map(|value| value.parse().unwrap())
    }
}
