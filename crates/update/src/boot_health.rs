//! Compares the health of the machine after an update with its health before, to judge a boot by what the machine
//! itself can observe.
//!
//! This module is pure: [`faults`] compares the evidence from before the update with the evidence now.
//! [`super::reconciler`] collects the evidence, in the agent and in `machinist guard`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    journal::{Direction, Journal, MachineBefore, TransactionState},
    service_port::StartupState,
};

/// Kubelets and container runtimes, by the unit names of their packages. Before an update, the ones that are
/// running are recorded, and these must run again after it.
pub const NODE_SERVICES: [&str; 11] = [
    "containerd.service",
    "cri-docker.service",
    "crio.service",
    "docker.service",
    "k0scontroller.service",
    "k0sworker.service",
    "k3s-agent.service",
    "k3s.service",
    "kubelet.service",
    "rke2-agent.service",
    "rke2-server.service",
];

/// Health of the machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootHealth {
    /// Startup state of the system; `None` if service manager does not respond.
    pub startup: Option<StartupState>,
    /// Units that have failed.
    pub failed_units: BTreeSet<String>,
    /// `ActiveState` of each service that ran before.
    pub services: BTreeMap<String, String>,
    /// Default gateways that answer.
    pub gateways: BTreeSet<String>,
    /// Kernel arguments that the config names and the running kernel lacks.
    pub missing_arguments: Vec<String>,
}

/// One regression since the update.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regression {
    /// The service manager does not answer.
    ManagerSilent,
    /// The boot has not finished.
    Starting,
    /// The machine is in rescue or emergency mode.
    Maintenance,
    /// The system is shutting down.
    Stopping,
    /// A unit has failed that had not failed before.
    UnitFailed(String),
    /// A service that ran before is not running; with its state.
    ServiceDown(String, String),
    /// A service that ran before restarts repeatedly.
    Restarts(String),
    /// A gateway that answered before does not answer.
    GatewaySilent(String),
    /// The running kernel lacks an argument of the config.
    ArgumentMissing(String),
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagerSilent => f.write_str("service manager does not respond"),
            Self::Starting => f.write_str("the boot is not finished"),
            Self::Maintenance => f.write_str("the machine is in rescue or emergency mode"),
            Self::Stopping => f.write_str("the machine is shutting down"),
            Self::UnitFailed(unit) => write!(f, "{unit} failed"),
            Self::ServiceDown(unit, state) => {
                write!(f, "{unit} is {state}, but was running before")
            }
            Self::Restarts(unit) => write!(f, "{unit} keeps restarting"),
            Self::GatewaySilent(gateway) => {
                write!(
                    f,
                    "gateway {gateway} is unreachable, but was reachable before"
                )
            }
            Self::ArgumentMissing(argument) => write!(f, "kernel argument {argument} is missing"),
        }
    }
}

/// Joins all faults into one sentence.
pub fn sentence(faults: &[Regression]) -> String {
    let all: Vec<_> = faults.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// Returns all regressions in a fixed order. If there is none, the machine is healthy.
///
/// `booted`: a boot is judged. Without a boot, only services and gateways count: other failures need not be related
/// to the update, and the units that it restarted were watched individually.
pub fn faults(
    before: &MachineBefore,
    failed_before: &[String],
    now: &BootHealth,
    booted: bool,
) -> Vec<Regression> {
    let mut faults = Vec::new();
    if booted {
        // If the machine was not fully up before the update, an unfinished boot or maintenance mode now is not a
        // regression.
        faults.extend(match now.startup {
            None => Some(Regression::ManagerSilent),
            Some(StartupState::Maintenance) if before.up => Some(Regression::Maintenance),
            Some(StartupState::Starting) if before.up => Some(Regression::Starting),
            Some(StartupState::Stopping) => Some(Regression::Stopping),
            Some(_) => None,
        });
        let newly = now.failed_units.iter();
        let newly = newly.filter(|unit| !failed_before.contains(unit));
        faults.extend(newly.map(|unit| Regression::UnitFailed(unit.clone())));
        let missing = now.missing_arguments.iter().cloned();
        faults.extend(missing.map(Regression::ArgumentMissing));
    }
    for unit in &before.running {
        let state = now.services.get(unit).map_or("unknown", String::as_str);
        if !runs(state) {
            faults.push(Regression::ServiceDown(unit.clone(), state.to_owned()));
        }
    }
    let silent = before.gateways.difference(&now.gateways);
    faults.extend(silent.map(|gateway| Regression::GatewaySilent(gateway.clone())));
    faults.sort();
    faults
}

/// Returns whether `state` is the `ActiveState` of a running service.
pub fn runs(state: &str) -> bool {
    matches!(state, "active" | "reloading" | "refreshing")
}

/// Returns whether this boot must be judged, or the undo after a failed judgement must be finished: the machine has
/// booted with an unverified update. An update that was committed in this boot is left to the agent, which still
/// has to carry out its actions.
pub fn is_due(journal: &Journal, boot: &str) -> bool {
    let trial = journal.os_trial.as_ref();
    // Its files are rolled back in the previous deployment, whose boot is still to come or to be finished.
    let leaves_deployment = trial.is_some_and(|trial| trial.leaving_boot.is_some());
    journal.top().is_some_and(|tx| match tx.direction {
        Direction::Undo => tx.booted_into || leaves_deployment,
        Direction::Forward => tx.mark == TransactionState::Committed && tx.rebooted_since(boot),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn before() -> MachineBefore {
        MachineBefore {
            up: true,
            running: names(&["containerd.service", "kubelet.service"]),
            gateways: names(&["192.0.2.1"]),
        }
    }

    fn healthy_boot() -> BootHealth {
        let active = |unit: &str| (unit.to_owned(), "active".to_owned());
        BootHealth {
            startup: Some(StartupState::Finished),
            failed_units: names(&["old.service"]),
            services: [active("containerd.service"), active("kubelet.service")].into(),
            gateways: names(&["192.0.2.1"]),
            missing_arguments: Vec::new(),
        }
    }

    fn with(change: impl Fn(&mut BootHealth)) -> BootHealth {
        let mut evidence = healthy_boot();
        change(&mut evidence);
        evidence
    }

    fn regression_text(now: &BootHealth, booted: bool) -> String {
        let failed = ["old.service".to_owned()];
        sentence(&faults(&before(), &failed, now, booted))
    }

    #[test]
    fn a_boot_with_newly_failed_units_is_unhealthy() {
        type Change = fn(&mut BootHealth);
        let table: [(Change, &str); 8] = [
            (|_| {}, ""),
            (|e| e.startup = None, "service manager does not respond"),
            (
                |e| e.startup = Some(StartupState::Starting),
                "the boot is not finished",
            ),
            (
                |e| e.startup = Some(StartupState::Maintenance),
                "the machine is in rescue or emergency mode",
            ),
            (
                |e| e.startup = Some(StartupState::Stopping),
                "the machine is shutting down",
            ),
            (
                |e| e.failed_units.extend(["new.service".to_owned()]),
                "new.service failed",
            ),
            (|e| e.failed_units.clear(), ""),
            (
                |e| e.missing_arguments = vec!["quiet".to_owned()],
                "kernel argument quiet is missing",
            ),
        ];
        for (change, words) in table {
            assert_eq!(regression_text(&with(change), true), words);
            assert_eq!(
                regression_text(&with(change), false),
                "",
                "without a boot: {words}"
            );
        }
    }

    #[test]
    fn a_service_or_gateway_lost_since_the_update_is_unhealthy() {
        let kubelet = |state: &'static str| {
            with(move |e| {
                e.services
                    .extend([("kubelet.service".into(), state.into())])
            })
        };
        let down = |state| format!("kubelet.service is {state}, but was running before");
        let silent = || "gateway 192.0.2.1 is unreachable, but was reachable before".to_owned();
        let other = || "192.0.2.9".to_owned();
        let unknown = with(|e| e.services.retain(|unit, _| unit != "kubelet.service"));
        let table = [
            (kubelet("activating"), down("activating")),
            (kubelet("inactive"), down("inactive")),
            (kubelet("failed"), down("failed")),
            (kubelet("reloading"), String::new()),
            (unknown, down("unknown")),
            (with(|e| e.gateways.clear()), silent()),
            (with(|e| e.gateways = [other()].into()), silent()),
            (with(|e| e.gateways.extend([other()])), String::new()),
        ];
        for (now, words) in table {
            assert_eq!(regression_text(&now, true), words);
            assert_eq!(regression_text(&now, false), words);
        }
    }

    #[test]
    fn health_that_was_absent_before_the_update_is_not_required() {
        let before = MachineBefore::default();
        let now = BootHealth {
            startup: Some(StartupState::Maintenance),
            ..BootHealth::default()
        };
        assert_eq!(faults(&before, &[], &now, true), []);
    }
}
