//! Shutdown of the daemon: a cancellation token for all tasks, a tracker of the running ones, and
//! the signals that start it.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

/// How long tasks may take to end. One second is acceptable to a person who presses ^C, and no task
/// does anything that must not be interrupted: the journal holds everything that must survive.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The tasks of the daemon. Cheap to clone; clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
    running: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    died: Arc<Mutex<Option<&'static str>>>,
}

/// The shutdown was not clean.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UncleanShutdown {
    /// A task panicked, which ended the daemon.
    #[error("the task {0} panicked")]
    Panicked(&'static str),
    /// Tasks did not end within the grace period and were left behind.
    #[error("tasks still running after {} ms: {}", .0.as_millis(), .1.join(", "))]
    StillRunning(Duration, Vec<&'static str>),
}

impl Tasks {
    /// Creates the state without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that is cancelled when the daemon stops. Cancelling it stops no other task.
    pub fn token(&self) -> CancellationToken {
        self.stop.child_token()
    }

    /// Resolves when the daemon stops.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Requests every task to end.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The tracker, for services that start their own tasks; those also observe a [`Tasks::token`].
    pub const fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Runs `task` until it ends. The task has to observe a [`Tasks::token`]. A panic in it stops
    /// the daemon, which must not look healthy after it has lost a task.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let leave = TaskExitGuard {
            tasks: self.clone(),
            name,
            finished: false,
        };
        *lock(&self.running).entry(name).or_default() += 1;
        let span = tracing::info_span!("task", task = name);
        let tracked = async move {
            let mut leave = leave;
            task.await;
            leave.finished = true;
        };
        self.tracker.spawn(tracked.instrument(span));
    }

    /// Stops everything and waits up to `grace` for every task to end.
    pub async fn finish(self, grace: Duration) -> Result<(), UncleanShutdown> {
        self.stop.cancel();
        self.tracker.close();
        let in_time = tokio::time::timeout(grace, self.tracker.wait()).await;
        if let Some(name) = *lock(&self.died) {
            return Err(UncleanShutdown::Panicked(name));
        }
        in_time.map_err(|_| {
            let names = lock(&self.running).keys().copied().collect();
            UncleanShutdown::StillRunning(grace, names)
        })
    }
}

/// Records the end of a task, also during unwinding.
struct TaskExitGuard {
    tasks: Tasks,
    name: &'static str,
    finished: bool,
}

impl Drop for TaskExitGuard {
    fn drop(&mut self) {
        let mut running = lock(&self.tasks.running);
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
        if !self.finished && std::thread::panicking() {
            lock(&self.tasks.died).get_or_insert(self.name);
            tracing::error!(task = self.name, "a task panicked; stopping");
            self.tasks.stop.cancel();
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGTERM or SIGINT: end.
    Stop,
    /// SIGHUP: reload the settings.
    Reload,
}

/// The signals that the daemon handles. From now on they no longer end the process by themselves.
#[derive(Debug)]
pub struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl ProcessSignals {
    /// Starts to listen. Needs a running tokio runtime.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal. Safe to drop: a signal that was not received stays pending.
    pub async fn next(&mut self) -> SignalRequest {
        // Each arm may be dropped: tokio keeps a delivered signal until it is received.
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hang_up.recv() => SignalRequest::Reload,
        }
    }

    /// Handles requests: the first stop lets the tasks end; the second one returns at once, and the
    /// caller exits without waiting. `reload` is called for every SIGHUP.
    pub async fn handle_requests(mut self, tasks: &Tasks, mut reload: impl FnMut()) {
        let mut stopping = false;
        loop {
            match self.next().await {
                SignalRequest::Reload => reload(),
                SignalRequest::Stop if stopping => return,
                SignalRequest::Stop => {
                    stopping = true;
                    tracing::info!("stopping");
                    tasks.stop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_that_watch_the_shutdown_token_are_joined() {
        let tasks = Tasks::new();
        let (token, ended) = (tasks.token(), Arc::new(Mutex::new(false)));
        let mark = Arc::clone(&ended);
        tasks.spawn("watcher", async move {
            token.cancelled().await;
            *lock(&mark) = true;
        });
        assert_eq!(tasks.finish(SHUTDOWN_TIMEOUT).await, Ok(()));
        assert!(*lock(&ended));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_outlives_the_shutdown_grace_is_named() {
        let tasks = Tasks::new();
        tasks.spawn("quick", async {});
        tasks.spawn("stuck", std::future::pending());
        let began = tokio::time::Instant::now();
        let left = tasks.finish(SHUTDOWN_TIMEOUT).await;
        assert_eq!(
            left,
            Err(UncleanShutdown::StillRunning(
                SHUTDOWN_TIMEOUT,
                vec!["stuck"]
            ))
        );
        assert_eq!(began.elapsed(), SHUTDOWN_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_task_stops_the_daemon_and_is_reported() {
        let tasks = Tasks::new();
        tasks.spawn("broken", async { panic!("as the test wants it") });
        tasks.stopping().await;
        assert_eq!(
            tasks.finish(SHUTDOWN_TIMEOUT).await,
            Err(UncleanShutdown::Panicked("broken"))
        );
    }

    #[tokio::test]
    async fn a_second_termination_signal_ends_the_wait_and_sighup_reloads() {
        let tasks = Tasks::new();
        let reloads = Arc::new(Mutex::new(0));
        let count = Arc::clone(&reloads);
        let signals = ProcessSignals::listen().unwrap();
        let obeying = {
            let tasks = tasks.clone();
            tokio::spawn(
                async move { signals.handle_requests(&tasks, || *lock(&count) += 1).await },
            )
        };
        let raise = |signal| nix::sys::signal::raise(signal).unwrap();
        raise(nix::sys::signal::SIGHUP);
        raise(nix::sys::signal::SIGTERM);
        tasks.stopping().await;
        assert!(!obeying.is_finished());
        raise(nix::sys::signal::SIGTERM);
        tokio::time::timeout(Duration::from_secs(60), obeying)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(*lock(&reloads), 1);
    }
}
