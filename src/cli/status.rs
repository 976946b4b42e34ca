//! `machinist status`.

use anyhow::Context;
use clap::Args;

use super::{Exit, Format, Global, Printed, print, print_data};
use crate::{
    admin::ask_status,
    clock::Clock,
    root::Root,
    status::{Status, render},
};

/// Flags of `status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 0 when the machine is ready, 1 when it is not or when no agent answers.

Examples:
  machinist status
  machinist status --root ./sandbox
  machinist status -o json | jq '.gates[] | select(.open | not)'")]
pub struct StatusArgs {
    /// How it is printed.
    #[command(flatten)]
    pub printed: Printed,
}

pub(super) fn run(global: &Global, args: StatusArgs) -> anyhow::Result<Exit> {
    let answer = ask_status(&global.open_root()?)?;
    // What the agent says goes through as it is: a newer agent may say more than this binary knows.
    let document: serde_json::Value =
        serde_json::from_str(&answer).context("the agent's answer is no JSON")?;
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

fn parse(answer: &str) -> anyhow::Result<Status> {
    serde_json::from_str(answer).context(
        "the agent's status has another shape than this binary knows; see it with status -o json",
    )
}

/// The status of the agent that runs below `root`.
pub(super) fn ask(root: &Root) -> anyhow::Result<Status> {
    parse(&ask_status(root)?)
}
