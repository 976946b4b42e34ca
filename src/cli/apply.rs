//! Implements `machinist apply`.

use std::{
    io::IsTerminal as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::Args;

use super::{
    ConfigArgs, Confirmation, Exit, Format, Global, NotATerminal, OutputFormatArg,
    agent_client::{self, ApplyMode},
    args::owners_flag,
    config_context::{ConfigContext, print_refusals},
    confirm, daemon, print, print_data,
    progress::UpdateProgressLine,
    start_logging_beside_a_page, status,
};
use machinist_agent::reporter::finished;
use machinist_base::{clock::Clock, digest::Digest, error_chain::chain};
use machinist_ignition::MachineConfig;
use machinist_plan::Plan;
use machinist_rootfs::Root;
use machinist_status::{
    UpdateOutcomeStatus,
    settings::{Fragment, Owners},
};
use machinist_update::{
    journal::UpdateRecord,
    pinned_config::PinnedConfig,
    reconciler::{DesiredConfig, UpdateReport},
    store,
};

/// Flags of `apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the plan and asks for confirmation; --yes is required without a terminal. If an agent is running, it applies \
the config: immediately, even outside update.windows, and with the reboot if update.reboot is ask. Files given here \
are the whole config: everything else that machinist manages is removed. They override the agent's source until the \
source changes, or until apply is called without files, which applies the source's config, in a cluster the Node's \
desired config. A new OS image and packages are downloaded first. They and new kernel arguments are tried by one boot, \
and become the default if it is healthy.

Examples:
  machinist apply 10-chrony.yaml
  machinist apply --root ./sandbox --source dir:examples/machine --yes")]
pub struct ApplyArgs {
    /// The config to apply.
    #[command(flatten)]
    pub wanted: ConfigArgs,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// How to handle file owners: auto, set or record [default: owners of the settings, auto]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub owners: Option<Owners>,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

impl ApplyArgs {
    /// The settings that the flags set.
    pub fn flags(&self) -> Fragment {
        owners_flag(self.wanted.flags(), self.owners)
    }
}

pub(super) fn run(global: &Global, args: &ApplyArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, args.flags(), true)?;
    start_logging_beside_a_page(context.settings.log)?;
    let config = match context.selected_config(&args.wanted)? {
        Ok(config) => config,
        Err(refused) => {
            print_refusals(&context.all_refusals(refused));
            return Ok(Exit::Failed);
        }
    };
    let how = ApplyMode {
        by: "apply",
        yes: args.yes,
        output: args.printed.output,
    };
    match status::running_agent(&context.root)? {
        Some(agent) => agent_client::apply_through_agent(&context, &agent, &config, how),
        None => once(&context, config, None, how),
    }
}

/// Plans, asks for confirmation, applies and reports. Shared with `rollback`, which records a hold
/// for the next agent: `over` is the config that the agent must not apply.
pub(super) fn once(
    context: &ConfigContext,
    config: MachineConfig,
    over: Option<Digest>,
    how: ApplyMode,
) -> anyhow::Result<Exit> {
    let ApplyMode { by, yes, output } = how;
    let refused = Arc::new(AtomicBool::new(false));
    let said_no = Arc::clone(&refused);
    let digest = machinist_ignition::digest(&config);
    let config = Arc::new(config);
    let hold = over.map(|over| PinnedConfig {
        config: Arc::clone(&config),
        digest,
        over: Some(over),
        by: by.to_owned(),
        since: Clock::system().now(),
    });
    let (root, held) = (context.root.clone(), hold.clone());
    let approve = move |plan: &Plan| {
        if output == Format::Text {
            // stdout is closed: the confirmation is still asked on the terminal.
            let _ = print(&plan.to_text(true));
        }
        let agreed = matches!(confirm("Apply this plan?", yes), Ok(Confirmation::Yes));
        // Record it before anything else, because a reboot may end this command.
        let held = held.as_ref().filter(|_| agreed);
        let agreed = agreed && held.is_none_or(|hold| kept(hold, &root));
        said_no.store(!agreed, Ordering::Relaxed);
        agreed
    };
    let desired = DesiredConfig::Config(config, digest);
    if !yes && !std::io::stdin().is_terminal() {
        return Err(NotATerminal.into());
    }
    let journal = store::peek(&context.root)?;
    let withdrawn = journal.withdrawn_by(digest);
    if withdrawn
        .is_some_and(|open| !confirms_withdrawal(&open.to.name, hold.as_ref(), context, how))
    {
        super::output::warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    let before = newest(&journal.history);
    let progress = UpdateProgressLine::new(output);
    let ran = daemon()?.block_on(machinist_agent::apply_once(
        &context.root,
        &context.settings,
        context.policies()?,
        desired,
        approve,
        move |phase| progress.phase(phase.name()),
    ));
    let report = ran?;
    if refused.load(Ordering::Relaxed) {
        super::output::warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    match hold.filter(|_| report.failure.is_none()) {
        Some(hold) => hold.save(&context.root)?,
        None => PinnedConfig::forget(&context.root)?,
    }
    finish(&report, before.as_deref(), output)
}

/// Asks before an open update is rolled back, for which no plan is shown, and records the hold.
fn confirms_withdrawal(
    open: &str,
    hold: Option<&PinnedConfig>,
    context: &ConfigContext,
    how: ApplyMode,
) -> bool {
    if how.output == Format::Text {
        let text = format!(
            "Rolls back the update to {open}, which is not verified yet; the machine reboots if the update needs it.\n"
        );
        let _ = print(&text);
    }
    let agreed = matches!(confirm("Roll back?", how.yes), Ok(Confirmation::Yes));
    agreed && hold.is_none_or(|hold| kept(hold, &context.root))
}

/// Records the hold for the agent. A failure is printed, because nothing is changed then.
fn kept(hold: &PinnedConfig, root: &Root) -> bool {
    let saved = hold.save(root);
    if let Err(error) = &saved {
        super::output::print_error(&chain(error));
    }
    saved.is_ok()
}

/// The id of the newest update in a history.
fn newest(history: &[UpdateRecord]) -> Option<String> {
    history.last().map(|update| update.id.clone())
}

/// Reports the result of the update; none if there is no update after `before`.
fn finish(report: &UpdateReport, before: Option<&str>, output: Format) -> anyhow::Result<Exit> {
    let last = report.updates.first();
    let last = last.filter(|update| Some(update.id.as_str()) != before);
    let last = last.map(finished);
    print_data(output, &last, |last| match (last, &report.failure) {
        (_, Some(failure)) => {
            super::output::failed(&failure.message, &failure.refusals, failure.code)
        }
        (Some(update), None) => {
            let on = report.config.current.as_ref().map_or("none", |on| &on.name);
            let outcome = update.outcome.map_or("", UpdateOutcomeStatus::as_str);
            format!("{outcome}: config is now {on}.\n")
        }
        (None, None) => "The machine matches the config.\n".to_owned(),
    })?;
    Ok(if report.failure.is_some() {
        Exit::Failed
    } else {
        Exit::Done
    })
}
