//! Which actions one change needs, by which rule, and why – in words.

use super::{
    ActionKind, ChangeKind,
    actions::Need,
    linkset::{UNIT_DIR, name},
    machine::{Machine, Uptake},
    policy::{Demand, Policies, Policy, registries},
    soft,
};
use crate::{machine_config::EntryKind, path::AbsPath};

/// The rule that applies where no other does.
const DEFAULT: &str = "default";
/// The rule for units that no policy names.
const UNITS: &str = "builtin:units";

/// What one change needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub(super) policy: String,
    pub(super) needs: Vec<Need>,
    /// Half-sentences for people, joined into one.
    pub(super) why: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// What is left of a verdict once its change is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Needed {
    pub(super) needs: Vec<Need>,
    pub(super) warnings: Vec<String>,
}

/// One change, as far as a verdict depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) kind: EntryKind,
    /// The path, the unit, the user.
    pub(super) name: &'a str,
    pub(super) change: ChangeKind,
    /// The units that would run at boot by their enablement.
    pub(super) starts: &'a [String],
    /// The path for files and drop-ins.
    pub(super) path: Option<&'a AbsPath>,
}

/// Whether userspace alone may be restarted.
enum Soft {
    /// The settings do not want it.
    Never,
    /// It may, and that is enough.
    Enough,
    /// It would not be enough.
    NotEnough,
    /// The machine cannot do it.
    NotOffered,
}

/// Asks the policies, then the rules for units, then the default.
pub(super) struct Judge<'a> {
    pub(super) policies: &'a Policies,
    pub(super) machine: Machine<'a>,
}

impl Judge<'_> {
    /// The verdict on one change.
    pub(super) fn verdict(&self, subject: Subject<'_>) -> Verdict {
        match subject.kind {
            EntryKind::File | EntryKind::Directory | EntryKind::Link => {
                match subject.path.and_then(|path| self.policies.for_path(path)) {
                    Some(policy) => self.by_policy(policy, subject),
                    None => self.reboot_for(subject),
                }
            }
            EntryKind::SSHKey => self.by_policy(self.policies.for_ssh_key(), subject),
            EntryKind::Unit | EntryKind::DropIn | EntryKind::Enablement | EntryKind::Mask => {
                self.of_unit(subject)
            }
            // Looked up anew by everybody who asks.
            EntryKind::User | EntryKind::Group => Verdict {
                policy: "builtin:accounts".to_owned(),
                ..Verdict::default()
            },
            EntryKind::KernelArgument | EntryKind::OSImage | EntryKind::Extension => {
                reboot("the operating system changes with a boot")
            }
        }
    }

    fn by_policy(&self, policy: &Policy, subject: Subject<'_>) -> Verdict {
        let mut verdict = Verdict {
            policy: policy.name.clone(),
            ..Verdict::default()
        };
        if policy.demands.is_empty() {
            verdict.why.push("its policy asks for nothing".to_owned());
        }
        for demand in &policy.demands {
            self.add_demand(demand, subject, &mut verdict);
        }
        if let Some(note) = policy.on_removal
            && subject.change == ChangeKind::Remove
        {
            verdict
                .warnings
                .push(format!("{} goes, but {note}", subject.name));
        }
        verdict
    }

    /// Whether what the config asks for in `registries.conf` leaves every image name its meaning. A file that
    /// comes, goes or cannot be read by everybody may change it.
    fn same_images(&self, path: &AbsPath) -> bool {
        let wanted = self.machine.to.files.get(path);
        let wanted = wanted.and_then(|file| file.content.as_ref());
        let wanted = wanted.and_then(|content| std::str::from_utf8(content.bytes()?).ok());
        let there = self.machine.observed.texts.get(path);
        wanted
            .zip(there)
            .is_some_and(|(new, old)| registries::same_images(old, new))
    }

    fn add_demand(&self, demand: &Demand, subject: Subject<'_>, verdict: &mut Verdict) {
        let (kind, names, once, flexible) = match demand {
            Demand::Machine(kind) => {
                verdict.needs.push(Need::machine(*kind));
                verdict
                    .why
                    .push(format!("its policy asks for a {}", word(*kind)));
                return;
            }
            Demand::Unit {
                kind,
                names,
                once,
                flexible,
            } => (*kind, names, *once, *flexible),
        };
        let present: Vec<&String> = names
            .iter()
            .filter(|unit| self.machine.exists(unit) && !self.machine.masked(unit))
            .filter(|unit| name::shape(unit) != Some(name::Shape::Template))
            .collect();
        // One that has its effect by running need not be active: its place in the row counts.
        let runs = |unit: &&&String| once || self.machine.active(unit) != Some(false);
        let Some(unit) = present.iter().find(runs).or(present.first()) else {
            verdict.why.push(format!(
                "this machine has no {}, so nothing is to be done",
                names.join(" or ")
            ));
            return;
        };
        if self.machine.active(unit) == Some(false) && !once && !subject.starts.contains(unit) {
            verdict
                .why
                .push(format!("{unit} does not run, so nothing is to be done"));
            return;
        }
        self.add_unit_need(kind, unit, (flexible, subject), verdict);
    }

    fn add_unit_need(
        &self,
        kind: ActionKind,
        unit: &str,
        (flexible, subject): (bool, Subject<'_>),
        verdict: &mut Verdict,
    ) {
        if kind == ActionKind::Special {
            let same = subject.path.is_some_and(|path| self.same_images(path));
            let then = match same {
                true => "every name means the same image as before",
                false => "images may come from elsewhere then, so pods leave first",
            };
            if !same {
                verdict.needs.push(Need::machine(ActionKind::Drain));
            }
            verdict.needs.push(Need::unit(ActionKind::Reload, unit));
            verdict.why.push(format!("{unit} reads it again; {then}"));
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
            verdict.why.push(format!(
                "{unit} would have to be restarted, but {why}{instead}"
            ));
            return;
        }
        verdict.needs.push(Need::unit(kind, unit));
        verdict.why.push(match kind {
            ActionKind::Reload => format!("{unit} reads it again"),
            _ => format!("{unit} reads it when it starts"),
        });
    }

    /// No rule says what makes the change effective: what certainly does.
    fn reboot_for(&self, subject: Subject<'_>) -> Verdict {
        let kernel = !subject.path.is_some_and(soft::takes_path);
        let (kind, why) = match self.soft_reboot(!kernel) {
            Soft::Never => (ActionKind::Reboot, "so a reboot makes it effective"),
            Soft::Enough => (
                ActionKind::SoftReboot,
                "and only userspace reads it, so a soft reboot makes it effective (update.softReboot)",
            ),
            Soft::NotEnough => (
                ActionKind::Reboot,
                "and the kernel or early boot may read it, so a full reboot makes it effective",
            ),
            Soft::NotOffered => (
                ActionKind::Reboot,
                "so a reboot makes it effective; this systemd offers no soft reboot",
            ),
        };
        Verdict {
            policy: DEFAULT.to_owned(),
            needs: vec![Need::machine(kind)],
            why: vec![format!("no policy names it, {why}")],
            warnings: Vec::new(),
        }
    }

    /// For a unit that cannot be restarted, with the rest of the sentence.
    fn unit_reboot(&self, unit: &str) -> (Need, &'static str) {
        let (kind, rest) = match self.soft_reboot(soft::takes_unit(unit)) {
            Soft::Never => (ActionKind::Reboot, ""),
            Soft::Enough => (
                ActionKind::SoftReboot,
                "; a soft reboot restarts it (update.softReboot)",
            ),
            Soft::NotEnough => (ActionKind::Reboot, "; its work is the kernel's"),
            Soft::NotOffered => (ActionKind::Reboot, "; this systemd offers no soft reboot"),
        };
        (Need::machine(kind), rest)
    }

    fn soft_reboot(&self, enough: bool) -> Soft {
        match (
            self.policies.soft_reboots(),
            enough,
            self.machine.offers_soft_reboots(),
        ) {
            (false, ..) => Soft::Never,
            (_, false, _) => Soft::NotEnough,
            (_, _, false) => Soft::NotOffered,
            _ => Soft::Enough,
        }
    }

    fn of_unit(&self, subject: Subject<'_>) -> Verdict {
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
        let mut verdict = Verdict {
            policy: UNITS.to_owned(),
            ..Verdict::default()
        };
        match (subject.kind, subject.change) {
            (EntryKind::Mask, ChangeKind::Create | ChangeKind::Modify) => {
                self.stops(unit, "masked", &mut verdict)
            }
            (EntryKind::Mask, ChangeKind::Remove) => {
                verdict.why.push("it may run again".to_owned())
            }
            (EntryKind::Enablement, ChangeKind::Remove) => {
                self.stops(unit, "disabled", &mut verdict)
            }
            (EntryKind::Enablement, _) => {
                self.starts(subject, "new and enabled, so started", &mut verdict)
            }
            (EntryKind::Unit, ChangeKind::Remove) if !self.machine.has_vendor_file(unit) => {
                self.stops(unit, "gone", &mut verdict)
            }
            _ => self.content_changed(unit, subject, &mut verdict),
        }
        verdict.needs.push(Need::machine(ActionKind::DaemonReload));
        verdict
    }

    fn stops(&self, unit: &str, state: &str, verdict: &mut Verdict) {
        if name::shape(unit) == Some(name::Shape::Template) {
            // systemd stops no template, and `systemctl disable` or `mask` of one leaves its instances alone.
            let why =
                format!("{state}; a template does not run, and its instances are left as they are");
            verdict.why.push(why);
        } else if self.machine.active(unit) != Some(false) {
            verdict.needs.push(Need::unit(ActionKind::Stop, unit));
            let why = format!("{state}, so stopped");
            verdict.why.push(self.as_it_runs(&why, state));
        } else {
            verdict.why.push(format!("{state}; it does not run"));
        }
    }

    fn starts(&self, subject: Subject<'_>, why: &str, verdict: &mut Verdict) {
        let waiting =
            |unit: &&String| self.machine.active(unit) != Some(true) && !self.machine.masked(unit);
        let mut any = false;
        for unit in subject.starts.iter().filter(waiting) {
            verdict.needs.push(Need::unit(ActionKind::Restart, unit));
            any = true;
        }
        verdict.why.push(if any {
            let new = why.starts_with("new");
            let otherwise = if new {
                "new and enabled"
            } else {
                "changed and enabled"
            };
            self.as_it_runs(why, otherwise)
        } else {
            "enabled; there is nothing to start".to_owned()
        });
    }

    fn content_changed(&self, unit: &str, subject: Subject<'_>, verdict: &mut Verdict) {
        let is_template = name::shape(unit) == Some(name::Shape::Template);
        let running: Vec<String> = match self.machine.active(unit) {
            Some(true) => vec![unit.to_owned()],
            // Nobody can be asked: what was there before may run.
            None if subject.change != ChangeKind::Create && !is_template => vec![unit.to_owned()],
            _ => self.machine.instances(unit),
        };
        for unit in &running {
            self.takes_up(unit, verdict);
        }
        if !running.is_empty() {
            return;
        }
        let new = subject.change == ChangeKind::Create && subject.kind == EntryKind::Unit;
        if !subject.starts.is_empty() && (new || !self.machine.runs_once(unit)) {
            let why = if new {
                "new and enabled, so started"
            } else {
                "changed, enabled and not running, so started"
            };
            self.starts(subject, why, verdict);
        } else {
            let why = self.as_it_runs(
                "it does not run; systemd reads its files again",
                "systemd reads its files at the next boot",
            );
            verdict.why.push(why);
        }
    }

    /// What is claimed of a machine that runs, or `otherwise`, where none runs in this root.
    fn as_it_runs(&self, why: &str, otherwise: &str) -> String {
        let live = self.machine.live;
        (if live { why } else { otherwise }).to_owned()
    }

    fn takes_up(&self, unit: &str, verdict: &mut Verdict) {
        match self.machine.uptake(unit) {
            Uptake::Restart => {
                if let Some(service) = self.machine.service_of(unit)
                    && self.machine.active(&service) == Some(true)
                {
                    // systemd starts no socket whose service runs.
                    verdict.needs.push(Need::unit(ActionKind::Stop, &service));
                    verdict
                        .needs
                        .push(Need::unit(ActionKind::Restart, &service));
                }
                verdict.needs.push(Need::unit(ActionKind::Restart, unit));
                verdict.why.push(self.as_it_runs(
                    "it runs and is restarted with its new content",
                    "a machine that runs would restart it with its new content",
                ));
            }
            Uptake::Reload => {
                verdict.needs.push(Need::unit(ActionKind::Reload, unit));
                verdict.why.push(self.as_it_runs(
                    "it runs and reads its new content",
                    "a machine that runs would have it read its new content",
                ));
            }
            Uptake::Nothing(why) => verdict.why.push(why.to_owned()),
            Uptake::Reboot(why) => {
                let (need, instead) = self.unit_reboot(unit);
                verdict.needs.push(need);
                let what = self.as_it_runs("it runs and cannot", "where it runs, it cannot");
                verdict
                    .why
                    .push(format!("{what} be restarted: {why}{instead}"));
            }
        }
    }
}

fn reboot(why: &str) -> Verdict {
    Verdict {
        policy: DEFAULT.to_owned(),
        needs: vec![Need::machine(ActionKind::Reboot)],
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
