//! Runs jobs of PID 1 and waits for their end.

use std::{fmt, time::Duration};

use tokio_stream::StreamExt as _;
use zbus::OwnedObjectPath;

use super::{
    Systemd, SystemdError,
    connection::{while_receiving, within},
    dbus_proxies::{JobRemoved, JobRemovedStream, ManagerProxy, Property, REPLACE_MODE},
    error::SystemdErrorKind,
    transient_unit::start_transient,
    unit_state::ActiveState,
};
use machinist_base::reason::Reason;

/// The operation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobVerb {
    /// Start it; no effect if it is active.
    Start,
    /// Stop it.
    Stop,
    /// Stop and start it; starts it if it is inactive.
    Restart,
    /// Restart it if it is active, else no effect.
    TryRestart,
    /// Make it reload its configuration.
    Reload,
    /// Reload it if possible, else restart it.
    ReloadOrRestart,
}

impl JobVerb {
    async fn ask(self, of: &ManagerProxy<'_>, unit: &str) -> zbus::Result<OwnedObjectPath> {
        match self {
            Self::Start => of.start_unit(unit, REPLACE_MODE).await,
            Self::Stop => of.stop_unit(unit, REPLACE_MODE).await,
            Self::Restart => of.restart_unit(unit, REPLACE_MODE).await,
            Self::TryRestart => of.try_restart_unit(unit, REPLACE_MODE).await,
            Self::Reload => of.reload_unit(unit, REPLACE_MODE).await,
            Self::ReloadOrRestart => of.reload_or_restart_unit(unit, REPLACE_MODE).await,
        }
    }
}

/// What creates a job.
#[derive(Clone, Copy)]
enum JobRequest<'a> {
    /// An operation on an existing unit.
    Verb(JobVerb),
    /// A command as a transient unit.
    Command {
        argv: &'a [&'a str],
        description: &'a str,
        properties: &'a [Property<'a>],
    },
}

impl JobRequest<'_> {
    async fn ask(self, of: &ManagerProxy<'_>, unit: &str) -> zbus::Result<OwnedObjectPath> {
        match self {
            Self::Verb(verb) => verb.ask(of, unit).await,
            Self::Command {
                argv,
                description,
                properties,
            } => start_transient(of, unit, argv, description, properties).await,
        }
    }
}

impl fmt::Display for JobVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::TryRestart => "try to restart",
            Self::Reload => "reload",
            Self::ReloadOrRestart => "reload or restart",
        })
    }
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobResult {
    /// Carried out. A simple service may still fail a moment later.
    Done,
    /// Replaced by another job.
    Canceled,
    /// The unit's own systemd timeout passed.
    Timeout,
    /// The unit failed.
    Failed,
    /// A unit that this one needs failed.
    Dependency,
    /// Skipped, because a condition of the unit was not met.
    Skipped,
}

impl JobResult {
    /// The reason code of a failed job; `None` if it succeeded or had nothing to do.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Self::Done | Self::Skipped => None,
            Self::Canceled => Some(Reason::JobCanceled),
            Self::Timeout => Some(Reason::JobTimeout),
            Self::Failed => Some(Reason::JobFailed),
            Self::Dependency => Some(Reason::JobDependency),
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "done" => Self::Done,
            "canceled" => Self::Canceled,
            "timeout" => Self::Timeout,
            "dependency" => Self::Dependency,
            "skipped" => Self::Skipped,
            // `failed`, and results without a variant here: `assert`, `invalid`, `unsupported`,
            // `collected`, `once`.
            _ => Self::Failed,
        }
    }
}

impl Systemd {
    /// Runs a job and waits at most `limit` for its end. After that the job is left to systemd,
    /// whose own limits end it; the error is [`SystemdErrorKind::JobUnfinished`].
    ///
    /// The end of the job is detected even if it is reported before the answer to the request, and
    /// if the connection breaks in between, as it does when the bus itself is restarted.
    pub async fn run_job(
        &self,
        verb: JobVerb,
        unit: &str,
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let ended = limited(limit, self.job(unit, JobRequest::Verb(verb))).await;
        ended.map_err(SystemdError::during(format!("{verb} {unit}")))
    }

    /// Runs `argv` as a transient unit and waits at most `limit` for its end; see
    /// [`Systemd::start_transient`].
    pub async fn run_transient(
        &self,
        name: &str,
        argv: &[&str],
        description: &str,
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let run = self.run_with_properties(name, argv, description, &[], limit);
        run.await
    }

    /// Like [`Systemd::run_transient`], with further properties of the unit.
    pub(super) async fn run_with_properties(
        &self,
        name: &str,
        argv: &[&str],
        description: &str,
        properties: &[Property<'_>],
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let asked = JobRequest::Command {
            argv,
            description,
            properties,
        };
        let ended = limited(limit, self.job(name, asked)).await;
        ended.map_err(SystemdError::during(format!("run {name}")))
    }

    /// Starts `argv`, its program by absolute path, as a oneshot unit `name` (`….service`) that
    /// outlives this process. The unit is removed when it has ended, so that it never stays as a
    /// failed unit.
    pub async fn start_transient(
        &self,
        name: &str,
        argv: &[&str],
        description: &str,
    ) -> Result<(), SystemdError> {
        let start = async {
            let manager = self.link.to_manager().await?.manager().await?;
            within(start_transient(&manager, name, argv, description, &[])).await
        };
        let started = start.await.map(drop);
        started.map_err(SystemdError::during(format!("start {name}")))
    }

    async fn job(&self, unit: &str, ask: JobRequest<'_>) -> Result<JobResult, SystemdErrorKind> {
        let live = self.link.to_manager().await?;
        let mut ends = live.job_ends().await?;
        let manager = live.manager().await?;
        let mut early = Vec::new();
        let asked = within(ask.ask(&manager, unit));
        let job =
            while_receiving(asked, &mut ends, |end| early.extend(JobEnd::parse(&end))).await?;
        if let Some(result) = early.into_iter().find_map(|end| end.of(&job)) {
            return Ok(result);
        }
        loop {
            if let Some(result) = end_of(&job, &mut ends).await {
                return Ok(result);
            }
            // The connection broke. First subscribe on a new one, then check whether the job still
            // exists.
            let live = self.link.to_manager().await?;
            ends = live.job_ends().await?;
            if !is_queued(&live.manager().await?, &job).await? {
                return self.judge(unit).await;
            }
        }
    }

    /// Derives the result of a job from the unit's state, if the job's end was missed.
    async fn judge(&self, unit: &str) -> Result<JobResult, SystemdErrorKind> {
        let state = self.query_unit_state(unit).await?;
        Ok(match state.active {
            ActiveState::Failed => JobResult::Failed,
            _ => JobResult::Done,
        })
    }
}

async fn limited(
    limit: Duration,
    job: impl Future<Output = Result<JobResult, SystemdErrorKind>>,
) -> Result<JobResult, SystemdErrorKind> {
    let unfinished = |_| SystemdErrorKind::JobUnfinished { after: limit };
    tokio::time::timeout(limit, job).await.map_err(unfinished)?
}

struct JobEnd {
    job: OwnedObjectPath,
    result: JobResult,
}

impl JobEnd {
    /// `None` for a malformed JobRemoved signal, which is ignored.
    fn parse(signal: &JobRemoved) -> Option<Self> {
        let said = signal.args().ok()?;
        Some(Self {
            job: said.job().to_owned().into(),
            result: JobResult::parse(said.result()),
        })
    }

    fn of(&self, job: &OwnedObjectPath) -> Option<JobResult> {
        (self.job == *job).then_some(self.result)
    }
}

/// `None` when the connection has ended.
async fn end_of(job: &OwnedObjectPath, ends: &mut JobRemovedStream) -> Option<JobResult> {
    loop {
        let end = JobEnd::parse(&ends.next().await?);
        if let Some(result) = end.and_then(|end| end.of(job)) {
            return Some(result);
        }
    }
}

/// Whether PID 1 still has the job.
async fn is_queued(
    manager: &ManagerProxy<'_>,
    job: &OwnedObjectPath,
) -> Result<bool, SystemdErrorKind> {
    let id = job.rsplit('/').next().and_then(|id| id.parse().ok());
    let Some(id) = id else {
        return Ok(false);
    };
    match within(manager.get_job(id)).await {
        Ok(_) => Ok(true),
        Err(SystemdErrorKind::Other { name, .. }) if name.ends_with(".NoSuchJob") => Ok(false),
        Err(trouble) => Err(trouble),
    }
}
