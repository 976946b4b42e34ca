//! Jobs of PID 1: asked for once, followed to their end.

use std::{fmt, time::Duration};

use tokio_stream::StreamExt as _;
use zbus::{OwnedObjectPath, Variant};

use super::{
    Systemd, SystemdError,
    error::Trouble,
    link::{while_taking, within},
    proxies::{JobRemoved, JobRemovedStream, ManagerProxy},
    unit::Active,
};
use crate::reason::Reason;

/// Replace a queued job that contradicts ours, as `systemctl` does without `--job-mode`.
pub(super) const REPLACE: &str = "replace";

/// What a job does with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Start it; nothing happens when it is up.
    Start,
    /// Stop it.
    Stop,
    /// Stop and start it; starts it when it is down.
    Restart,
    /// Restart it when it is up, else nothing.
    TryRestart,
    /// Let it read its configuration anew.
    Reload,
    /// Reload it when it can, else restart it.
    ReloadOrRestart,
}

impl Verb {
    async fn ask(self, of: &ManagerProxy<'_>, unit: &str) -> zbus::Result<OwnedObjectPath> {
        match self {
            Self::Start => of.start_unit(unit, REPLACE).await,
            Self::Stop => of.stop_unit(unit, REPLACE).await,
            Self::Restart => of.restart_unit(unit, REPLACE).await,
            Self::TryRestart => of.try_restart_unit(unit, REPLACE).await,
            Self::Reload => of.reload_unit(unit, REPLACE).await,
            Self::ReloadOrRestart => of.reload_or_restart_unit(unit, REPLACE).await,
        }
    }
}

/// What makes a job.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// Something done to a unit that there is.
    Verb(Verb),
    /// A command as a unit of its own.
    Command {
        argv: &'a [&'a str],
        description: &'a str,
    },
}

impl Asked<'_> {
    async fn ask(self, of: &ManagerProxy<'_>, unit: &str) -> zbus::Result<OwnedObjectPath> {
        match self {
            Self::Verb(verb) => verb.ask(of, unit).await,
            Self::Command { argv, description } => {
                start_transient(of, unit, argv, description).await
            }
        }
    }
}

impl fmt::Display for Verb {
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

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobResult {
    /// Carried out. For a simple service it says nothing about the moment after.
    Done,
    /// Another job took its place.
    Canceled,
    /// systemd's own time limit for the unit passed.
    Timeout,
    /// Carried out, and the unit failed.
    Failed,
    /// A unit that this one needs failed.
    Dependency,
    /// Did not apply: the unit's own condition said no.
    Skipped,
}

impl JobResult {
    /// The code of a job that did not do what it should; none for one that did or had nothing to do.
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
            // `failed`, and what has no name of its own here: `assert`, `invalid`, `unsupported`,
            // `collected`, `once`.
            _ => Self::Failed,
        }
    }
}

impl Systemd {
    /// Runs a job and waits for its end, `limit` long at most. After that the job is left to
    /// systemd, whose own limits end it; the error is [`Trouble::JobUnfinished`].
    ///
    /// The end of the job is found out also when it comes before the answer to the request, and when
    /// the connection breaks in between, as it does when the bus itself is restarted.
    pub async fn run_job(
        &self,
        verb: Verb,
        unit: &str,
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let ended = limited(limit, self.job(unit, Asked::Verb(verb))).await;
        ended.map_err(SystemdError::during(format!("{verb} {unit}")))
    }

    /// Runs `argv` as a unit of its own and waits for its end, `limit` long at most; see
    /// [`Systemd::start_transient`].
    pub async fn run_transient(
        &self,
        name: &str,
        argv: &[&str],
        description: &str,
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let asked = Asked::Command { argv, description };
        let ended = limited(limit, self.job(name, asked)).await;
        ended.map_err(SystemdError::during(format!("run {name}")))
    }

    /// Starts `argv`, its program by absolute path, as a oneshot unit `name` (`….service`) that
    /// outlives this process. It vanishes when it has ended, so that it is never a failed unit.
    pub async fn start_transient(
        &self,
        name: &str,
        argv: &[&str],
        description: &str,
    ) -> Result<(), SystemdError> {
        let start = async {
            let manager = self.link.to_manager().await?.manager().await?;
            within(start_transient(&manager, name, argv, description)).await
        };
        let started = start.await.map(drop);
        started.map_err(SystemdError::during(format!("start {name}")))
    }

    async fn job(&self, unit: &str, ask: Asked<'_>) -> Result<JobResult, Trouble> {
        let live = self.link.to_manager().await?;
        let mut ends = live.job_ends().await?;
        let manager = live.manager().await?;
        let mut early = Vec::new();
        let asked = within(ask.ask(&manager, unit));
        let job = while_taking(asked, &mut ends, |end| early.extend(End::parse(&end))).await?;
        if let Some(result) = early.into_iter().find_map(|end| end.of(&job)) {
            return Ok(result);
        }
        loop {
            if let Some(result) = end_of(&job, &mut ends).await {
                return Ok(result);
            }
            // The connection broke. Listen on a new one first, then ask whether it is still there.
            let live = self.link.to_manager().await?;
            ends = live.job_ends().await?;
            if !is_queued(&live.manager().await?, &job).await? {
                return self.judge(unit).await;
            }
        }
    }

    /// What the unit's state says of a job whose end nobody heard.
    async fn judge(&self, unit: &str) -> Result<JobResult, Trouble> {
        let state = self.look_at(unit).await?;
        Ok(match state.active {
            Active::Failed => JobResult::Failed,
            _ => JobResult::Done,
        })
    }
}

async fn limited(
    limit: Duration,
    job: impl Future<Output = Result<JobResult, Trouble>>,
) -> Result<JobResult, Trouble> {
    let unfinished = |_| Trouble::JobUnfinished { after: limit };
    tokio::time::timeout(limit, job).await.map_err(unfinished)?
}

struct End {
    job: OwnedObjectPath,
    result: JobResult,
}

impl End {
    /// None for a signal that does not say what JobRemoved says; it ends no job.
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

/// None when the connection has ended.
async fn end_of(job: &OwnedObjectPath, ends: &mut JobRemovedStream) -> Option<JobResult> {
    loop {
        let end = End::parse(&ends.next().await?);
        if let Some(result) = end.and_then(|end| end.of(job)) {
            return Some(result);
        }
    }
}

/// Whether PID 1 still knows the job.
async fn is_queued(manager: &ManagerProxy<'_>, job: &OwnedObjectPath) -> Result<bool, Trouble> {
    let id = job.rsplit('/').next().and_then(|id| id.parse().ok());
    let Some(id) = id else {
        return Ok(false);
    };
    match within(manager.get_job(id)).await {
        Ok(_) => Ok(true),
        Err(Trouble::Other { name, .. }) if name.ends_with(".NoSuchJob") => Ok(false),
        Err(trouble) => Err(trouble),
    }
}

async fn start_transient(
    manager: &ManagerProxy<'_>,
    name: &str,
    argv: &[&str],
    description: &str,
) -> zbus::Result<OwnedObjectPath> {
    let program = argv.first().copied().unwrap_or_default();
    // Path, arguments with the zeroth, whether a failure is to be ignored.
    let exec = vec![(program, argv.to_vec(), false)];
    let properties = [
        ("Description", Variant::from(description)),
        ("Type", "oneshot".into()),
        // In emergency mode there is no sysinit.target that it could wait for, and asking for that
        // would end the mode.
        ("DefaultDependencies", false.into()),
        ("CollectMode", "inactive-or-failed".into()),
        ("ExecStart", exec.into()),
    ];
    // `fail`: a second start while the first one runs is refused instead of queued.
    manager
        .start_transient_unit(name, "fail", &properties, &[])
        .await
}
