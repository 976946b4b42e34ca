//! Implements `machinist status`.

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use super::{
    Exit, Format, Global, OutputFormatArg, fleet,
    node_selection::{ClusterArgs, log},
    output, print, print_data, start_logging_beside_a_page,
};
use machinist_agent::admin::{self, AgentClientError};
use machinist_base::clock::Clock;
use machinist_plan::escape_line;
use machinist_rootfs::Root;
use machinist_status::{Status, render};

/// Flags of `status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --node or --pool it queries the agent of this machine. With them it queries the cluster, from any machine \
with a kubeconfig; a pool's row is computed from the current state of its nodes. \
Exits with 0 if the machine or node is ready and no shown pool is degraded, else with 1.

Examples:
  machinist status
  machinist status --root ./sandbox
  machinist status -o json | jq '.gates[] | select(.open | not)'
  machinist status --node worker-1
  machinist status --pool worker
  machinist status --pool --context staging")]
pub struct StatusArgs {
    /// Show the published state of a node
    #[arg(long, value_name = "NAME", conflicts_with = "pool")]
    pub node: Option<String>,
    /// Show a pool with its nodes; all pools if no name is given
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub pool: Option<String>,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: StatusArgs) -> anyhow::Result<Exit> {
    if args.node.is_some() || args.pool.is_some() {
        start_logging_beside_a_page(log(global))?;
    }
    match (&args.node, &args.pool) {
        (Some(name), _) => return fleet::node(&args.reach, name, args.printed),
        (None, Some(name)) => return fleet::pools(&args.reach, name, args.printed),
        (None, None) if !args.reach.is_silent() => {
            output::print_error("cluster flags require --node NAME or --pool [NAME]");
            return Ok(Exit::Usage);
        }
        (None, None) => {}
    }
    let answer = match admin::fetch_status(&global.open_root()?) {
        Err(AgentClientError::NoAgent(root)) => {
            let error = AgentClientError::NoAgent(root);
            bail!(
                "{error}; to query the cluster instead: machinist status --node NAME, or --pool [NAME]"
            );
        }
        answer => answer?,
    };
    // The agent's answer is passed through: a newer agent may send fields that this version does
    // not know.
    let document: serde_json::Value =
        serde_json::from_str(&answer).context("invalid JSON in the agent's response")?;
    let ready = document["ready"].as_bool().unwrap_or(false);
    match args.printed.output {
        Format::Text => print(&page(&answer)?)?,
        format => print_data(format, &document, |_| String::new())?,
    }
    match ready {
        true => Ok(Exit::Done),
        false => Ok(Exit::Failed),
    }
}

fn page(answer: &str) -> anyhow::Result<String> {
    Ok(render(&parse(answer)?, Clock::system().now()))
}

/// Parses the status and removes terminal control characters from its texts.
fn parse(answer: &str) -> anyhow::Result<Status> {
    let mut document =
        serde_json::from_str(answer).context("invalid JSON in the agent's response")?;
    make_printable(&mut document);
    serde_json::from_value(document)
        .context("unsupported format of the agent's status (other version?); try status -o json")
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = escape_line(text),
        Value::Array(all) => all.iter_mut().for_each(make_printable),
        Value::Object(all) => all.values_mut().for_each(make_printable),
        _ => {}
    }
}

/// The status of the agent that runs below `root`.
pub(super) fn fetch_status(root: &Root) -> anyhow::Result<Status> {
    parse(&admin::fetch_status(root)?)
}

/// The status of the running agent; none if no agent runs.
pub(super) fn running_agent(root: &Root) -> anyhow::Result<Option<Status>> {
    match fetch_status(root) {
        Ok(status) => Ok(Some(status)),
        Err(error) => match error.downcast_ref() {
            Some(AgentClientError::NoAgent(_)) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_status::Mode;

    #[test]
    fn the_status_page_shows_no_terminal_control_characters() {
        let now = Clock::system().now();
        let hostile = "x\u{1b}[31m\u{1b}[2J\nready\u{202e}\u{9b}";
        let mut status = Status::starting(hostile, Mode::Machine, now);
        status.source = hostile.to_owned();
        status.phase = hostile.to_owned();
        status.config.current = hostile.to_owned();
        status.device_problems = vec![hostile.to_owned()];
        status.holders_unknown = Some(hostile.to_owned());
        let text = page(&serde_json::to_string(&status).unwrap()).unwrap();
        assert!(text.contains("[2J"), "{text}");
        for one in [
            "x\u{1b}[31m",
            "\u{1b}[2J",
            "\nready\u{202e}",
            "\u{202e}",
            "\u{9b}",
        ] {
            assert!(!text.contains(one), "{one:?} in {text:?}");
        }
    }
}
