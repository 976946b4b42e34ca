//! `machinist rollback`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::{
    Exit, Format, Global,
    apply::{self, How},
    beside,
    config::Context,
    start_logging_beside_a_page,
};
use crate::{
    config::Fragment,
    update::{
        journal::{ConfigName, Journal},
        look, store,
    },
};

/// Flags of `rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
Goes back to an earlier config: undoes an update under way, or applies the earlier config anew. \
Shows the plan and asks; without a terminal it needs --yes. \
The agent holds the machine there until its source changes or somebody calls machinist apply.

Examples:
  machinist rollback
  machinist rollback --to 2
  machinist rollback --root ./sandbox --yes")]
pub struct RollbackArgs {
    /// How many configs to go back, or the name of one that history shows
    #[arg(long, value_name = "N|NAME", default_value = "1", value_parser = back)]
    pub to: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

pub(super) fn run(global: &Global, args: &RollbackArgs) -> anyhow::Result<Exit> {
    let context = Context::open(global, Fragment::default(), false)?;
    start_logging_beside_a_page(context.settings.log)?;
    let journal = store::peek(&context.root)?;
    let earlier = chosen(&earlier(&journal), &args.to)?;
    let config = store::whole_config(&context.root, &earlier)
        .with_context(|| format!("cannot go back to {}", earlier.name))?;
    let how = How {
        by: "rollback",
        yes: args.yes,
        output: Format::Text,
    };
    let left = look::current(&journal).map(|left| left.digest);
    match beside::agent(&context)? {
        Some(agent) => beside::ask(&context, &agent, &config, how),
        None => apply::once(&context, config, left, how),
    }
}

/// The configs to go back to, newest first: the verified one while an update is under way, then those
/// that were in force before it, each once.
fn earlier(journal: &Journal) -> Vec<ConfigName> {
    let now = look::current(journal).map(|now| now.digest);
    let done = journal
        .history
        .iter()
        .rev()
        .filter(|update| update.outcome.is_done());
    let before = done.map(|update| ConfigName::new(update.to.clone(), update.digest));
    let mut all: Vec<ConfigName> = Vec::new();
    for config in journal.base.iter().cloned().chain(before) {
        let known = all.iter().any(|one| one.digest == config.digest);
        if Some(config.digest) != now && !known {
            all.push(config);
        }
    }
    all
}

/// Nobody goes back to where they are.
fn back(given: &str) -> Result<String, &'static str> {
    match given.parse::<usize>() {
        Ok(0) => Err("1 is the config before this one"),
        _ => Ok(given.to_owned()),
    }
}

fn chosen(earlier: &[ConfigName], to: &str) -> anyhow::Result<ConfigName> {
    let count = earlier.len();
    let found = match to.parse::<usize>() {
        Ok(back) => back.checked_sub(1).and_then(|back| earlier.get(back)),
        Err(_) => earlier.iter().find(|config| config.name == to),
    };
    match (found, count) {
        (Some(config), _) => Ok(config.clone()),
        (None, 0) => bail!(
            "there is no earlier config to go back to; to remove everything that this one brought, apply a config \
             without entries, such as {{\"ignition\": {{\"version\": \"3.5.0\"}}}} in a file NAME.ign"
        ),
        (None, _) if to.parse::<usize>().is_ok() => {
            bail!("there are only {count} earlier configs to go back to")
        }
        (None, _) => bail!("no earlier config is called {to}; machinist history lists them"),
    }
}
