//! Implements `machinist verify`.

use clap::Args;

use super::{
    Exit, Global, OutputFormatArg, config_context::ConfigContext, output::warn, print_data,
};
use machinist_base::text;
use machinist_plan::{DriftKind, Verified};
use machinist_status::settings::Fragment;
use machinist_update::{journal::Direction, observe_and_plan, store};

/// Flags of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Compares the machine with the last applied config, and changes nothing. \
Exits with 0 if they match, 2 if they differ.

Examples:
  machinist verify
  machinist verify --root ./sandbox -o json")]
pub struct VerifyArgs {
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &VerifyArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    let capabilities =
        machinist_agent::read_only_capabilities(&context.root, context.settings.owners);
    let journal = store::peek(&context.root)?;
    // A config that is being rolled back is no longer the machine's config.
    let undoing = journal
        .top()
        .is_some_and(|tx| tx.direction == Direction::Undo);
    let current = match undoing {
        true => journal.base.as_ref(),
        false => observe_and_plan::current(&journal),
    };
    let Verified { mut drift, skipped } =
        observe_and_plan::verify(&context.root, current, capabilities)?;
    if !journal.transactions.is_empty() {
        // They change with the reboot of the update.
        drift.retain(|entry| entry.kind != DriftKind::KernelArgument);
    }
    for why in skipped {
        warn(&why);
    }
    let known = current.is_some();
    print_data(args.printed.output, &drift, |drift| {
        match drift.is_empty() {
            true if !known => "No config was applied yet, nothing to compare.\n".to_owned(),
            true => "The machine matches the config.\n".to_owned(),
            false => {
                let lines = drift
                    .iter()
                    .map(|drift| text::escape_line(&drift.to_string()));
                lines.map(|line| line + "\n").collect()
            }
        }
    })?;
    Ok(if drift.is_empty() {
        Exit::Done
    } else {
        Exit::Pending
    })
}
