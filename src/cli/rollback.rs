//! Implements `machinist rollback`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::{
    Exit, Format, Global,
    agent_client::{self, ApplyMode},
    apply,
    config_context::ConfigContext,
    output::print_error,
    pool::{self, PoolWriteArgs},
    selector, start_logging_beside_a_page, status,
};
use machinist_status::settings::Fragment;
use machinist_update::{
    journal::{ConfigName, Journal},
    observe_and_plan,
    pinned_config::ROLLBACK_COMMAND,
    store,
};

/// Flags of `rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
Returns to an earlier config: rolls back an update in progress, or applies the earlier config again. \
Shows the plan and asks for confirmation; --yes is required without a terminal. \
The agent keeps that config until its source changes or machinist apply is run. \
Kernel arguments and the OS image are changed back by one boot that tries them, after a download if the image is not \
on the host. \
With --pool, pins a MachineConfigPool to a config that it ran before: its nodes update to it as in any rollout, and \
newer configs wait until machinist resume --pool.

Examples:
  machinist rollback
  machinist rollback --to 2
  machinist rollback --pool worker --to rendered-worker-5f2c
  machinist rollback --root ./sandbox --yes")]
pub struct RollbackArgs {
    /// How many configs to go back, or the name of one in the history; with --pool also of one
    /// that nodes still run
    #[arg(long, value_name = "N|NAME", default_value = "1", value_parser = parse_revision)]
    pub to: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Roll back a MachineConfigPool instead of this machine
    #[arg(long, value_name = "NAME", value_parser = selector::pool)]
    pub pool: Option<String>,
    /// Unpause the pool with the rollback
    #[arg(long, requires = "pool")]
    pub unpause: bool,
    /// The write of a pool.
    #[command(flatten)]
    pub write: PoolWriteArgs,
}

pub(super) fn run(global: &Global, args: &RollbackArgs) -> anyhow::Result<Exit> {
    if let Some(name) = &args.pool {
        let rollback = pool::PoolRollback {
            pool: name,
            to: &args.to,
            yes: args.yes,
            unpause: args.unpause,
            write: &args.write,
        };
        return pool::roll_back(global, &rollback);
    }
    if !args.write.is_default() {
        print_error("cluster flags, --dry-run and -o require --pool NAME");
        return Ok(Exit::Usage);
    }
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    start_logging_beside_a_page(context.settings.log)?;
    let journal = store::peek(&context.root)?;
    let earlier = chosen(&earlier(&journal), &args.to)?;
    let mut config = store::whole_config(&context.root, &earlier)
        .with_context(|| format!("cannot roll back to {}", earlier.name))?;
    // An image that the machine ran before may be lower than the one that runs.
    config.allow_downgrade();
    let how = ApplyMode {
        by: ROLLBACK_COMMAND,
        yes: args.yes,
        output: Format::Text,
    };
    let left = observe_and_plan::current(&journal).map(|left| left.digest);
    match status::running_agent(&context.root)? {
        Some(agent) => agent_client::apply_through_agent(&context, &agent, &config, how),
        None => apply::once(&context, config, left, how),
    }
}

/// The configs to return to, newest first: during an update the verified one, then the earlier
/// ones, without duplicates.
fn earlier(journal: &Journal) -> Vec<ConfigName> {
    let now = observe_and_plan::current(journal).map(|now| now.digest);
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

/// 0 is refused, because it is the current config.
fn parse_revision(given: &str) -> Result<String, &'static str> {
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
            "no earlier config to roll back to; to remove everything that this config added, apply a config without \
             entries, such as {{\"ignition\": {{\"version\": \"3.5.0\"}}}} in a file NAME.ign"
        ),
        (None, _) if to.parse::<usize>().is_ok() => {
            let exist = if count == 1 {
                "config exists"
            } else {
                "configs exist"
            };
            bail!("only {count} earlier {exist}")
        }
        (None, _) => bail!("no earlier config {to} found; see machinist history"),
    }
}
