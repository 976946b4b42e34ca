//! Chooses the actions that one change needs, with the policy rule and the reason.

use super::{
    ActionKind, ChangeKind,
    actions::ActionNeed,
    enablement::{UNIT_DIR, unit_name},
    policy::{DisruptionPolicy, Policies, RequiredAction, registries_conf},
    soft_reboot,
    unit_state::{MachineUnits, ReloadMethod},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::EntryKind;

/// The rule that applies if no other does.
const DEFAULT_RULE: &str = "default";
/// The rule for units that no policy names.
const UNITS_RULE: &str = "builtin:units";
/// The reason to start a unit that existed before and does not run.
const NOT_RUNNING: &str = "enabled but not running, so it is started";

/// The needs of one change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Disruption {
    pub(super) policy: String,
    pub(super) needs: Vec<ActionNeed>,
    /// Clauses of the reason, joined into one sentence.
    pub(super) why: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Disruption {
    /// Leaves out a reboot: the running boot started with the content that is restored.
    pub(super) fn without_reboot(mut self) -> Self {
        let count = self.needs.len();
        let reboots = |kind| matches!(kind, ActionKind::Reboot | ActionKind::SoftReboot);
        self.needs.retain(|need| !reboots(need.kind));
        if self.needs.len() < count {
            self.why = vec!["a user changed it, so that no reboot is needed".to_owned()];
        }
        self
    }
}

/// The part of a verdict that remains after its change has been recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RequiredActions {
    pub(super) needs: Vec<ActionNeed>,
    pub(super) warnings: Vec<String>,
}

/// One change, as far as a verdict depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeContext<'a> {
    pub(super) kind: EntryKind,
    /// The path, unit or user.
    pub(super) name: &'a str,
    pub(super) change: ChangeKind,
    /// The units that would run at boot because of their enablement.
    pub(super) starts: &'a [String],
    /// The path of files and drop-ins.
    pub(super) path: Option<&'a AbsPath>,
}

/// Whether a soft reboot can replace a reboot.
enum SoftRebootFit {
    /// The settings do not allow it.
    Never,
    /// It is allowed and sufficient.
    Enough,
    /// It would not be sufficient.
    NotEnough,
    /// The machine does not support it.
    NotOffered,
}

/// Applies the policies, then the rules for units, then the default.
pub(super) struct DisruptionResolver<'a> {
    pub(super) policies: &'a Policies,
    pub(super) machine: MachineUnits<'a>,
}

impl DisruptionResolver<'_> {
    /// The verdict on one change.
    pub(super) fn disruption(&self, subject: ChangeContext<'_>) -> Disruption {
        match subject.kind {
            EntryKind::File | EntryKind::Directory | EntryKind::Link => {
                let policy = subject.path.and_then(|path| self.policies.for_path(path));
                match (policy, self.machine.unit_at(subject.kind, subject.name)) {
                    (Some(policy), _) => self.by_policy(policy, subject),
                    (None, Some((kind, name))) => {
                        let name = &name;
                        self.of_unit(ChangeContext {
                            kind,
                            name,
                            ..subject
                        })
                    }
                    (None, None) => self.reboot_for(subject),
                }
            }
            EntryKind::SSHKey => self.by_policy(self.policies.for_ssh_key(), subject),
            EntryKind::Unit | EntryKind::DropIn | EntryKind::Enablement | EntryKind::Mask => {
                self.of_unit(subject)
            }
            // Programs look accounts up on each use, so no action is needed.
            EntryKind::User | EntryKind::Group => Disruption {
                policy: "builtin:accounts".to_owned(),
                ..Disruption::default()
            },
            EntryKind::KernelArgument | EntryKind::OSImage | EntryKind::Extension => {
                reboot("operating system changes take effect at boot")
            }
        }
    }

    fn by_policy(&self, policy: &DisruptionPolicy, subject: ChangeContext<'_>) -> Disruption {
        let mut verdict = Disruption {
            policy: policy.name.clone(),
            ..Disruption::default()
        };
        if policy.demands.is_empty() {
            verdict.why.push("its policy requires no action".to_owned());
        }
        for demand in &policy.demands {
            self.add_demand(demand, subject, &mut verdict);
        }
        if let Some(note) = policy.on_removal
            && subject.change == ChangeKind::Remove
        {
            verdict
                .warnings
                .push(format!("{} is removed, but {note}", subject.name));
        }
        verdict
    }

    /// Why a change of `registries.conf` needs no drain: by OpenShift's rule, the desired content keeps the image that
    /// every name resolves to. None if it may change it. A file that is created, removed or not world-readable may change it.
    fn same_images(&self, path: &AbsPath) -> Option<String> {
        let wanted = self.machine.to.files.get(path)?.content.as_ref()?;
        let new = std::str::from_utf8(wanted.bytes()?).ok()?;
        let old = self.machine.observed.texts.get(path)?;
        if !registries_conf::same_images(old, new) {
            return None;
        }
        let taken = registries_conf::taken_names(old, new);
        let taken: Vec<String> = taken
            .iter()
            .map(|(name, general)| format!("{name} no longer has the settings of {general}"))
            .collect();
        Some(match taken.is_empty() {
            true => "every image name still resolves to the same image".to_owned(),
            false => format!(
                "no drain, as in OpenShift's daemon, although {}",
                taken.join(", ")
            ),
        })
    }

    fn add_demand(
        &self,
        demand: &RequiredAction,
        subject: ChangeContext<'_>,
        verdict: &mut Disruption,
    ) {
        let (kind, names, once, flexible) = match demand {
            RequiredAction::Machine(kind) => {
                verdict.needs.push(ActionNeed::machine(*kind));
                verdict
                    .why
                    .push(format!("its policy requires a {}", word(*kind)));
                return;
            }
            RequiredAction::Unit {
                kind,
                names,
                once,
                flexible,
            } => (*kind, names, *once, *flexible),
        };
        let present: Vec<&String> = names
            .iter()
            .filter(|unit| self.machine.exists(unit) && !self.machine.masked(unit))
            .filter(|unit| unit_name::shape(unit) != Some(unit_name::UnitNameShape::Template))
            .collect();
        // A oneshot that makes the change effective need not be active; the first existing one is
        // used.
        let runs = |unit: &&&String| once || self.machine.active(unit) != Some(false);
        let Some(unit) = present.iter().find(runs).or(present.first()) else {
            verdict.why.push(format!(
                "no {} on this machine, no action needed",
                names.join(" or ")
            ));
            return;
        };
        if self.machine.active(unit) == Some(false) && !once && !subject.starts.contains(unit) {
            verdict
                .why
                .push(format!("{unit} is not running, no action needed"));
            return;
        }
        self.add_unit_need(kind, unit, (flexible, subject), verdict);
    }

    fn add_unit_need(
        &self,
        kind: ActionKind,
        unit: &str,
        (flexible, subject): (bool, ChangeContext<'_>),
        verdict: &mut Disruption,
    ) {
        if kind == ActionKind::Special {
            let same = subject.path.and_then(|path| self.same_images(path));
            if same.is_none() {
                verdict.needs.push(ActionNeed::machine(ActionKind::Drain));
            }
            let then = same.unwrap_or_else(|| {
                "images may be pulled from another registry, so the node is drained first"
                    .to_owned()
            });
            verdict
                .needs
                .push(ActionNeed::unit(ActionKind::Reload, unit));
            verdict.why.push(format!("{unit} is reloaded; {then}"));
            return;
        }
        let kind = if flexible && kind == ActionKind::Reload && !self.machine.can_reload(unit) {
            ActionKind::Restart
        } else {
            kind
        };
        if flexible
            && kind == ActionKind::Restart
            && let Some(why) = self.machine.no_restart(unit)
        {
            let (need, instead) = self.unit_reboot(unit);
            verdict.needs.push(need);
            verdict
                .why
                .push(format!("{unit} needs a restart, but {why}{instead}"));
            return;
        }
        verdict.needs.push(ActionNeed::unit(kind, unit));
        verdict.why.push(match kind {
            ActionKind::Reload => format!("{unit} is reloaded"),
            _ => format!("{unit} is restarted"),
        });
    }

    /// The reboot for a change that no rule covers: it makes every change effective.
    fn reboot_for(&self, subject: ChangeContext<'_>) -> Disruption {
        let kernel = !subject.path.is_some_and(soft_reboot::takes_path);
        let (kind, why) = match self.soft_reboot(!kernel) {
            SoftRebootFit::Never => (
                ActionKind::Reboot,
                "no policy matches, so a reboot is required",
            ),
            SoftRebootFit::Enough => (
                ActionKind::SoftReboot,
                "no policy matches and only userspace reads it, so a soft reboot is enough \
                 (update.softReboot)",
            ),
            SoftRebootFit::NotEnough => (
                ActionKind::Reboot,
                "no policy matches and the kernel or early boot may read it, so a full reboot is \
                 required",
            ),
            SoftRebootFit::NotOffered => (
                ActionKind::Reboot,
                "no policy matches, so a reboot is required; this systemd has no soft-reboot",
            ),
        };
        Disruption {
            policy: DEFAULT_RULE.to_owned(),
            needs: vec![ActionNeed::machine(kind)],
            why: vec![why.to_owned()],
            warnings: Vec::new(),
        }
    }

    /// The reboot for a unit that cannot be restarted, with the rest of the sentence.
    fn unit_reboot(&self, unit: &str) -> (ActionNeed, &'static str) {
        let (kind, rest) = match self.soft_reboot(soft_reboot::takes_unit(unit)) {
            SoftRebootFit::Never => (ActionKind::Reboot, ""),
            SoftRebootFit::Enough => (
                ActionKind::SoftReboot,
                "; a soft reboot restarts it (update.softReboot)",
            ),
            SoftRebootFit::NotEnough => (
                ActionKind::Reboot,
                "; a soft reboot does not reset its kernel \
                 state",
            ),
            SoftRebootFit::NotOffered => (ActionKind::Reboot, "; this systemd has no soft-reboot"),
        };
        (ActionNeed::machine(kind), rest)
    }

    fn soft_reboot(&self, enough: bool) -> SoftRebootFit {
        match (
            self.policies.soft_reboots(),
            enough,
            self.machine.offers_soft_reboots(),
        ) {
            (false, ..) => SoftRebootFit::Never,
            (_, false, _) => SoftRebootFit::NotEnough,
            (_, _, false) => SoftRebootFit::NotOffered,
            _ => SoftRebootFit::Enough,
        }
    }

    fn of_unit(&self, subject: ChangeContext<'_>) -> Disruption {
        let unit = subject.name.split('/').next().unwrap_or_default();
        let dropin = subject.path.filter(|_| subject.kind == EntryKind::DropIn);
        let directory = AbsPath::new(format!("{UNIT_DIR}/{unit}.d")).ok();
        if let Some(policy) = self.policies.for_unit(unit) {
            return self.by_policy(policy, subject);
        }
        if let Some(policy) = dropin
            .zip(directory)
            .and_then(|(path, above)| self.policies.for_path_within(path, &above))
        {
            return self.by_policy(policy, subject);
        }
        let mut verdict = Disruption {
            policy: UNITS_RULE.to_owned(),
            ..Disruption::default()
        };
        match (subject.kind, subject.change) {
            (EntryKind::Mask, ChangeKind::Create | ChangeKind::Modify) => {
                self.stops(unit, "masked", &mut verdict)
            }
            (EntryKind::Mask, ChangeKind::Remove) => {
                verdict.why.push("the unit can be started again".to_owned())
            }
            (EntryKind::Enablement, ChangeKind::Remove) => {
                self.stops(unit, "disabled", &mut verdict)
            }
            (EntryKind::Enablement, _) => {
                self.starts(subject, "enabled, so it is started", &mut verdict)
            }
            (EntryKind::Unit, ChangeKind::Remove) if !self.machine.has_vendor_file(unit) => {
                self.stops(unit, "unit file removed", &mut verdict)
            }
            _ => self.content_changed(unit, subject, &mut verdict),
        }
        verdict
            .needs
            .push(ActionNeed::machine(ActionKind::DaemonReload));
        verdict
    }

    fn stops(&self, unit: &str, state: &str, verdict: &mut Disruption) {
        if unit_name::shape(unit) == Some(unit_name::UnitNameShape::Template) {
            // systemd does not stop templates, and `systemctl disable` or `mask` of one leaves its
            // instances alone.
            let why =
                format!("{state}; a template has no process, and its instances are not changed");
            verdict.why.push(why);
        } else if self.machine.active(unit) != Some(false) {
            verdict.needs.push(ActionNeed::unit(ActionKind::Stop, unit));
            let why = format!("{state}, so it is stopped");
            verdict.why.push(self.as_it_runs(&why, state));
        } else {
            verdict.why.push(format!("{state}; it is not running"));
        }
    }

    fn starts(&self, subject: ChangeContext<'_>, why: &str, verdict: &mut Disruption) {
        let waiting =
            |unit: &&String| self.machine.active(unit) != Some(true) && !self.machine.masked(unit);
        let mut any = false;
        for unit in subject.starts.iter().filter(waiting) {
            verdict
                .needs
                .push(ActionNeed::unit(ActionKind::Restart, unit));
            any = true;
        }
        verdict.why.push(if any {
            let otherwise = match why == NOT_RUNNING {
                true => "changed and enabled",
                false => "enabled",
            };
            self.as_it_runs(why, otherwise)
        } else {
            "enabled; no unit to start".to_owned()
        });
    }

    fn content_changed(&self, unit: &str, subject: ChangeContext<'_>, verdict: &mut Disruption) {
        let is_template = unit_name::shape(unit) == Some(unit_name::UnitNameShape::Template);
        let running: Vec<String> = match self.machine.active(unit) {
            Some(true) => vec![unit.to_owned()],
            // The service manager cannot be queried: a unit that existed before may run.
            None if subject.change != ChangeKind::Create && !is_template => vec![unit.to_owned()],
            _ => self.machine.instances(unit),
        };
        for unit in &running {
            self.add_reload(unit, verdict);
        }
        if !running.is_empty() {
            return;
        }
        let new = subject.change == ChangeKind::Create && subject.kind == EntryKind::Unit;
        if !subject.starts.is_empty() && (new || !self.machine.runs_once(unit)) {
            let why = if new {
                "enabled, so it is started"
            } else {
                NOT_RUNNING
            };
            self.starts(subject, why, verdict);
        } else {
            let why = self.as_it_runs(
                "it is not running; systemd reloads the unit file",
                "systemd reads the unit file at the next boot",
            );
            verdict.why.push(why);
        }
    }

    /// Returns `why` on a live root, and `otherwise` on an offline root, where no unit runs.
    fn as_it_runs(&self, why: &str, otherwise: &str) -> String {
        let live = self.machine.live;
        (if live { why } else { otherwise }).to_owned()
    }

    fn add_reload(&self, unit: &str, verdict: &mut Disruption) {
        match self.machine.reload_method(unit) {
            ReloadMethod::Restart => {
                if let Some(service) = self.machine.service_of(unit)
                    && self.machine.active(&service) == Some(true)
                {
                    // systemd refuses to start a socket while its service runs.
                    verdict
                        .needs
                        .push(ActionNeed::unit(ActionKind::Stop, &service));
                    verdict
                        .needs
                        .push(ActionNeed::unit(ActionKind::Restart, &service));
                }
                verdict
                    .needs
                    .push(ActionNeed::unit(ActionKind::Restart, unit));
                verdict.why.push(self.as_it_runs(
                    "it is running, so it is restarted",
                    "it would be restarted on a running machine",
                ));
            }
            ReloadMethod::Reload => {
                verdict
                    .needs
                    .push(ActionNeed::unit(ActionKind::Reload, unit));
                verdict.why.push(self.as_it_runs(
                    "it is running, so it is reloaded",
                    "it would be reloaded on a running machine",
                ));
            }
            ReloadMethod::Nothing(why) => verdict.why.push(why.to_owned()),
            ReloadMethod::Reboot(why) => {
                let (need, instead) = self.unit_reboot(unit);
                verdict.needs.push(need);
                let what = self.as_it_runs("it is running and", "if it is running, it");
                verdict
                    .why
                    .push(format!("{what} cannot be restarted: {why}{instead}"));
            }
        }
    }
}

fn reboot(why: &str) -> Disruption {
    Disruption {
        policy: DEFAULT_RULE.to_owned(),
        needs: vec![ActionNeed::machine(ActionKind::Reboot)],
        why: vec![why.to_owned()],
        warnings: Vec::new(),
    }
}

fn word(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Drain => "drain",
        ActionKind::DaemonReload => "daemon-reload",
        ActionKind::Stop => "stop",
        ActionKind::Reload => "reload",
        ActionKind::Restart => "restart",
        ActionKind::Special => "reload with a drain",
        ActionKind::SoftReboot => "soft reboot",
        ActionKind::Reboot => "reboot",
    }
}
