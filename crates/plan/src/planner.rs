//! Computes the plan from one config to another on one machine.

use std::collections::BTreeSet;

use super::{
    Action, ActionKind, Capabilities, ChangeKind, ConfigRef, Cost, Database, MAX_TOTAL_FILE_BYTES,
    MachineFacts, Operation, Plan, PlanChange, Policies,
    accounts::Accounts,
    actions::{self, ActionNeed},
    change_builder::ChangeBuilder,
    desired_entry::noun,
    desired_tree::{ConfigSide, DesiredTree, ObjectSpec},
    disruption::{DisruptionResolver, RequiredActions},
    hard_links, home_dirs, host_checks,
    kind_replacement::KindReplacement,
    object_labels, operations_fold, os,
    policy::registries_conf,
    reachability, same_object,
    steps::{PathAction, PathSteps, steps},
    unit_aliases,
    unit_state::MachineUnits,
    unsafe_paths::{self, SkippableEntries},
    xattr_warnings,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{Content, EntryKind, MachineConfig, Refusal};

/// The maximum size in bytes of unit texts and paths together. They are stored in the config
/// document, at six times their size if every byte has to be escaped, and that document is limited
/// to 256 MiB.
const MAX_TOTAL_TEXT_BYTES: usize = 32 << 20;

/// Plans the changes that take the machine from one config to the other.
///
/// The observed machine is authoritative: if `observed` differs from `to`, that is a change,
/// independent of `from`. `from` only determines which entries left the config.
///
/// # Errors
/// All refusals of this config or this host at once; the caller must not change anything then.
pub fn between(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    policies: &Policies,
    capabilities: Capabilities,
) -> Result<Plan, Vec<Refusal>> {
    plan(from, to, observed, policies, capabilities, None)
}

/// Like [`between`], but for a single path; all other differences are ignored.
///
/// # Errors
/// As for [`between`].
pub fn only(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    policies: &Policies,
    capabilities: Capabilities,
    only: &AbsPath,
) -> Result<Plan, Vec<Refusal>> {
    plan(from, to, observed, policies, capabilities, Some(only))
}

fn plan(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    policies: &Policies,
    capabilities: Capabilities,
    only: Option<&AbsPath>,
) -> Result<Plan, Vec<Refusal>> {
    let mut before = DesiredTree::of(from, observed, ConfigSide::Before);
    let mut after = DesiredTree::of(to, observed, ConfigSide::After(from));
    after.keep_found_links(&before, observed);
    let named = after.named();
    let unchanged = unsafe_paths::unchanged(&before, &after, observed);
    let skippable = SkippableEntries::of(&unchanged, [&before, &after], observed);
    unsafe_paths::refuse_unsafe_paths(&mut before, &mut after, observed, only, &skippable);
    let mut steps = steps(&before, &after, observed, capabilities.chown);
    let mut os_changes = os::changes(from, to, observed, capabilities.os);
    after.left_behind.append(&mut steps.left_behind);
    if let Some(only) = only {
        narrow(only, &mut after, &mut steps);
        os_changes.clear();
    }
    steps.make_homes(&after, observed);
    unsafe_paths::skip_refused(&mut steps, &mut after, observed, to, &skippable);
    skippable.skip_hard_links(&mut steps, &mut after, observed);
    let layouts = [&before, &after];
    let mut refusals = of_steps(to, layouts, &steps, observed);
    if only.is_none() {
        let configs = [from, to];
        let os = capabilities.os;
        refusals.extend(os::refusals(&os_changes, configs, layouts, observed, os));
        refusals.extend(same_object::refusals(&steps, &after, observed));
    }
    // Trees of thousands of files are large, so free the memory early.
    drop(before);
    let (mut operations, in_the_way) = operations_fold::operations(&steps, &after, observed);
    refusals.extend(in_the_way);
    let kept = (to, &skippable);
    unsafe_paths::leave_obstructed(&mut operations, &mut steps, &mut after, observed, kept);
    unsafe_paths::leave_on_full_mounts(
        &mut operations,
        &mut steps,
        &mut after,
        observed,
        &skippable,
    );
    unsafe_paths::leave_large_originals(&mut operations, &mut steps, &mut after, observed);
    // Files that are skipped now have hard links, too.
    let links = skippable.skip_hard_links(&mut steps, &mut after, observed);
    operations.retain(|operation| !links.contains(&operation.target));
    refusals.extend(complete(
        &mut operations,
        to,
        &steps,
        &after,
        observed,
        capabilities,
    ));
    if !refusals.is_empty() {
        return Err(in_order(refusals));
    }
    let input = PlanInput {
        configs: [from, to],
        observed,
        policies,
        capabilities,
        is_repair: only.is_some(),
        unchanged: &unchanged,
    };
    Ok(input.plan(operations, named, (steps, after), &os_changes))
}

/// What a plan is made from, apart from the objects.
#[derive(Clone, Copy)]
struct PlanInput<'a> {
    configs: [&'a MachineConfig; 2],
    observed: &'a MachineFacts,
    policies: &'a Policies,
    capabilities: Capabilities,
    /// The plan is for one path only.
    is_repair: bool,
    /// Paths in users' directories that are the same in both configs.
    unchanged: &'a BTreeSet<AbsPath>,
}

impl PlanInput<'_> {
    /// The plan of operations that nothing refuses.
    fn plan(
        &self,
        operations: Vec<Operation>,
        named: BTreeSet<AbsPath>,
        (mut steps, after): (PathSteps, DesiredTree),
        os_changes: &[os::OsChange],
    ) -> Plan {
        let Self {
            configs,
            observed,
            policies,
            capabilities,
            is_repair,
            unchanged,
        } = *self;
        let [from, to] = configs;
        let machine = MachineUnits::new(observed, configs, capabilities.live);
        let judge = DisruptionResolver { policies, machine };
        let builder = ChangeBuilder {
            steps: &steps,
            after: &after,
            observed,
            judge,
            unchanged,
        };
        let changes = builder.all_changes(os_changes);
        let mut warnings = warnings(configs, &steps, &after, &changes, capabilities, observed);
        if !is_repair {
            // The notes of the config are reported with the whole config, not with each repair of one
            // path.
            warnings.splice(0..0, to.notes.0.clone());
        }
        if capabilities.chown {
            warnings.extend(xattr_warnings::dropped(&operations, observed));
        }
        let mut plan = Plan {
            from: ConfigRef::of(from),
            to: ConfigRef::of(to),
            operations,
            os: os::update(os_changes, to, observed, capabilities.os),
            adopted: std::mem::take(&mut steps.adopted),
            written: std::mem::take(&mut steps.written),
            named,
            let_go: after.accounts.let_go.clone(),
            left_behind: after.left_behind.clone(),
            skipped: after.skipped_paths(),
            warnings,
            ..Plan::default()
        };
        drop((after, steps));
        plan.add_changes(changes, capabilities);
        plan
    }
}

/// The refusals of the desired config and of its steps.
fn of_steps(
    to: &MachineConfig,
    [before, after]: [&DesiredTree; 2],
    steps: &PathSteps,
    observed: &MachineFacts,
) -> Vec<Refusal> {
    let mut refusals = steps.refusals(to);
    refusals.extend(after.refusals.iter().cloned());
    refusals.extend(unit_aliases::taken(before, after, observed));
    refusals.extend(broken_registries(steps, after));
    refusals
}

/// Refuses a new `registries.conf` that the container runtime cannot read, as OpenShift's daemon does.
fn broken_registries(steps: &PathSteps, after: &DesiredTree) -> Option<Refusal> {
    let path = AbsPath::new(registries_conf::PATH).ok()?;
    let PathAction::Put(ObjectSpec::File { content, .. }) = &steps.at.get(&path)?.act else {
        return None;
    };
    let wanted = after.objects.get(&path)?;
    let text = String::from_utf8_lossy(content.bytes()?);
    let (line, why) = registries_conf::fault(&text)?;
    let message = format!("line {line} of {} is not valid: {why}", wanted.asked);
    let refusal = Refusal::new(Reason::ValueInvalid, message).at(&wanted.entry.origin);
    Some(refusal.expected("TOML (containers-registries.conf(5))"))
}

/// Adds homes, labels and the entries of new users to the operations. Returns the refusals.
fn complete(
    operations: &mut Vec<Operation>,
    to: &MachineConfig,
    steps: &PathSteps,
    after: &DesiredTree,
    observed: &MachineFacts,
    capabilities: Capabilities,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    refusals.extend(hard_links::refusals(steps, observed));
    refusals.extend(too_large(to));
    home_dirs::fill_new_homes(operations, after, observed);
    object_labels::add(operations, observed);
    refusals.extend(home_dirs::add_entries(operations, after));
    let kinds = KindReplacement::new(to, after, steps, observed);
    refusals.extend(host_checks::refusals(operations, &kinds, capabilities));
    refusals
}

/// Restricts the plan to one path, as spelled in the config.
fn narrow(only: &AbsPath, after: &mut DesiredTree, steps: &mut PathSteps) {
    // Include missing parent directories.
    let mut objects = after.objects.iter();
    let place = objects.find(|(_, wanted)| wanted.asked == *only);
    let place = place.map_or(only, |(path, _)| path).clone();
    steps.at.retain(|path, _| place.is_under(path));
    steps.refusals.retain(|(path, _)| place.is_under(path));
    steps.kind_refusals.retain(|(path, _)| place.is_under(path));
    let about = |warning: &String| warning.starts_with(place.as_str());
    steps.warnings.retain(about);
    steps.drift_warnings.retain(|_, warning| about(warning));
    after.warnings.retain(about);
    after.left_behind.clear();
    // A user's entries span six files: if one of them is repaired, all of them are.
    if Database::at(&place).is_none() {
        after.accounts = Accounts::default();
    }
}

/// The refusal of a config that is too large to be stored.
fn too_large(config: &MachineConfig) -> Option<Refusal> {
    let contents = config
        .files
        .values()
        .filter_map(|file| file.content.as_ref());
    let sizes = contents.map(Content::size);
    let bytes = sizes.fold(0, u64::saturating_add);
    let units = config.units.values().flat_map(|unit| {
        let drop_ins = unit.dropins.values();
        drop_ins.chain(&unit.contents).map(String::len)
    });
    let paths = config.files.keys().map(|path| path.as_str().len());
    let text = units.chain(paths).fold(0, usize::saturating_add);
    let (message, most) = match (bytes > MAX_TOTAL_FILE_BYTES, text > MAX_TOTAL_TEXT_BYTES) {
        (false, false) => return None,
        (true, _) => (
            format!("the files of the config have {bytes} bytes in total"),
            MAX_TOTAL_FILE_BYTES,
        ),
        (false, true) => (
            format!("the units and paths of the config have {text} bytes in total"),
            MAX_TOTAL_TEXT_BYTES as u64,
        ),
    };
    let refusal = Refusal::new(Reason::ValueInvalid, message);
    Some(refusal.expected(format!("at most {most}")))
}

fn in_order(mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    let key = |refusal: &Refusal| {
        (
            refusal.file.clone(),
            refusal.line,
            refusal.column,
            refusal.field.clone(),
            refusal.message.clone(),
        )
    };
    refusals.sort_by_cached_key(key);
    refusals.dedup();
    refusals
}

fn warnings(
    [from, to]: [&MachineConfig; 2],
    steps: &PathSteps,
    after: &DesiredTree,
    changes: &[(PlanChange, RequiredActions)],
    capabilities: Capabilities,
    observed: &MachineFacts,
) -> Vec<String> {
    let mut all: Vec<String> = after.warnings.clone();
    all.extend(after.left_behind.iter().cloned());
    all.extend(steps.warnings.iter().cloned());
    // Entries that are skipped are neither restored nor replaced.
    let drift = steps.drift_warnings.iter();
    let drift = drift.filter(|(asked, _)| !after.skipped_entries.contains(*asked));
    all.extend(drift.map(|(_, warning)| warning.clone()));
    all.extend(
        changes
            .iter()
            .flat_map(|(_, needed)| needed.warnings.clone()),
    );
    if !capabilities.chown && !capabilities.live && !steps.at.is_empty() {
        all.push("CAP_CHOWN missing: owners are recorded, but neither set nor compared".to_owned());
    }
    all.extend(reachability::warnings(after, observed, capabilities.chown));
    all.extend(object_labels::pending(&observed.labels_pending));
    all.extend(os::warnings(from, to, observed, capabilities.os));
    let mut seen = BTreeSet::new();
    all.retain(|warning| seen.insert(warning.clone()));
    all
}

impl Plan {
    /// Orders the changes and merges their needs into actions; on an offline root the actions are
    /// only reported as left out.
    fn add_changes(
        &mut self,
        mut changes: Vec<(PlanChange, RequiredActions)>,
        capabilities: Capabilities,
    ) {
        changes
            .sort_by(|(one, _), (other, _)| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
        spare_what_goes(&mut changes);
        let whys: Vec<String> = changes.iter().map(|(change, _)| reason(change)).collect();
        let needs = changes.iter().zip(&whys).flat_map(|((_, needed), why)| {
            needed.needs.iter().map(move |need| (need, why.as_str()))
        });
        let actions = actions::combine(needs);
        if capabilities.live {
            self.cost = actions::cost(&actions);
            self.drain = actions::drains(&actions);
            self.actions = actions;
        } else {
            self.left_out = left_out(&actions);
        }
        self.changes = changes.into_iter().map(|(change, _)| change).collect();
    }
}

/// A unit that is removed or masked is stopped and not started again, even if other changes of it
/// would restart or reload it.
fn spare_what_goes(changes: &mut [(PlanChange, RequiredActions)]) {
    let goes = |(change, needed): &&(PlanChange, RequiredActions)| {
        let leaves = match change.kind {
            EntryKind::Unit => change.change == ChangeKind::Remove,
            EntryKind::Mask => change.change != ChangeKind::Remove,
            _ => false,
        };
        leaves
            && needed
                .needs
                .contains(&ActionNeed::unit(ActionKind::Stop, &change.name))
    };
    let gone: Vec<String> = changes
        .iter()
        .filter(goes)
        .map(|(change, _)| change.name.clone())
        .collect();
    let futile: Vec<ActionNeed> = gone
        .iter()
        .flat_map(|unit| {
            [ActionKind::Restart, ActionKind::Reload].map(|kind| ActionNeed::unit(kind, unit))
        })
        .collect();
    let words: Vec<String> = futile.iter().map(ToString::to_string).collect();
    for (change, needed) in changes {
        needed.needs.retain(|need| !futile.contains(need));
        let all = change.actions.len();
        change.actions.retain(|action| !words.contains(action));
        if change.actions.len() < all {
            change.why = "removed together with its unit, which is stopped".to_owned();
        }
    }
}

/// `file /etc/chrony.conf is changed (builtin:/etc/chrony.conf)`.
fn reason(change: &PlanChange) -> String {
    let verb = match change.change {
        ChangeKind::Create => "is created",
        ChangeKind::Modify => "is changed",
        ChangeKind::Remove => "is removed",
    };
    format!(
        "{} {} {verb} ({})",
        noun(change.kind),
        change.name,
        change.policy
    )
}

/// The actions that a running machine would need, one sentence each.
fn left_out(actions: &[Action]) -> Vec<String> {
    let sentence = |action: &Action| {
        let need = ActionNeed {
            kind: action.kind,
            unit: action.unit.clone(),
        };
        let more = action.why.len().saturating_sub(1);
        let first = action.why.first().map(String::as_str).unwrap_or_default();
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("{need} skipped, because no system runs in this root: {first}{rest}")
    };
    let mut sentences: Vec<String> = actions.iter().map(sentence).collect();
    let cost = actions::cost(actions);
    if cost > Cost::None {
        sentences.push(format!("cost on a running machine: {cost:?}"));
    }
    sentences
}
