//! Writes the merged disruption policies into the status of MachineConfiguration `cluster`, as OpenShift's operator does.
//!
//! The agents read the spec ([`machinist_cluster::cluster_policies`]); the status is for people, and for programs that
//! know OpenShift's. A failure therefore stops nothing else, and an invalid spec leaves the last valid status.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    failure_log::log_failure, inbox::ReportedChanges, policy_object::PolicyObject,
    requests::LeaderRequests,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};
use machinist_ignition::Refusal;
use machinist_kube_api::keys;
use machinist_plan::cluster_policies;

/// The shortest time between two writes, if another client changes the status, too.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Wait after a failed write.
const STATUS_BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));

/// Writes the merged policies, only on change.
#[derive(Debug, Default)]
pub(crate) struct PolicyStatusWriter {
    /// None if the object or its kind does not exist, or must not be read.
    object: Option<PolicyObject>,
    /// UID and version of the object for which nothing is left to write.
    settled: Option<(String, String)>,
    /// UID and generation of the last spec that was reported as invalid.
    reported: Option<(String, i64)>,
    next_write: Option<Instant>,
    failures: u32,
}

impl PolicyStatusWriter {
    /// Takes the reports of the watch.
    pub(crate) fn take(&mut self, reports: ReportedChanges<PolicyObject>) {
        if let Some(listed) = reports.listed {
            self.object = listed.into_iter().next();
        }
        for (_, object) in reports.changes {
            self.object = object;
        }
    }

    /// The object with its spec alone; none if there is no object.
    pub(crate) fn spec(&self) -> Option<&Value> {
        self.object.as_ref().map(|object| &object.spec)
    }

    /// Writes the status if it is due. Returns when it will be.
    pub(crate) async fn turn(&mut self, requests: &LeaderRequests) -> Option<Instant> {
        let object = self.object.as_ref()?;
        let version = (object.uid.clone(), object.resource_version.clone());
        if self.settled.as_ref() == Some(&version) {
            return None;
        }
        let merged = match cluster_policies(&object.spec) {
            Ok(merged) if !object.has(&merged) => merged,
            Ok(_) => {
                self.settled = Some(version);
                return None;
            }
            Err(refusals) => {
                let spec = (object.uid.clone(), object.generation);
                if self.reported.as_ref() != Some(&spec) {
                    report(&refusals, &object.uid, requests);
                }
                (self.reported, self.settled) = (Some(spec), Some(version));
                return None;
            }
        };
        let now = Instant::now();
        if let Some(next) = self.next_write.filter(|next| *next > now) {
            return Some(next);
        }
        let patch = object.status_patch(&merged);
        let wait = match requests.patch_policy_status(&patch).await {
            Ok(written) => {
                let generation = written.generation;
                tracing::info!("merged the disruption policies of generation {generation}");
                self.settled = Some((written.uid.clone(), written.resource_version.clone()));
                self.object = Some(written);
                self.failures = 0;
                self.next_write = Some(now + STATUS_INTERVAL);
                return None;
            }
            // The watch reports the change.
            Err(error) if matches!(error.code(), 404 | 409) => {
                tracing::debug!("{}", chain(&error));
                STATUS_INTERVAL
            }
            Err(error) => {
                log_failure(&error, self.failures == 0);
                let wait = STATUS_BACKOFF.wait(self.failures, jitter());
                self.failures = self.failures.saturating_add(1);
                wait.max(error.retry_after().unwrap_or_default())
            }
        };
        self.next_write = Some(now + wait);
        self.next_write
    }
}

/// Reports an invalid spec to the log and as an event.
fn report(refusals: &[Refusal], uid: &str, requests: &LeaderRequests) {
    let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    let message = all.join("; ");
    let name = keys::MACHINE_CONFIGURATION;
    tracing::warn!("MachineConfiguration {name} keeps its last merged policies: {message}");
    requests.events().policies_invalid(uid, message);
}
