//! Whether the machine is as well on the new config as it was before: the verdict of a boot, by what
//! the machine itself can tell.
//!
//! Pure: [`faults`] compares what was found before the update with what is found now. Who asks, how
//! often and for how long is the driver's ([`super::run`]), in the agent and in `machinist guard`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    journal::{Direction, Journal, MachineBefore, Mark},
    ports::Startup,
};

/// Services that make a machine a node: kubelets and container runtimes, by the units that their
/// packages bring. Which of them run here, and therefore must run again, is looked at before an update.
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

/// What one look at the machine found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// How far the service manager is; none when it cannot be asked.
    pub startup: Option<Startup>,
    /// Units that have failed.
    pub failed_units: BTreeSet<String>,
    /// The state of each service that ran before.
    pub services: BTreeMap<String, String>,
    /// Default gateways that answer.
    pub gateways: BTreeSet<String>,
    /// Kernel arguments that the config asks for and the kernel was not started with.
    pub missing_arguments: Vec<String>,
}

/// One thing that was better before the update.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nobody answers for the units.
    ManagerSilent,
    /// The boot is not over.
    Starting,
    /// The machine is in rescue or emergency mode.
    Maintenance,
    /// The machine goes down.
    Stopping,
    /// A unit failed that had not failed before.
    UnitFailed(String),
    /// A service that ran before does not, and its state.
    ServiceDown(String, String),
    /// A service that ran before is started again and again.
    Restarts(String),
    /// A gateway that answered before does not.
    GatewaySilent(String),
    /// The kernel runs without an argument that the config asks for.
    ArgumentMissing(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagerSilent => f.write_str("the service manager does not answer"),
            Self::Starting => f.write_str("the boot is not over"),
            Self::Maintenance => f.write_str("the machine is in rescue or emergency mode"),
            Self::Stopping => f.write_str("the machine goes down"),
            Self::UnitFailed(unit) => write!(f, "{unit} failed"),
            Self::ServiceDown(unit, state) => write!(f, "{unit} is {state} and ran before"),
            Self::Restarts(unit) => write!(f, "{unit} does not stay up"),
            Self::GatewaySilent(gateway) => {
                write!(f, "the gateway {gateway} does not answer and did before")
            }
            Self::ArgumentMissing(argument) => write!(f, "the kernel runs without {argument}"),
        }
    }
}

/// All faults in one sentence.
pub fn sentence(faults: &[Fault]) -> String {
    let all: Vec<_> = faults.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// What was better before, in a fixed order. None at all: the machine is well.
///
/// `booted`: a boot is judged. Without one only services and gateways count: what else failed just
/// now need not have to do with an update, and the units that it restarted were watched one by one.
pub fn faults(
    before: &MachineBefore,
    failed_before: &[String],
    now: &Evidence,
    booted: bool,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    if booted {
        // A machine that was not up before need not be now; one in emergency mode was never asked for.
        faults.extend(match now.startup {
            None => Some(Fault::ManagerSilent),
            Some(Startup::Maintenance) if before.up => Some(Fault::Maintenance),
            Some(Startup::Starting) if before.up => Some(Fault::Starting),
            Some(Startup::Stopping) => Some(Fault::Stopping),
            Some(_) => None,
        });
        let newly = now.failed_units.iter();
        let newly = newly.filter(|unit| !failed_before.contains(unit));
        faults.extend(newly.map(|unit| Fault::UnitFailed(unit.clone())));
        let missing = now.missing_arguments.iter().cloned();
        faults.extend(missing.map(Fault::ArgumentMissing));
    }
    for unit in &before.running {
        let state = now.services.get(unit).map_or("unknown", String::as_str);
        if !runs(state) {
            faults.push(Fault::ServiceDown(unit.clone(), state.to_owned()));
        }
    }
    let silent = before.gateways.difference(&now.gateways);
    faults.extend(silent.map(|gateway| Fault::GatewaySilent(gateway.clone())));
    faults.sort();
    faults
}

/// Whether this is the `ActiveState` of a service that does its work.
pub fn runs(state: &str) -> bool {
    matches!(state, "active" | "reloading" | "refreshing")
}

/// Whether this boot is to be judged, or the undo after a judgement to be finished: the machine has
/// booted with an update that is not verified. An update that was committed in this boot is the
/// agent's, which still has to act on it.
pub fn is_due(journal: &Journal, boot: &str) -> bool {
    journal.top().is_some_and(|tx| match tx.direction {
        Direction::Undo => tx.booted_into,
        Direction::Forward => tx.mark == Mark::Committed && tx.rebooted_since(boot),
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

    fn well() -> Evidence {
        let active = |unit: &str| (unit.to_owned(), "active".to_owned());
        Evidence {
            startup: Some(Startup::Finished),
            failed_units: names(&["old.service"]),
            services: [active("containerd.service"), active("kubelet.service")].into(),
            gateways: names(&["192.0.2.1"]),
            missing_arguments: Vec::new(),
        }
    }

    fn with(change: impl Fn(&mut Evidence)) -> Evidence {
        let mut evidence = well();
        change(&mut evidence);
        evidence
    }

    fn said(now: &Evidence, booted: bool) -> String {
        let failed = ["old.service".to_owned()];
        sentence(&faults(&before(), &failed, now, booted))
    }

    #[test]
    fn a_boot_must_end_up_with_no_unit_failed_that_had_not_failed_before() {
        type Change = fn(&mut Evidence);
        let table: [(Change, &str); 8] = [
            (|_| {}, ""),
            (|e| e.startup = None, "the service manager does not answer"),
            (
                |e| e.startup = Some(Startup::Starting),
                "the boot is not over",
            ),
            (
                |e| e.startup = Some(Startup::Maintenance),
                "the machine is in rescue or emergency mode",
            ),
            (
                |e| e.startup = Some(Startup::Stopping),
                "the machine goes down",
            ),
            (
                |e| e.failed_units.extend(["new.service".to_owned()]),
                "new.service failed",
            ),
            (|e| e.failed_units.clear(), ""),
            (
                |e| e.missing_arguments = vec!["quiet".to_owned()],
                "the kernel runs without quiet",
            ),
        ];
        for (change, words) in table {
            assert_eq!(said(&with(change), true), words);
            assert_eq!(said(&with(change), false), "", "without a boot: {words}");
        }
    }

    #[test]
    fn what_ran_and_answered_before_must_do_so_again_with_a_boot_or_without() {
        let kubelet = |state: &'static str| {
            with(move |e| {
                e.services
                    .extend([("kubelet.service".into(), state.into())])
            })
        };
        let down = |state| format!("kubelet.service is {state} and ran before");
        let silent = || "the gateway 192.0.2.1 does not answer and did before".to_owned();
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
            assert_eq!(said(&now, true), words);
            assert_eq!(said(&now, false), words);
        }
    }

    #[test]
    fn nothing_is_asked_of_a_machine_that_it_did_not_have_before() {
        let before = MachineBefore::default();
        let now = Evidence {
            startup: Some(Startup::Maintenance),
            ..Evidence::default()
        };
        assert_eq!(faults(&before, &[], &now, true), []);
    }
}
