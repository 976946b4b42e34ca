//! Implements `machinist man`.

use anyhow::Context;
use clap::{Args, Command};

use super::{Exit, output::print_raw};

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  machinist man | man -l -
  machinist man status > machinist-status.1")]
pub struct ManArgs {
    /// The command that the page describes [default: machinist itself]
    #[arg(value_name = "COMMAND")]
    pub about: Option<String>,
}

pub(super) fn run(mut all: Command, args: &ManArgs) -> anyhow::Result<Exit> {
    // Building passes the shared flags and the full names down to the commands.
    all.build();
    let about = match &args.about {
        None => all,
        Some(name) => all
            .find_subcommand(name)
            .with_context(|| format!("unknown command {name}"))?
            .clone(),
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(about).render(&mut page)?;
    print_raw(&String::from_utf8(page)?)?;
    Ok(Exit::Done)
}
