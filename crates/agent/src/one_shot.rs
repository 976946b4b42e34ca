//! Runs a single plan or update for the command line.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::watch;

use super::{AgentError, mcd_detect, settings_mapping};
use machinist_base::maintenance_window::MaintenanceWindows;
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::{Capabilities, Plan, Policies, UnitFacts};
use machinist_rootfs::Root;
use machinist_status::settings::{Reboot, Settings};
use machinist_systemd::Systemd;
use machinist_update::{
    cache::ObservationCache,
    journal::Journal,
    observe_and_plan::{self, LookError},
    phase::Phase,
    reconciler::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateReport},
    store,
};

/// The plan from the machine's current state to `config`, or all reasons against it. Nothing is
/// changed.
pub async fn plan(
    root: &Root,
    config: &MachineConfig,
    capabilities: Capabilities,
    policies: &Policies,
) -> Result<Result<Plan, Vec<Refusal>>, LookError> {
    let journal = store::peek(root).map_err(LookError::Store)?;
    let remembered = ObservationCache::default();
    let units = units(root, &journal, config, capabilities, policies, &remembered).await?;
    let how = observe_and_plan::PlanOptions {
        policies,
        capabilities,
        units: units.as_ref(),
        only: None,
        remembered: &remembered,
    };
    Ok(observe_and_plan::observe_and_plan(root, &journal, config, how)?.plan)
}

/// The state of the units that a plan needs; none for an offline root.
pub(super) async fn units(
    root: &Root,
    journal: &Journal,
    config: &MachineConfig,
    capabilities: Capabilities,
    policies: &Policies,
    remembered: &ObservationCache,
) -> Result<Option<BTreeMap<String, UnitFacts>>, LookError> {
    if !capabilities.live {
        return Ok(None);
    }
    let names = observe_and_plan::unit_names(root, journal, config, policies, remembered)?;
    Ok(Some(
        observe_and_plan::units(&Systemd::of(root), &names).await?,
    ))
}

/// Runs one update for `apply` and `rollback`, and returns its report. `passing` is called with
/// each phase.
pub async fn apply_once(
    root: &Root,
    settings: &Settings,
    policies: Policies,
    desired: DesiredConfig,
    approve: impl Fn(&Plan) -> bool + Send + Sync + 'static,
    passing: impl Fn(Phase) + Send + 'static,
) -> Result<Arc<UpdateReport>, AgentError> {
    let capabilities = settings_mapping::capabilities(root, settings.owners)?;
    if let Some(seen) = mcd_detect::on_host(root).map_err(AgentError::Look)? {
        return Err(AgentError::OtherDaemon(seen));
    }
    let systemd = settings_mapping::manager(root, capabilities).await;
    let (_keep, desired) = watch::channel(desired);
    let once = OneShotAudience(approve);
    // An operator asked for it to be done now, including the reboot.
    let mut settings = settings.clone();
    settings.update.windows = MaintenanceWindows::default();
    if settings.update.reboot == Reboot::Ask {
        settings.update.reboot = Reboot::Auto;
    }
    let conduct = settings_mapping::reconciler_options(&settings, capabilities, Arc::new(policies));
    let provider = settings_mapping::os_provider(root, systemd.as_ref());
    let (driver, mut reports) =
        Reconciler::new(root, systemd, once, conduct, desired).map_err(Box::new)?;
    let driver = driver.with_os_provider(provider);
    // Ends with the reconciler, which holds the sender.
    let heard = tokio::spawn(async move {
        while reports.changed().await.is_ok() {
            passing(reports.borrow_and_update().phase);
        }
    });
    let stop = tokio_util::sync::CancellationToken::new();
    let ended = driver.run_once(stop).await.map_err(Box::new);
    // Wait, so that no phase is printed after the result; a panic in it only concerns output.
    let _ = heard.await;
    Ok(ended?)
}

/// Approves plans through a callback, and publishes to no one else.
pub(super) struct OneShotAudience<F>(pub(super) F);

impl<F: Fn(&Plan) -> bool + Send + Sync + 'static> ReconcilerHooks for OneShotAudience<F> {
    fn approve(&self, plan: &Plan) -> bool {
        (self.0)(plan)
    }

    fn record_beat(&self) {}

    async fn gateways(&self) -> BTreeSet<String> {
        super::gateways().await
    }

    async fn probe_requested(&self) {
        std::future::pending().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}
