//! Units, jobs and reboots of the fake machine.

use super::*;

/// One unit as the fake PID 1 shows it.
#[derive(Clone, Debug)]
pub struct Unit {
    pub load: &'static str,
    pub active: &'static str,
    pub sub: &'static str,
    pub file_state: &'static str,
    pub invocation: Vec<u8>,
    pub service_type: &'static str,
    pub result: &'static str,
    pub main_pid: u32,
    pub n_restarts: u32,
    pub can_reload: bool,
    pub refuse_manual_start: bool,
    pub job: u32,
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            load: "loaded",
            active: "active",
            sub: "running",
            file_state: "enabled",
            invocation: vec![7; 16],
            service_type: "simple",
            result: "success",
            main_pid: 4711,
            n_restarts: 0,
            can_reload: true,
            refuse_manual_start: false,
            job: 0,
        }
    }
}

impl Unit {
    pub fn missing() -> Self {
        Self {
            load: "not-found",
            file_state: "",
            ..Self::stopped()
        }
    }

    pub fn stopped() -> Self {
        Self {
            active: "inactive",
            sub: "dead",
            invocation: vec![],
            main_pid: 0,
            ..Self::default()
        }
    }
}

type Change = Box<dyn FnOnce(&mut Unit) + Send>;

/// How the next job of a unit runs.
pub struct Job {
    /// The result in `JobRemoved`.
    pub result: &'static str,
    /// `JobRemoved` is sent before the answer to the request.
    pub before_reply: bool,
    /// Otherwise, how long the job takes.
    pub takes: Duration,
    /// The unit's change at the end of the job.
    pub becomes: Change,
    /// The unit's change some time after the end of the job.
    pub then: Option<(Duration, Change)>,
}

impl Job {
    pub fn ends(result: &'static str) -> Self {
        Self {
            result,
            before_reply: false,
            takes: Duration::from_millis(20),
            becomes: Box::new(|_| ()),
            then: None,
        }
    }

    pub fn done() -> Self {
        Self::ends("done")
    }

    #[must_use]
    pub fn before_reply(mut self) -> Self {
        self.before_reply = true;
        self
    }

    #[must_use]
    pub fn taking(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }

    #[must_use]
    pub fn becoming(mut self, change: impl FnOnce(&mut Unit) + Send + 'static) -> Self {
        self.becomes = Box::new(change);
        self
    }

    #[must_use]
    pub fn and_after(
        mut self,
        pause: Duration,
        change: impl FnOnce(&mut Unit) + Send + 'static,
    ) -> Self {
        self.then = Some((pause, Box::new(change)));
        self
    }
}

/// How logind answers the next reboot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// Accepted and announced.
    #[default]
    Announced,
    /// Accepted and cancelled.
    Cancelled,
    /// Announced, and the answer is never sent.
    ReplyLost,
    /// Accepted, without an announcement.
    Silent,
    /// Accepted, and the bus disconnects before the announcement; only the property shows the
    /// shutdown.
    BusRestarts,
    /// Refused with this error.
    Refused(&'static str, &'static str),
}
