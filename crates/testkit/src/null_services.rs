//! Collaborators of an update in a sandbox: an observer that agrees to everything, and no service
//! manager.

use std::{
    collections::BTreeMap,
    future::{Future, pending},
    time::Duration,
};

use machinist_plan::{ActionKind, Plan, UnitFacts};
use machinist_update::{
    reconciler::ReconcilerHooks,
    service_port::{InhibitGuard, RebootKind, RebootMethod, ServiceError, Services, StartupState},
};

/// Agrees to everything.
pub struct Quiet;

impl ReconcilerHooks for Quiet {
    async fn probe_requested(&self) {
        pending().await
    }

    fn approve(&self, _: &Plan) -> bool {
        true
    }
    fn record_beat(&self) {}
    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}

/// The service manager of an offline root: there is none, and every call panics.
pub struct NoServices;

impl Services for NoServices {
    async fn invocation(&self, _: &str) -> Result<Option<String>, ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn daemon_reload(&self) -> Result<(), ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn act(
        &self,
        _: ActionKind,
        _: &str,
        _: Duration,
        _: Duration,
    ) -> Result<(), ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn startup(&self) -> Result<StartupState, ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn failed_units(&self) -> Result<Vec<String>, ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn unit_facts(&self, _: &[String]) -> Result<BTreeMap<String, UnitFacts>, ServiceError> {
        unreachable!("no manager runs here")
    }
    async fn hold_off_shutdown(&self, _: &str) -> Option<InhibitGuard> {
        unreachable!("no manager runs here")
    }
    async fn reboot(&self, _: RebootKind, _: RebootMethod, _: &str) -> Result<(), ServiceError> {
        unreachable!("no manager runs here")
    }
    fn reboot_over(&self, _: Duration) -> impl Future<Output = ServiceError> + Send {
        pending()
    }
}
