//! Implements `machinist explain`.

use clap::Args;

use super::{
    Exit, Global, OutputFormatArg, agent_client,
    config_context::ConfigContext,
    fleet,
    node_selection::{ClusterArgs, log},
    print_data, start_logging_beside_a_page,
};
use crate::{
    settings::{Fragment, Job},
    status::{Finding, explain},
    update::{
        pinned_config::PinnedConfig,
        store::{self, StoreError},
    },
};

/// Flags of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Explains what the machine does or waits for: from the running agent, or else from the journal; with --node, from \
the state that the node publishes in the cluster.

Examples:
  machinist explain
  machinist explain --root ./sandbox -o json
  machinist explain --node worker-1")]
pub struct ExplainArgs {
    /// Explain a node from its state in the cluster
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &ExplainArgs) -> anyhow::Result<Exit> {
    let found = match &args.node {
        Some(name) => {
            start_logging_beside_a_page(log(global))?;
            fleet::explain(&args.reach, name)?
        }
        None if !args.reach.is_silent() => {
            super::output::print_error("cluster flags require --node NAME");
            return Ok(Exit::Usage);
        }
        None => here(global)?,
    };
    print_data(args.printed.output, &found, |found| {
        found.iter().map(sentence).collect()
    })?;
    Ok(Exit::Done)
}

/// The findings about this machine.
fn here(global: &Global) -> anyhow::Result<Vec<Finding>> {
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    let mut found = Vec::new();
    if !context.settings.does(Job::Config) {
        found.push(Finding::plain(
            "the agent applies no configs: the setting `jobs` does not include config",
            "see: machinist settings",
        ));
    }
    match agent_client::agent(&context)? {
        Some(status) => {
            let reboot = context.settings.update.reboot.as_str();
            found.extend(explain(&status, reboot));
        }
        None => found.extend(without_agent(&context)?),
    }
    Ok(found)
}

fn sentence(finding: &Finding) -> String {
    let code = finding.reason.filter(|code| {
        // The text of a refusal already ends with its code.
        !finding.message.contains(code.as_str())
    });
    let code = code.map_or(String::new(), |code| format!(" [{code}]"));
    let text = crate::plan::escape_line(&format!("{}{code}", finding.message));
    let mut page = super::output::wrapped("- ", "  ", &text);
    if !finding.advice.is_empty() {
        page += &super::output::wrapped("    → ", "      ", &finding.advice);
    }
    page
}

/// The findings from the state on disk.
fn without_agent(context: &ConfigContext) -> anyhow::Result<Vec<Finding>> {
    let mut found = vec![Finding::plain(
        format!(
            "no agent running for root {}",
            context.root.display().display()
        ),
        "to start it: systemctl start machinist, or machinist run",
    )];
    let journal = match store::peek(&context.root) {
        Ok(journal) => journal,
        Err(StoreError::Journal { path, source }) => {
            let what = format!("{path} is unusable, no changes are made: {source}");
            let advice = "see: machinist journal reset --help";
            found.push(Finding::coded(source.reason(), what, advice));
            return Ok(found);
        }
        Err(error) => return Err(error.into()),
    };
    for tx in &journal.transactions {
        let what = format!(
            "update {} to {} is not finished: {:?}, {:?}",
            tx.id, tx.to.name, tx.mark, tx.direction
        );
        found.push(Finding::plain(
            what,
            "the agent resumes it at its next start",
        ));
    }
    if let Some(failure) = &journal.failure {
        let what = format!("the last update failed: {}", failure.message);
        found.push(Finding::coded(failure.code, what, failure.code.meaning()));
    }
    if let Some(hold) = PinnedConfig::load(&context.root)? {
        let what = format!("machine pinned to {} ({})", hold.config.name, hold.by);
        let advice = "the agent keeps it at start until the source changes";
        found.push(Finding::plain(what, advice));
    }
    if let Err(refused) = context.source()?.read() {
        found.extend(refused.refusals.iter().map(|refusal| {
            Finding::coded(
                refusal.reason,
                refusal.to_string(),
                "fix the reported problem",
            )
        }));
    }
    Ok(found)
}
