//! A running drain, and its reports.

use std::{sync::Arc, time::Duration};

use machinist_drain::{
    DrainRules, PodId, PodWait,
    eviction::{Drain, DrainError, DrainSummary, EvictionProgress, ForceState, Options},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::drain::server::Server;

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The options of an update.
pub(crate) fn unattended() -> Options {
    Options::unattended(None, None)
}

/// The options of the command, which requires an API server that answers.
pub(crate) fn strict() -> Options {
    Options {
        rules: DrainRules {
            leave_daemon_sets: true,
            ..DrainRules::default()
        },
        patience: Some(Duration::ZERO),
        ..Options::default()
    }
}

pub(crate) struct Running {
    pub(crate) progress: watch::Receiver<EvictionProgress>,
    pub(crate) stop: CancellationToken,
    pub(crate) ordered: watch::Sender<Option<String>>,
    task: JoinHandle<Result<DrainSummary, DrainError>>,
}

pub(crate) fn start(server: &Server, options: Options) -> Running {
    start_after(server, options, Duration::ZERO)
}

/// Starts with time that an earlier run has spent.
pub(crate) fn start_after(server: &Server, options: Options, spent: Duration) -> Running {
    let drain = Drain::new(Arc::new(server.clone()), "a", options, server.clock());
    let (ordered, word) = watch::channel(None);
    let stop = CancellationToken::new();
    let progress = drain.progress();
    let force = ForceState {
        spent,
        ordered: word,
    };
    let token = stop.clone();
    Running {
        progress,
        stop,
        ordered,
        task: tokio::spawn(async move { drain.run(force, token).await }),
    }
}

impl Running {
    /// The result; within two days of the paused clock.
    pub(crate) async fn ended(self) -> Result<DrainSummary, DrainError> {
        timeout(seconds(172_800), self.task).await.unwrap().unwrap()
    }

    /// Waits until the progress satisfies the condition.
    pub(crate) async fn until(
        &mut self,
        fits: impl Fn(&EvictionProgress) -> bool,
    ) -> EvictionProgress {
        let found = timeout(seconds(7200), self.progress.wait_for(|now| fits(now))).await;
        found.expect("condition never reached").unwrap().clone()
    }

    pub(crate) fn now(&self) -> EvictionProgress {
        self.progress.borrow().clone()
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// The reported wait for a pod, if there is one.
    pub(crate) fn wait_of(&self, pod: &str) -> Option<PodWait> {
        let waits = self.now().waits;
        waits.into_iter().find(|wait| wait.pod.name == pod)
    }
}

/// Lets time pass.
pub(crate) async fn pass(time: Duration) {
    sleep(time).await;
}

pub(crate) fn names(pods: &[PodId]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

/// A drain from its beginning to its end.
pub(crate) async fn drained(server: &Server, options: Options) -> Result<DrainSummary, DrainError> {
    start(server, options).ended().await
}
