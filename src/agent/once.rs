//! One plan or one update that ends by itself, for the command line.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::watch;

use super::{AgentError, other_daemon, setup};
use crate::{
    config::{Reboot, Settings},
    machine_config::{MachineConfig, Refusal},
    plan::{Capabilities, Plan, Policies, UnitFacts},
    root::Root,
    systemd::Systemd,
    update::{
        journal::Journal,
        look::{self, LookError},
        phase::Phase,
        remembered::Remembered,
        run::{Audience, Desired, UpdateReport, Updater},
        store,
    },
    window::Windows,
};

/// The plan from where the machine is to `config`, or every reason against it. Nothing is changed.
pub async fn plan(
    root: &Root,
    config: &MachineConfig,
    capabilities: Capabilities,
    policies: &Policies,
) -> Result<Result<Plan, Vec<Refusal>>, LookError> {
    let journal = store::peek(root).map_err(LookError::Store)?;
    let remembered = Remembered::default();
    let units = units(root, &journal, config, capabilities, policies, &remembered).await?;
    let how = look::How {
        policies,
        capabilities,
        units: units.as_ref(),
        only: None,
        remembered: &remembered,
    };
    Ok(look::look(root, &journal, config, how)?.plan)
}

/// What a plan must know of the units of a running machine; none where none runs.
pub(super) async fn units(
    root: &Root,
    journal: &Journal,
    config: &MachineConfig,
    capabilities: Capabilities,
    policies: &Policies,
    remembered: &Remembered,
) -> Result<Option<BTreeMap<String, UnitFacts>>, LookError> {
    if !capabilities.live {
        return Ok(None);
    }
    let names = look::unit_names(root, journal, config, policies, remembered)?;
    Ok(Some(look::units(&Systemd::of(root), &names).await?))
}

/// A report of one update that ends by itself, for `apply` and `rollback`. `passing` hears the phases.
pub async fn apply_once(
    root: &Root,
    settings: &Settings,
    policies: Policies,
    desired: Desired,
    approve: impl Fn(&Plan) -> bool + Send + Sync + 'static,
    passing: impl Fn(Phase) + Send + 'static,
) -> Result<Arc<UpdateReport>, AgentError> {
    let capabilities = setup::capabilities(root, settings.owners)?;
    if let Some(seen) = other_daemon::on_host(root).map_err(AgentError::Look)? {
        return Err(AgentError::OtherDaemon(seen));
    }
    let systemd = setup::manager(root, capabilities).await;
    let (_keep, desired) = watch::channel(desired);
    let once = Once(approve);
    // A person is here and has said now, reboot included.
    let mut settings = settings.clone();
    settings.update.windows = Windows::default();
    if settings.update.reboot == Reboot::Ask {
        settings.update.reboot = Reboot::Auto;
    }
    let conduct = setup::conduct(&settings, capabilities, Arc::new(policies));
    let (driver, mut reports) =
        Updater::new(root, systemd, once, conduct, desired).map_err(Box::new)?;
    // Ends with the driver, which holds the other end.
    let heard = tokio::spawn(async move {
        while reports.changed().await.is_ok() {
            passing(reports.borrow_and_update().phase);
        }
    });
    let stop = tokio_util::sync::CancellationToken::new();
    let ended = driver.run_once(stop).await.map_err(Box::new);
    // Nothing of it comes after what is printed next; a panic in it was only about showing.
    let _ = heard.await;
    Ok(ended?)
}

/// Asked once, and nobody but the one who asks listens.
pub(super) struct Once<F>(pub(super) F);

impl<F: Fn(&Plan) -> bool + Send + Sync + 'static> Audience for Once<F> {
    fn approve(&self, plan: &Plan) -> bool {
        (self.0)(plan)
    }

    fn beat(&self) {}

    async fn gateways(&self) -> BTreeSet<String> {
        super::gateways().await
    }

    async fn asked(&self) {
        std::future::pending().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}
