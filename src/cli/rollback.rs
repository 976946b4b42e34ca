//! `machinist rollback`.

use anyhow::Context as _;
use clap::Args;

use super::{Exit, Format, Global, apply, config::Context, start_logging};
use crate::{
    config::Fragment,
    update::{
        journal::{ConfigName, Journal, Outcome},
        store,
    },
};

/// Flags of `rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
Goes back to the config before the last update: undoes an update under way, or applies the earlier
config anew. Shows the plan and asks; without a terminal it needs --yes.

Examples:
  machinist rollback
  machinist rollback --root ./sandbox --yes")]
pub struct RollbackArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

pub(super) fn run(global: &Global, args: &RollbackArgs) -> anyhow::Result<Exit> {
    let context = Context::open(global, Fragment::default(), false)?;
    start_logging(context.settings.log)?;
    let journal = store::peek(&context.root)?;
    let earlier = earlier(&journal).context("there is no earlier config to go back to")?;
    let config = store::config(&context.root, Some(&earlier))?;
    apply::once(&context, config, args.yes, Format::Text)
}

/// The verified config while an update is under way; else the one before it.
fn earlier(journal: &Journal) -> Option<ConfigName> {
    let base = journal.base.as_ref()?;
    if !journal.transactions.is_empty() {
        return Some(base.clone());
    }
    let done = journal
        .history
        .iter()
        .rev()
        .filter(|update| matches!(update.outcome, Outcome::Done | Outcome::AppliedOffline));
    let before = done.map(|update| ConfigName {
        name: update.to.clone(),
        digest: update.digest,
    });
    before
        .into_iter()
        .find(|config| config.digest != base.digest)
}
