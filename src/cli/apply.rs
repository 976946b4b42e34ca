//! `machinist apply`.

use std::{
    io::IsTerminal as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::Args;

use super::{
    Answer, Exit, Format, Global, NoTerminal, Wanted,
    args::owners_flag,
    config::{Context, complain_of},
    confirm, daemon, print, print_data, start_logging,
};
use crate::{
    agent,
    config::{Fragment, Owners},
    machine_config::{self, MachineConfig},
    plan::Plan,
    update::{
        journal::UpdateRecord,
        run::{Desired, UpdateReport},
        store,
    },
};

/// Flags of `apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the plan and asks before it changes anything; without a terminal it needs --yes.

Examples:
  machinist apply 10-chrony.yaml
  machinist apply --root ./sandbox --source dir:examples/machine --yes")]
pub struct ApplyArgs {
    /// The config to apply.
    #[command(flatten)]
    pub wanted: Wanted,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Whose files are made: auto, set or record [default: owners of the settings, auto]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub owners: Option<Owners>,
    /// Form of the output: text, json or yaml
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub output: Format,
}

impl ApplyArgs {
    /// What the flags say about settings.
    pub fn flags(&self) -> Fragment {
        owners_flag(self.wanted.flags(), self.owners)
    }
}

pub(super) fn run(global: &Global, args: &ApplyArgs) -> anyhow::Result<Exit> {
    let context = Context::open(global, args.flags(), true)?;
    start_logging(context.settings.log)?;
    let config = match context.wanted(&args.wanted)? {
        Ok(config) => config,
        Err(refusals) => {
            complain_of(&refusals);
            return Ok(Exit::Failed);
        }
    };
    once(&context, config, args.yes, args.output)
}

/// Plans, asks, applies, reports. Shared with `rollback`.
pub(super) fn once(
    context: &Context,
    config: MachineConfig,
    yes: bool,
    output: Format,
) -> anyhow::Result<Exit> {
    let refused = Arc::new(AtomicBool::new(false));
    let said_no = Arc::clone(&refused);
    let approve = move |plan: &Plan| {
        if output == Format::Text {
            // Nobody reads: what is asked next is asked on the terminal.
            let _ = print(&plan.to_text(true));
        }
        let agreed = matches!(confirm("Apply this?", yes), Ok(Answer::Yes));
        said_no.store(!agreed, Ordering::Relaxed);
        agreed
    };
    let digest = machine_config::digest(&config);
    let desired = Desired::Config(Arc::new(config), digest);
    if !yes && !std::io::stdin().is_terminal() {
        return Err(NoTerminal.into());
    }
    let before = newest(&store::peek(&context.root)?.history);
    let ran = daemon()?.block_on(agent::apply_once(
        &context.root,
        &context.settings,
        desired,
        approve,
    ));
    let report = ran?;
    if refused.load(Ordering::Relaxed) {
        super::output::warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    finish(&report, before.as_deref(), output)
}

/// The id of the last update in a history.
fn newest(history: &[UpdateRecord]) -> Option<String> {
    history.last().map(|update| update.id.clone())
}

/// Tells how the update ended; none when nothing came after the update `before`.
fn finish(report: &UpdateReport, before: Option<&str>, output: Format) -> anyhow::Result<Exit> {
    let last = report.updates.first();
    let last = last.filter(|update| Some(update.id.as_str()) != before);
    print_data(output, &last, |last| match (last, &report.failure) {
        (_, Some(failure)) => format!("Failed: {} [{}]\n", failure.message, failure.code),
        (Some(update), None) => format!("{:?}: the machine is on {}.\n", update.outcome, update.to),
        (None, None) => "The machine is as the config asks.\n".to_owned(),
    })?;
    Ok(if report.failure.is_some() {
        Exit::Failed
    } else {
        Exit::Done
    })
}
