//! The agent's reconciler, running on a machine that has had its config for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use machinist_ignition::MachineConfig;
use machinist_plan::{Capabilities, Plan, Policies};
use machinist_systemd::Systemd;
use machinist_update::{
    phase::Phase,
    reconciler::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateReport},
};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::tree::Machinist;

/// An observer that ignores reports and approves everything.
struct NoServices;

impl ReconcilerHooks for NoServices {
    fn approve(&self, _: &Plan) -> bool {
        true
    }

    fn record_beat(&self) {}

    async fn gateways(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    async fn probe_requested(&self) {
        std::future::pending().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}

pub(crate) struct Running<'a> {
    machinist: &'a Machinist,
    desired: watch::Sender<DesiredConfig>,
    reports: watch::Receiver<Arc<UpdateReport>>,
    _stop: DropGuard,
}

impl<'a> Running<'a> {
    pub(crate) fn on(machinist: &'a Machinist) -> Self {
        let capabilities: Capabilities =
            machinist_agent::read_only_capabilities(&machinist.root, machinist.settings.owners);
        let policies = Arc::new(Policies::default());
        let conduct =
            machinist_agent::reconciler_options(&machinist.settings, capabilities, policies);
        let (desired, source) = watch::channel(DesiredConfig::Unknown);
        let made = Reconciler::new(
            &machinist.root,
            None::<Systemd>,
            NoServices,
            conduct,
            source,
        );
        let (updater, reports) = made.unwrap();
        let stop = CancellationToken::new();
        machinist.runtime.spawn(updater.run(stop.clone()));
        Self {
            machinist,
            desired,
            reports,
            _stop: stop.drop_guard(),
        }
    }

    /// From the config until it is applied and verified.
    pub(crate) fn apply(&mut self, config: MachineConfig) {
        let digest = machinist_ignition::digest(&config);
        let config = Arc::new(config);
        self.desired
            .send_replace(DesiredConfig::Config(config, digest));
        let done = self.reports.wait_for(|report| {
            assert_eq!(report.failure, None);
            let current = report.config.current.as_ref();
            report.phase == Phase::Idle
                && !report.unverified
                && current.is_some_and(|current| current.digest == digest)
        });
        self.machinist.runtime.block_on(done).unwrap();
    }
}
