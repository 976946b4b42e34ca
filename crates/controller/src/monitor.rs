//! What a controller shows of itself: whether it works, whether it is ready, and its metrics.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::metrics::ControllerMetrics;

/// How long the election may make no step. Requests about the Lease end within 6 s, and waits between them within 5 s.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);

/// How long one step of the leader may take. A request ends within a minute; a list of thousands of Nodes is several.
const STEP_LIMIT: Duration = Duration::from_secs(300);

/// How long ago the API server may have answered a process that is not the leader: several looks at the Lease.
const CONTACT_LIMIT: Duration = Duration::from_secs(30);

/// The state of a controller's process, for probes and metrics. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct ControllerMonitor {
    state: Arc<Mutex<MonitorState>>,
    pub(crate) metrics: ControllerMetrics,
}

#[derive(Debug)]
struct MonitorState {
    /// The last step of the election.
    election: Instant,
    /// The last response about the Lease.
    contact: Option<Instant>,
    /// While this process is the leader.
    leader: Option<LeaderProgress>,
    /// What the process does once before it is ready.
    awaits: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct LeaderProgress {
    /// Whether everything has been listed.
    is_synced: bool,
    /// The last step, while a turn is under way.
    busy: Option<Instant>,
}

impl ControllerMonitor {
    /// Creates the monitor of a process that begins.
    #[must_use]
    pub fn new() -> Self {
        let state = MonitorState {
            election: Instant::now(),
            contact: None,
            leader: None,
            awaits: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            metrics: ControllerMetrics::new(),
        }
    }

    /// Whether the process works, and what it does.
    ///
    /// # Errors
    ///
    /// What has made no progress, and for how long.
    pub fn healthy(&self) -> Result<String, String> {
        let state = self.lock();
        let silent = state.election.elapsed();
        if silent > ELECTION_LIMIT {
            let seconds = silent.as_secs();
            return Err(format!(
                "the election of the leader has made no step for {seconds} s"
            ));
        }
        let step = state.leader.and_then(|it| it.busy).map(|at| at.elapsed());
        match step.filter(|step| *step > STEP_LIMIT) {
            Some(step) => Err(format!(
                "a step of the leader has taken {} s",
                step.as_secs()
            )),
            None => Ok("ok".to_owned()),
        }
    }

    /// Whether the process acts, or could take over.
    ///
    /// # Errors
    ///
    /// What it waits for.
    pub fn ready(&self) -> Result<String, String> {
        let state = self.lock();
        if let Some(awaits) = &state.awaits {
            return Err(awaits.clone());
        }
        match (state.leader, state.contact) {
            (Some(leader), _) if leader.is_synced => Ok("leader".to_owned()),
            (Some(_), _) => Err("the leader lists Nodes, pools and MachineConfigs".to_owned()),
            (None, Some(at)) if at.elapsed() <= CONTACT_LIMIT => Ok("not the leader".to_owned()),
            (None, Some(at)) => {
                let seconds = at.elapsed().as_secs();
                Err(format!(
                    "the API server has not answered about the Lease for {seconds} s"
                ))
            }
            (None, None) => Err("the API server has not answered about the Lease yet".to_owned()),
        }
    }

    /// All metrics in the OpenMetrics text format.
    ///
    /// # Errors
    ///
    /// If a metric cannot be formatted.
    pub fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.text()
    }

    /// Records a step of the election, and whether the API server has answered it.
    pub(crate) fn election_step(&self, has_answered: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        state.election = now;
        if has_answered {
            state.contact = Some(now);
        }
    }

    /// Records what the process must do before it is ready; `None` once it is done.
    pub(crate) fn awaits(&self, what: Option<String>) {
        self.lock().awaits = what;
    }

    /// Records the beginning or the end of the leadership.
    pub(crate) fn set_leader(&self, is_leader: bool) {
        self.lock().leader = is_leader.then_some(LeaderProgress {
            is_synced: false,
            busy: None,
        });
        self.metrics.set_leader(is_leader);
    }

    /// Records that the leader has listed everything.
    pub(crate) fn synced(&self) {
        if let Some(leader) = &mut self.lock().leader {
            leader.is_synced = true;
        }
    }

    /// Records a step of the leader's turn.
    pub(crate) fn turn_step(&self) {
        self.set_busy(Some(Instant::now()));
    }

    /// Records that the leader waits for events.
    pub(crate) fn turn_ended(&self) {
        self.set_busy(None);
    }

    fn set_busy(&self, busy: Option<Instant>) {
        if let Some(leader) = &mut self.lock().leader {
            leader.busy = busy;
        }
    }

    fn lock(&self) -> MutexGuard<'_, MonitorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ControllerMonitor {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn wait(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_healthy_while_the_election_and_the_turn_make_steps() {
        let monitor = ControllerMonitor::new();
        wait(60).await;
        assert!(monitor.healthy().is_ok());
        wait(1).await;
        let silent = monitor.healthy().unwrap_err();
        assert_eq!(
            silent,
            "the election of the leader has made no step for 61 s"
        );

        monitor.set_leader(true);
        monitor.turn_step();
        for _ in 0..6 {
            wait(50).await;
            monitor.election_step(true);
        }
        assert!(monitor.healthy().is_ok());
        wait(1).await;
        let stuck = monitor.healthy().unwrap_err();
        assert_eq!(stuck, "a step of the leader has taken 301 s");
        monitor.turn_ended();
        assert!(
            monitor.healthy().is_ok(),
            "a leader without work is healthy"
        );
        monitor.turn_step();
        monitor.set_leader(false);
        assert!(monitor.healthy().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_ready_if_it_has_listed_everything_or_reaches_the_api_server() {
        let monitor = ControllerMonitor::new();
        monitor.election_step(false);
        assert!(monitor.ready().is_err());
        monitor.election_step(true);
        assert_eq!(monitor.ready().unwrap(), "not the leader");
        wait(31).await;
        monitor.election_step(false);
        let lost = monitor.ready().unwrap_err();
        assert_eq!(
            lost,
            "the API server has not answered about the Lease for 31 s"
        );
        monitor.set_leader(true);
        assert!(monitor.ready().is_err());
        monitor.synced();
        assert_eq!(monitor.ready().unwrap(), "leader");
    }
}
