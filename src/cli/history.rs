//! `machinist history`.

use clap::Args;

use super::{Exit, Format, Global, print_data};
use crate::update::store;

/// Flags of `history`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  machinist history
  machinist history -n 3 -o json")]
pub struct HistoryArgs {
    /// Show only the last updates
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub last: Option<usize>,
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

pub(super) fn run(global: &Global, args: &HistoryArgs) -> anyhow::Result<Exit> {
    let journal = store::peek(&global.open_root()?)?;
    let last = args.last.unwrap_or(usize::MAX);
    let updates: Vec<_> = journal.history.iter().rev().take(last).collect();
    print_data(args.output, &updates, |updates| {
        updates
            .iter()
            .map(|update| {
                let reason = update
                    .reason
                    .map(|reason| format!(" [{reason}]"))
                    .unwrap_or_default();
                format!(
                    "{}  {:?}  {}{reason}\n",
                    update.finished, update.outcome, update.to
                )
            })
            .collect()
    })?;
    Ok(Exit::Done)
}
