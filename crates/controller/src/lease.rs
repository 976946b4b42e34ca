//! Elects the leader with a Lease.
//!
//! A process takes the Lease over when it has seen the same version of it for [`LEASE_DURATION`] by its own monotonic
//! clock. The times in the Lease are written for people and never read, because clocks of machines differ.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    failure_log::{log_failure, response_code},
    leadership::{LEASE_DURATION, Leadership},
    monitor::ControllerMonitor,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
    error_chain::chain,
};
use machinist_cluster::{Cluster, ClusterError};
use machinist_kube_api::keys::{self, CONTROLLER_LEASE, NAMESPACE};

/// How often the leader renews the Lease, and how often others look at it.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How long one request about the Lease may take.
const LEASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Wait after a failed request about the Lease.
const LEASE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));

/// Why this process is no longer the leader.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LostLease {
    /// Another process holds it.
    #[error("Lease {CONTROLLER_LEASE} is held by {0:?}")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("Lease {CONTROLLER_LEASE} could not be renewed for 10 s")]
    NotRenewed,
}

/// The version of the Lease that another process wrote, and when this process first saw it.
#[derive(Debug)]
struct ObservedLease {
    resource_version: Option<String>,
    since: Instant,
}

/// Takes part in the election.
#[derive(Debug)]
pub(crate) struct LeaseElection {
    cluster: Cluster,
    identity: String,
    clock: Clock,
    monitor: ControllerMonitor,
    observed: Option<ObservedLease>,
    /// The Lease as this process wrote it.
    own: Option<Lease>,
}

impl LeaseElection {
    pub(crate) fn new(
        cluster: Cluster,
        identity: String,
        clock: Clock,
        monitor: ControllerMonitor,
    ) -> Self {
        Self {
            cluster,
            identity,
            clock,
            monitor,
            observed: None,
            own: None,
        }
    }

    /// Waits until this process is the leader.
    pub(crate) async fn acquire(&mut self) -> Leadership {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let tried = self.try_acquire().await;
            self.monitor.election_step(tried.is_ok());
            match tried {
                Ok(true) => return Leadership::new(began),
                Ok(false) => {
                    failures = 0;
                    sleep(self.next_look()).await;
                }
                Err(error) => {
                    log_failure(&error, failures == 0);
                    sleep(LEASE_BACKOFF.wait(failures, jitter())).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Renews the Lease until it is lost.
    pub(crate) async fn keep(&mut self, leadership: &Leadership) -> LostLease {
        let mut failures = 0;
        let mut next = Instant::now() + RENEW_INTERVAL;
        loop {
            sleep_until(next.min(leadership.ends())).await;
            if Instant::now() >= leadership.ends() {
                return LostLease::NotRenewed;
            }
            let began = Instant::now();
            let renewed = self.renew().await;
            self.monitor.election_step(renewed.is_ok());
            match renewed {
                Ok(None) => {
                    leadership.renew(began);
                    failures = 0;
                    next = began + RENEW_INTERVAL;
                }
                Ok(Some(holder)) => return LostLease::Taken(holder),
                Err(error) => {
                    log_failure(&error, failures == 0);
                    next = Instant::now() + LEASE_BACKOFF.wait(failures, jitter()) / 2;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Gives the Lease up, so that another process need not wait for its end.
    pub(crate) async fn release(&mut self) {
        let Some(own) = self.own.take() else {
            return;
        };
        if let Err(error) = self.give_up(own).await {
            tracing::debug!("{}", chain(&error));
        }
    }

    async fn give_up(&self, own: Lease) -> Result<(), ClusterError> {
        let refused = match self.replace(&self.without_holder(own)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(error),
        };
        // A renewal was under way when this process received its signal, so that the version is not known.
        match self.read().await? {
            Some(lease) if holder(&lease) == self.identity => {
                self.replace(&self.without_holder(lease)).await.map(drop)
            }
            _ => Err(refused),
        }
    }

    fn without_holder(&self, mut lease: Lease) -> Lease {
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        lease
    }

    /// The time until the observed Lease can be taken over, at most the interval of looks.
    fn next_look(&self) -> Duration {
        let observed = self.observed.as_ref();
        let expires = observed.map(|it| it.since + LEASE_DURATION);
        let left = expires.map(|at| at.saturating_duration_since(Instant::now()));
        let wait = Backoff::new(RENEW_INTERVAL, RENEW_INTERVAL).wait(0, jitter());
        left.map_or(wait, |left| left.min(wait))
            .max(Duration::from_millis(100))
    }

    async fn try_acquire(&mut self) -> Result<bool, ClusterError> {
        let Some(lease) = self.read().await? else {
            return self.create().await;
        };
        let holder = holder(&lease);
        let is_free = holder.is_empty() || holder == self.identity;
        let version = lease.metadata.resource_version.as_deref();
        if !is_free && !has_expired(&mut self.observed, version, Instant::now()) {
            return Ok(false);
        }
        let mut next = lease.clone();
        next.spec = Some(self.spec(lease.spec.as_ref(), self.clock.now()));
        match self.replace(&next).await {
            Ok(lease) => {
                self.own = Some(lease);
                self.observed = None;
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self) -> Result<bool, ClusterError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(CONTROLLER_LEASE.to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(None, self.clock.now())),
        };
        let (params, wanted) = (parameters(), &lease);
        let create = |client: Client| {
            let leases = Api::<Lease>::namespaced(client, NAMESPACE);
            let params = params.clone();
            async move { within(leases.create(&params, wanted)).await }
        };
        let created = self.cluster.request("create", lease_object(), create).await;
        match self.counted("create", created) {
            Ok(lease) => {
                self.own = Some(lease);
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews once; returns the holder if it is another process.
    async fn renew(&mut self) -> Result<Option<String>, ClusterError> {
        let mut next = self.own.clone().unwrap_or_default();
        let now = MicroTime(self.clock.now());
        if let Some(spec) = &mut next.spec {
            spec.renew_time = Some(now);
        }
        match self.replace(&next).await {
            Ok(lease) => {
                self.own = Some(lease);
                Ok(None)
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                let Some(lease) = self.read().await? else {
                    return Ok(Some(String::new()));
                };
                let holder = holder(&lease).to_owned();
                if holder != self.identity {
                    return Ok(Some(holder));
                }
                // A response of ours was lost, or another client changed a label.
                self.own = Some(lease);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let transitions = before.map(|spec| {
            let is_ours = spec.holder_identity.as_deref() == Some(self.identity.as_str());
            spec.lease_transitions.unwrap_or(0) + i32::from(!is_ours)
        });
        let seconds = i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(i32::MAX);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions.unwrap_or(0)),
            ..LeaseSpec::default()
        }
    }

    async fn read(&self) -> Result<Option<Lease>, ClusterError> {
        let get = |client: Client| async move {
            let leases = Api::<Lease>::namespaced(client, NAMESPACE);
            within(leases.get_opt(CONTROLLER_LEASE)).await
        };
        let found = self.cluster.request("get", lease_object(), get).await;
        self.counted("get", found)
    }

    /// Replaces the Lease, if it still has the resource version of `lease`.
    async fn replace(&self, lease: &Lease) -> Result<Lease, ClusterError> {
        let replace = |client: Client| async move {
            let leases = Api::<Lease>::namespaced(client, NAMESPACE);
            within(leases.replace(CONTROLLER_LEASE, &parameters(), lease)).await
        };
        let request = self.cluster.request("replace", lease_object(), replace);
        self.counted("update", request.await)
    }

    fn counted<T>(&self, verb: &str, response: Result<T, ClusterError>) -> Result<T, ClusterError> {
        let code = response_code(&response);
        self.monitor.metrics.requested(verb, "leases", code);
        response
    }
}

fn lease_object() -> String {
    format!("Lease {NAMESPACE}/{CONTROLLER_LEASE}")
}

/// Bounds a request, whose own limit is longer than a Lease lasts.
async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match timeout(LEASE_REQUEST_TIMEOUT, request).await {
        Ok(result) => result,
        Err(late) => Err(kube::Error::Service(Box::new(late))),
    }
}

/// Whether this version of the Lease has been seen for as long as a Lease lasts.
fn has_expired(
    observed: &mut Option<ObservedLease>,
    resource_version: Option<&str>,
    now: Instant,
) -> bool {
    match observed {
        Some(known) if known.resource_version.as_deref() == resource_version => {
            now.duration_since(known.since) >= LEASE_DURATION
        }
        _ => {
            *observed = Some(ObservedLease {
                resource_version: resource_version.map(str::to_owned),
                since: now,
            });
            false
        }
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    holder.unwrap_or_default()
}

fn parameters() -> PostParams {
    PostParams {
        field_manager: Some(keys::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_expires_when_one_version_was_seen_for_its_whole_duration() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut observed = None;
        assert!(!has_expired(&mut observed, Some("7"), at(0)));
        assert!(!has_expired(&mut observed, Some("7"), at(14)));
        assert!(
            !has_expired(&mut observed, Some("8"), at(15)),
            "it was renewed"
        );
        assert!(!has_expired(&mut observed, Some("8"), at(29)));
        assert!(has_expired(&mut observed, Some("8"), at(30)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stops_acting_before_others_take_over() {
        let leadership = Leadership::new(Instant::now());
        tokio::time::advance(Duration::from_secs(9)).await;
        leadership.permit().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        let late = timeout(Duration::from_secs(60), leadership.permit()).await;
        assert!(late.is_err(), "10 s after the last renewal");
        leadership.renew(Instant::now());
        leadership.permit().await;
    }
}
