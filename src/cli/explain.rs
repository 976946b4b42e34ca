//! Implements `machinist explain`.

use std::path::Path;

use clap::Args;

use super::{
    Exit, Global, OutputFormatArg,
    config_context::ConfigContext,
    fleet,
    node_selection::{ClusterArgs, log},
    pool, print_data, root_flag, selector, start_logging_beside_a_page, status,
};
use machinist_base::reason::Reason;
use machinist_status::{
    Finding, JOURNAL_TOO_NEW_ADVICE, JOURNAL_UNREADABLE_ADVICE, explain,
    settings::{AgentRole, Fragment},
};
use machinist_update::{
    pinned_config::PinnedConfig,
    store::{self, StoreError},
};

/// Flags of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Explains what the machine does or waits for: from the running agent, or else from the journal; with --node, from \
the state that the node publishes in the cluster; with --pool, why no further node of a pool is updated.

Examples:
  machinist explain
  machinist explain --root ./sandbox -o json
  machinist explain --node worker-1
  machinist explain --pool worker")]
pub struct ExplainArgs {
    /// Explain a node from its state in the cluster
    #[arg(long, value_name = "NAME", conflicts_with = "pool")]
    pub node: Option<String>,
    /// Explain why no further node of a MachineConfigPool is updated
    #[arg(long, value_name = "NAME", value_parser = selector::pool)]
    pub pool: Option<String>,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &ExplainArgs) -> anyhow::Result<Exit> {
    if let Some(name) = &args.pool {
        return pool::explain(global, &args.reach, name, args.printed);
    }
    let found = match &args.node {
        Some(name) => {
            start_logging_beside_a_page(log(global))?;
            fleet::explain(&args.reach, name)?
        }
        None if !args.reach.is_silent() => {
            super::output::print_error("cluster flags require --node NAME or --pool NAME");
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
    if !context.settings.has_role(AgentRole::Config) {
        found.push(Finding::plain(
            "the agent applies no configs: the setting `roles` does not include config",
            "see: machinist settings",
        ));
    }
    let mut source = String::new();
    match status::running_agent(&context.root)? {
        Some(status) => {
            let reboot = context.settings.update.reboot.as_str();
            found.extend(explain(&status, reboot));
            source = source_flag(&context, &status.source);
        }
        None => found.extend(without_agent(&context)?),
    }
    let mut flags = root_flag(&context.root);
    if let Some(dir) = &global.config {
        flags += &format!(" --config {}", dir.display());
    }
    for finding in &mut found {
        finding.advice = with_flags(&finding.advice, &flags, &source);
    }
    Ok(found)
}

/// The flag with which `apply` reads the source of the agent, after a space; empty if the settings
/// select it.
fn source_flag(context: &ConfigContext, of_the_agent: &str) -> String {
    let own = context.source().map(|own| format!("dir:{}", own.shown));
    match own {
        Ok(own) if own != of_the_agent && of_the_agent.starts_with("dir:") => {
            format!(" --source {of_the_agent}")
        }
        _ => String::new(),
    }
}

/// The advice with these flags after each command of machinist.
fn with_flags(advice: &str, flags: &str, source: &str) -> String {
    let mut advice = advice.replace(
        "machinist apply",
        &format!("machinist apply{flags}{source}"),
    );
    for command in [
        "machinist run",
        "machinist settings",
        "machinist journal reset",
    ] {
        advice = advice.replace(command, &format!("{command}{flags}"));
    }
    advice
}

fn sentence(finding: &Finding) -> String {
    let code = finding.reason.filter(|code| {
        // The text of a refusal already ends with its code.
        !finding.message.contains(code.as_str())
    });
    let code = code.map_or(String::new(), |code| format!(" [{code}]"));
    let text = machinist_plan::escape_line(&format!("{}{code}", finding.message));
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
        match context.root.display() == Path::new("/") {
            true => "to start it: systemctl start machinist, or machinist run",
            false => "to start it: machinist run",
        },
    )];
    let journal = match store::peek(&context.root) {
        Ok(journal) => journal,
        Err(StoreError::Journal { path, source }) => {
            let path = path.display();
            let what = format!("{path} is unusable, no changes are made: {source}");
            let advice = match source.reason() {
                Reason::JournalTooNew => JOURNAL_TOO_NEW_ADVICE,
                _ => JOURNAL_UNREADABLE_ADVICE,
            };
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
    if context.settings.has_role(AgentRole::Config)
        && let Err(refused) = context.source()?.read()
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_commands_repeat_the_connection_flags() {
        let (flags, source) = (" --root /x", " --source dir:y");
        let advice = "to repair it: machinist apply; else see: machinist settings";
        assert_eq!(
            with_flags(advice, flags, source),
            "to repair it: machinist apply --root /x --source dir:y; else see: machinist settings --root /x"
        );
        assert_eq!(with_flags(advice, "", ""), advice);
    }
}
